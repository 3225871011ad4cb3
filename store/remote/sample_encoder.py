"""Encodes a matrix as samples: numbers, separate statuses, and cumulative buckets. Pure.

A present cell is a sample. Any other cell is not sent as a number; its status is a sample of its own unless it is
absent. A histogram is sent as a whole or not at all; statuses record which of its buckets are not present.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.model import CellStatus, Floats, SignalKey, Statuses
from outrider.vocabulary import catalog
from store.remote.names import STATUS_METRIC, WHOLE, SeriesName, bounds_of, name_of
from store.tsdb.chunk_codec import Numeric


def has_number(status: Statuses) -> NDArray[np.bool_]:
    """True for cells whose number is sent."""
    result: NDArray[np.bool_] = (status == CellStatus.PRESENT) | (status == CellStatus.BELOW_FIRST_BUCKET)
    return result


def status_name(spelled: str) -> SeriesName:
    """The status series of a column, or of all columns of a histogram."""
    return SeriesName(STATUS_METRIC, (("signal", spelled),))


@dataclass(frozen=True, slots=True)
class _Histogram:
    """``rows`` are the rows of its stored buckets, ``buckets`` their bucket indices."""

    name: str
    rows: NDArray[np.intp]
    buckets: NDArray[np.intp]
    sum_row: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Columns:
    """The series of a tuple of stored columns, the same for every entity.

    ``names`` are those of the samples: first the columns sent unchanged, then the buckets.
    """

    keys: tuple[SignalKey, ...]
    names: tuple[SeriesName, ...]
    plain: NDArray[np.intp]
    histograms: tuple[_Histogram, ...]

    def samples(self, values: Numeric, status: Statuses) -> Floats:
        """The samples of matrices of shape (keys, cells): numbers of shape (names, cells), NaN for none."""
        result = np.empty((len(self.names), values.shape[1]))
        result[: self.plain.size] = np.where(has_number(status[self.plain]), values[self.plain], np.nan)
        first = self.plain.size
        for histogram in self.histograms:
            present = status[histogram.rows] == CellStatus.PRESENT
            counts = np.zeros((histogram.size, values.shape[1]))
            counts[histogram.buckets] = np.where(present, values[histogram.rows], 0.0)
            part = result[first : first + histogram.size]
            np.cumsum(counts, axis=0, out=part)
            part[:, ~present.any(axis=0)] = np.nan
            first += histogram.size
        return result

    def statuses(self, status: Statuses) -> dict[SeriesName, Floats]:
        """The statuses to send, of shape (cells,), NaN for none; series without any are left out."""
        unrecorded = (status == CellStatus.PRESENT) | (status == CellStatus.ABSENT)
        recorded = np.where(unrecorded, np.nan, status)
        result: dict[SeriesName, Floats] = {}
        for histogram in self.histograms:
            codes = np.full((histogram.size, status.shape[1]), CellStatus.ABSENT, dtype=np.uint8)
            codes[histogram.buckets] = status[histogram.rows]
            any_present = (codes == CellStatus.PRESENT).any(axis=0)
            separate = (codes != CellStatus.PRESENT) & (any_present | (codes != CellStatus.ABSENT))
            if histogram.sum_row is not None and histogram.rows.size == histogram.size:
                uniform = separate.all(axis=0) & (codes == status[histogram.sum_row]).all(axis=0)
                result[status_name(histogram.name + WHOLE)] = np.where(uniform, codes[0], np.nan)
                separate[:, uniform] = False
                recorded[histogram.sum_row, uniform] = np.nan
            for bucket in np.flatnonzero(separate.any(axis=1)).tolist():
                key = SignalKey(histogram.name, bucket=bucket)
                result[status_name(str(key))] = np.where(separate[bucket], codes[bucket], np.nan)
        for index in self.plain.tolist():
            result[status_name(str(self.keys[index]))] = recorded[index]
        return {name: codes for name, codes in result.items() if not np.isnan(codes).all()}


@lru_cache(maxsize=256)
def columns_of(keys: tuple[SignalKey, ...]) -> Columns:
    """The encoding of these stored columns."""
    ladders: dict[str, dict[int, int]] = {}
    for index, key in enumerate(keys):
        if key.bucket is not None and key.bucket >= 0 and bounds_of(key.name):
            ladders.setdefault(key.name, {})[key.bucket] = index
    histograms = tuple(_histogram(name, indices, keys) for name, indices in ladders.items())
    bucketed = {int(index) for histogram in histograms for index in histogram.rows}
    plain = [index for index in range(len(keys)) if index not in bucketed]
    names = [name_of(keys[index]) for index in plain]
    for histogram in histograms:
        names += [name_of(SignalKey(histogram.name, bucket=bucket)) for bucket in range(histogram.size)]
    return Columns(keys, tuple(names), np.array(plain, dtype=np.intp), histograms)


def _histogram(name: str, indices: dict[int, int], keys: tuple[SignalKey, ...]) -> _Histogram:
    total = catalog.signal(name).bucket_keys[-1]
    return _Histogram(
        name,
        np.array(list(indices.values()), dtype=np.intp),
        np.array(list(indices), dtype=np.intp),
        keys.index(total) if total in keys else None,
        len(bounds_of(name)) + 1,
    )
