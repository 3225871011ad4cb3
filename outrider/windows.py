"""Window arithmetic shared by detectors, planner and reports. Pure, vectorized over entities."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np

from outrider.model import CellStatus, Floats, SignalKey, Statuses, Window
from outrider.vocabulary import catalog, percentiles


def recent(window: Window, span: timedelta) -> slice:
    """Slice of the time columns within ``span`` before (and including) the newest."""
    if window.times.size == 0:
        return slice(0, 0)
    first = int(np.searchsorted(window.times, window.times[-1] - span.total_seconds(), side="right"))
    return slice(first, window.times.size)


def last_value(window: Window, key: SignalKey | str) -> Floats:
    """The newest present value of each entity, shape (entities,); NaN if there is none."""
    values = window.column(key)
    if values.shape[1] == 0:
        return np.full(values.shape[0], np.nan)
    present = ~np.isnan(values)
    newest = values.shape[1] - 1 - np.argmax(present[:, ::-1], axis=1)
    result = values[np.arange(values.shape[0]), newest]
    return np.where(present.any(axis=1), result, np.nan)


def total(window: Window, key: SignalKey | str, span: timedelta) -> Floats:
    """The sum of a delta over the span, shape (entities,); NaN if no slot has a value."""
    values = window.column(key)[:, recent(window, span)]
    result = np.nansum(values, axis=1)
    return np.where(np.isnan(values).all(axis=1), np.nan, result)


def mean_by_row(values: Floats) -> Floats:
    """The mean of each row's known values; NaN if there is none."""
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    total_of = np.where(known, values, 0.0).sum(axis=1)
    result: Floats = np.divide(total_of, count, out=np.full(total_of.shape, np.nan), where=count > 0)
    return result


def believed(window: Window, key: SignalKey | str) -> Floats:
    """A column without the values of absent, stale, reset or untrusted cells, (entities, times)."""
    return np.where(window.column_status(key) < CellStatus.ABSENT, window.column(key), np.nan)


def buckets(window: Window, name: str, span: timedelta) -> Floats:
    """Bucket increments of a histogram over the span, shape (entities, buckets)."""
    keys = [key for key in catalog.signal(name).bucket_keys if key.bucket is not None and key.bucket >= 0]
    columns = recent(window, span)
    return np.stack([np.nansum(window.column(key)[:, columns], axis=1) for key in keys], axis=1)


def quantile(window: Window, name: str, q: float, span: timedelta) -> tuple[Floats, Floats]:
    """Quantile over the span from merged buckets: (values, below_first_bucket), shape (entities,)."""
    return catalog.bucket_quantile(buckets(window, name, span), catalog.signal(name).bounds, q)


def quantile_interval(
    window: Window, name: str, q: float, span: timedelta, fewest: int
) -> tuple[Floats, Floats, Floats]:
    """Quantile over the span as (value, lower bound, upper bound), each (entities,).

    NaN with fewer than ``fewest`` observations. The bounds are those of its bucket.
    """
    counted, bounds = buckets(window, name, span), catalog.signal(name).bounds
    value, _ = catalog.bucket_quantile(counted, bounds, q)
    low, high = percentiles.bucket_interval(counted, bounds, q)
    enough = counted.sum(axis=1) >= fewest
    return np.where(enough, value, np.nan), np.where(enough, low, np.nan), np.where(enough, high, np.nan)


def holding(statuses: Statuses) -> np.ndarray:
    """True for cells that block scale-in and cordon (safety rule 1)."""
    return (statuses >= CellStatus.ABSENT) & (statuses <= CellStatus.UNTRUSTED)


def finite(window: Window) -> Window:
    """The window without infinities: such a cell has no value and is untrusted."""
    endless = np.isinf(window.values)
    if not endless.any():
        return window
    status = np.where(endless, np.uint8(CellStatus.UNTRUSTED), window.status)
    return replace(window, values=np.where(endless, np.nan, window.values), status=status)
