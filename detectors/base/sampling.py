"""Signals as levels that do not depend on the scrape interval: gauges, rates of counters, means of histograms.

Counters and histograms use the trailing five minutes, so that history at steps of minutes matches cycles of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.model import SUM_BUCKET, CellStatus, Floats, SignalKey, SignalKind, Window
from outrider.vocabulary import catalog

TRAILING_SECONDS = 300.0
MIN_EVENTS = 5.0  # a mean over fewer observations depends on single requests


def keys_of(signals: Sequence[str]) -> tuple[SignalKey, ...]:
    """The window columns that the readings need."""
    keys: list[SignalKey] = []
    for name in signals:
        signal = catalog.signal(name)
        keys.extend(signal.bucket_keys if signal.kind is SignalKind.HISTOGRAM else (SignalKey(name),))
    return tuple(keys)


def spacing(window: Window) -> Floats:
    """Seconds covered by each column, shape (times,); the first one counts as one step."""
    return np.diff(window.times, prepend=window.times[:1] - window.step.total_seconds())


def read(window: Window, signals: Sequence[str], columns: slice) -> Floats:
    """Levels of shape (entities, columns, signals); NaN if unknown.

    Deltas become rates per second; histograms become the mean of their observations.
    """
    start, stop, _ = columns.indices(window.times.size)
    result = np.full((len(window.entities), max(0, stop - start), len(signals)), np.nan)
    if result.size == 0:
        return result
    first = int(np.searchsorted(window.times, window.times[start] - TRAILING_SECONDS, side="right"))
    span = slice(first, stop)
    for place, name in enumerate(signals):
        signal = catalog.signal(name)
        if signal.kind is SignalKind.HISTOGRAM:
            counts = np.zeros((len(window.entities), stop - first))
            for key in signal.bucket_keys:
                if key.bucket != SUM_BUCKET:
                    counts += np.nan_to_num(_usable(window, key, span))
            sums = np.nan_to_num(_usable(window, SignalKey(name, bucket=SUM_BUCKET), span))
            over, under = _trailing(window, sums, span, start), _trailing(window, counts, span, start)
            result[:, :, place] = _ratio(over, np.where(under >= MIN_EVENTS, under, 0.0))
        elif signal.kind is SignalKind.DELTA:
            values = _usable(window, name, span)
            seconds = np.where(np.isnan(values), 0.0, spacing(window)[span])
            total = _trailing(window, np.nan_to_num(values), span, start)
            result[:, :, place] = _ratio(total, _trailing(window, seconds, span, start))
        else:
            result[:, :, place] = _usable(window, name, slice(start, stop))
    return result


def _usable(window: Window, key: SignalKey | str, columns: slice) -> Floats:
    """The values of usable cells; NaN for stale, reset, untrusted or infinite ones."""
    values = window.column(key)[:, columns]
    good = (window.column_status(key)[:, columns] <= CellStatus.BELOW_FIRST_BUCKET) & np.isfinite(values)
    believed: Floats = np.where(good, values, np.nan)
    return believed


def _trailing(window: Window, values: Floats, span: slice, start: int) -> Floats:
    """Sums over the trailing span, for the columns from ``start`` on."""
    times = window.times[span]
    cumulated = np.concatenate((np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)), axis=1)
    ends = np.arange(start - span.start, times.size)
    begins = np.searchsorted(times, times[ends] - TRAILING_SECONDS + 1e-6, side="right")
    sums: Floats = cumulated[:, ends + 1] - cumulated[:, begins]
    return sums


def _ratio(over: Floats, under: Floats) -> Floats:
    return np.divide(over, under, out=np.full_like(over, np.nan), where=under > 0)
