"""Decodes the series of a response into the cells of a signal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from outrider.model import SUM_BUCKET, CellStatus, Floats, SignalKey
from store.remote.api_responses import Matrix
from store.remote.names import WHOLE, SeriesName, bounds_of, name_of
from store.remote.query_ranges import Part
from store.remote.selectors import Selector
from store.tsdb.chunk_codec import Section
from store.tsdb.grid import ColumnRequest

COLUMN_LABELS: Final = ("bucket", "le", "quantile")
"""Labels that distinguish the columns of a metric."""

EntityLabels = tuple[str, str, str]
"""Cluster, namespace and name, which identify an entity within its kind."""
Slab = tuple[str, Floats]
"""A column name, and numbers of shape (entities, times)."""


def series_of(request: ColumnRequest) -> list[SeriesName]:
    """The series of a signal's stored columns; for a bucket also the next lower one."""
    buckets: set[int] = set()
    result: list[SeriesName] = []
    for key in request.stored:
        if key.bucket is not None and key.bucket != SUM_BUCKET and bounds_of(key.name):
            buckets.update(bucket for bucket in (key.bucket - 1, key.bucket) if bucket >= 0)
        else:
            result.append(name_of(key))
    return result + [name_of(SignalKey(request.name, bucket=bucket)) for bucket in sorted(buckets)]


def narrowed(selector: Selector, slots: Mapping[tuple[tuple[str, str], ...], int]) -> Selector:
    """A selector restricted to the required series of a metric."""
    for label in COLUMN_LABELS:
        values = [dict(labels).get(label, "") for labels in slots]
        if any(values):
            selector = selector.among(label, list(dict.fromkeys(values)))
    return selector


def column_labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The labels that identify the column of a series."""
    return tuple((label, labels[label]) for label in COLUMN_LABELS if label in labels)


def entity_labels_of(labels: Mapping[str, str]) -> EntityLabels:
    """The entity of a series."""
    return labels.get("cluster", ""), labels.get("namespace", ""), labels.get("name", "")


def scatter(series: Floats, rows: Sequence[tuple[int, int]], response: Matrix, part: Part) -> None:
    """Writes the samples of a response into their cells. ``rows`` are slot and entity of each series, -1 for none."""
    _, entities, times = series.shape
    starts = np.array([-1 if min(pair) < 0 else (pair[0] * entities + pair[1]) * times for pair in rows], dtype=np.intp)
    at, indices = np.repeat(starts, response.counts), part.positions(response.stamps)
    counts = (at >= 0) & (indices >= 0)
    series.reshape(-1)[at[counts] + indices[counts]] = response.values[counts]


def stored(request: ColumnRequest, series: Floats, slots: Mapping[SeriesName, int]) -> Floats:
    """The stored columns of the series: a bucket is the difference between two cumulative ones."""
    result = np.empty((len(request.stored), *series.shape[1:]))
    for index, key in enumerate(request.stored):
        result[index] = series[slots[name_of(key)]]
        if key.bucket is not None and key.bucket > 0 and bounds_of(key.name):
            below = series[slots[name_of(SignalKey(key.name, bucket=key.bucket - 1))]]
            result[index] = np.maximum(result[index] - below, 0.0)
    return result


def codes_of(request: ColumnRequest, statuses: Mapping[str, list[Slab]], shape: tuple[int, ...]) -> Floats | None:
    """The statuses of the stored columns, NaN for cells without one; None if there is none at all."""
    slabs = statuses.get(request.name)
    if not slabs:
        return None
    result = np.full((len(request.stored), *shape), np.nan)
    spelled = {str(key): index for index, key in enumerate(request.stored)}
    of_buckets = [index for index, key in enumerate(request.stored) if key.bucket is not None]
    for text, codes in slabs:
        indices = of_buckets if text.endswith(WHOLE) else [spelled[text]] if text in spelled else []
        for index in indices:
            result[index] = np.where(np.isnan(codes), result[index], codes)
    return result


def section_of(values: Floats, codes: Floats | None, part: Part) -> Section:
    """Cells with their statuses. A recorded status applies to a cell; to a folded step only if it has no number."""
    present = ~np.isnan(values)
    status = np.where(present, CellStatus.PRESENT, CellStatus.ABSENT).astype(np.uint8)
    if codes is None:
        return Section(values, None if present.all() else status)
    recorded = ~np.isnan(codes)
    if part.folded:
        recorded &= ~present | (codes == CellStatus.BELOW_FIRST_BUCKET)
    status[recorded] = codes[recorded].astype(np.uint8)
    return Section(np.where(recorded & (codes != CellStatus.BELOW_FIRST_BUCKET), np.nan, values), status)
