"""A roll-up equals a plain loop over the cells, in one step or two, packed or not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model import CellStatus, SignalKey
from store.tsdb import rollup
from store.tsdb.chunk_codec import Block, Section, encode
from store.tsdb.rollup import Fold, RollupCells
from store.tsdb.tiers import HOUR, MINUTE

TEN = 10 * MINUTE
PRESENT, BELOW, ABSENT = CellStatus.PRESENT, CellStatus.BELOW_FIRST_BUCKET, CellStatus.ABSENT
START = 1_772_366_400_000_000 // HOUR * HOUR

number = st.integers(-(1 << 23), 1 << 23).map(lambda part: part / 64)  # sums of these are exact
cell = st.tuples(number, st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 5, 6]), st.booleans())
instants = st.lists(st.integers(0, 479), min_size=1, max_size=40, unique=True).map(sorted)


@st.composite
def cells(draw: st.DrawFn) -> tuple[np.ndarray, Section]:
    """Two columns of three entities. Most cells without a value have no number; some keep the last one."""
    times = np.array([START + 15_000_000 * at for at in draw(instants)], dtype=np.int64)
    values, status = np.empty((2, 3, times.size), np.float32), np.empty((2, 3, times.size), np.uint8)
    for index in np.ndindex(values.shape):
        value, mark, keeps = draw(cell)
        status[index] = mark
        values[index] = value if mark in (PRESENT, BELOW) or (keeps and mark != ABSENT) else np.nan
    return times, Section(values, None if not status.any() else status)


def status_of(section: Section) -> np.ndarray:
    return np.zeros(section.values.shape, np.uint8) if section.status is None else section.status


def roll_by_loop(fold: Fold, times: np.ndarray, section: Section, spacing: int) -> dict[int, np.ndarray]:
    """Statistics and status of every cell per span, computed by a plain loop."""
    status = status_of(section)
    result = {}
    for start in sorted({int(at) // spacing * spacing for at in times}):
        inside = [index for index, at in enumerate(times) if start <= at < start + spacing]
        expected_cell = np.full((len(fold.value) + 1, 2, 3), np.nan)
        for column, entity in np.ndindex(2, 3):
            pairs = [(float(section.values[column, entity, at]), int(status[column, entity, at])) for at in inside]
            expected_cell[:, column, entity] = gauge(pairs) if fold is Fold.GAUGE else increase(pairs, len(fold.value))
        result[start] = expected_cell
    return result


def last_cell(pairs: list[tuple[float, int]], has: tuple[int, ...]) -> tuple[float, int]:
    """The last cell with a valid value, else the last one that is not ABSENT."""
    last = next((pair for pair in reversed(pairs) if pair[1] in has), None)
    return last or next((pair for pair in reversed(pairs) if pair[1] != ABSENT), (math.nan, ABSENT))


def gauge(pairs: list[tuple[float, int]]) -> list[float]:
    has = [value for value, status in pairs if status in (PRESENT, BELOW) and not math.isnan(value)]
    last, status = last_cell(pairs, (PRESENT, BELOW))
    statistics_of_values = [math.fsum(has), min(has), max(has)] if has else [math.nan] * 3
    return [last, *statistics_of_values, float(len(has)), status]


def increase(pairs: list[tuple[float, int]], statistics: int) -> list[float]:
    has = [value for value, status in pairs if status == PRESENT]
    total = math.fsum(has) if has else math.nan
    return [*[total, float(len(has))][:statistics], last_cell(pairs, (PRESENT,))[1]]


def same(rolled: RollupCells, expected: dict[int, np.ndarray], tolerance: float) -> None:
    assert rolled.times.tolist() == list(expected)
    for index, expected_cell in enumerate(expected.values()):
        np.testing.assert_array_equal(rolled.status[..., index], expected_cell[-1])
        result = rolled.statistics[..., index]
        np.testing.assert_allclose(result, expected_cell[:-1], rtol=tolerance, atol=tolerance * 1e6)
        np.testing.assert_array_equal(result[0], expected_cell[0], "the last value, or the sum, is exact")
        if rolled.fold is Fold.GAUGE:
            np.testing.assert_array_equal(result[2:], expected_cell[2:-1], "and so are minimum, maximum and count")


def stored(rolled: RollupCells) -> RollupCells:
    return rollup.unpack([Block(encode(rolled.times, rollup.sections(rolled)))])


@pytest.mark.parametrize("fold", Fold)
@given(drawn=cells())
def test_a_roll_up_equals_a_plain_loop(fold: Fold, drawn: tuple[np.ndarray, Section]) -> None:
    times, section = drawn
    raw = rollup.of_cells(fold, times, section)
    ten = rollup.roll(raw, TEN)
    same(ten, roll_by_loop(fold, times, section, TEN), 1e-12)
    same(stored(ten), roll_by_loop(fold, times, section, TEN), 1e-6)
    hours = roll_by_loop(fold, times, section, HOUR)
    same(rollup.roll(ten, HOUR), hours, 1e-9)
    same(rollup.roll(stored(ten), HOUR), hours, 1e-6)
    same(stored(rollup.roll(stored(ten), HOUR)), hours, 1e-6)


def test_sums_beyond_seven_digits_and_infinite_values_are_restored() -> None:
    values = np.array([[[2.0**24, 1.0, 0.25], [np.inf, 1.0, 2.0], [1e300, 1.0, 1.0]]])
    with np.errstate(over="ignore"):
        section = Section(values.astype(np.float32))
    times = np.array([START, START + 1, START + 2])
    restored = stored(rollup.roll(rollup.of_cells(Fold.INCREASE, times, section), TEN))
    assert restored.statistics[0, 0, :, 0].tolist() == [2.0**24 + 1.25, np.inf, np.inf]
    gauges = stored(rollup.roll(rollup.of_cells(Fold.GAUGE, times, section), TEN))
    assert gauges.statistics[:, 0, 1, 0].tolist() == [2.0, np.inf, 1.0, np.inf, 3.0]


def test_the_fold_of_a_column_follows_the_catalog() -> None:
    assert rollup.fold_of(SignalKey("hw_accel_power_watts")) is Fold.GAUGE
    assert rollup.fold_of(SignalKey("hw_accel_fault_code")) is Fold.GAUGE
    assert rollup.fold_of(SignalKey("hw_accel_energy_joules_total")) is Fold.INCREASE
    assert rollup.fold_of(SignalKey("engine_ttft_seconds", bucket=3)) is Fold.BUCKET
    assert rollup.fold_of(SignalKey("engine_ttft_seconds", quantile=0.5)) is Fold.GAUGE
    assert rollup.fold_of(SignalKey("acme_queue_depth")) is Fold.GAUGE


def test_late_values_fill_empty_spans_and_others_are_counted() -> None:
    times = np.array([START])
    kept = rollup.of_cells(Fold.GAUGE, times, Section(np.array([[[1.0], [np.nan], [np.nan]]], np.float32),
                                                     np.array([[[0], [4], [3]]], np.uint8)))  # fmt: skip
    late = rollup.of_cells(Fold.GAUGE, times, Section(np.array([[[9.0], [8.0], [np.nan]]], np.float32),
                                                     np.array([[[0], [0], [3]]], np.uint8)))  # fmt: skip
    filled, refused = rollup.fill_in(kept, late)
    np.testing.assert_array_equal(filled.statistics[0, 0, :, 0], [1.0, 8.0, np.nan])
    assert filled.status[0, :, 0].tolist() == [PRESENT, PRESENT, ABSENT]
    assert refused == 1
    again, _ = rollup.fill_in(filled, late)
    np.testing.assert_array_equal(again.statistics, filled.statistics)
