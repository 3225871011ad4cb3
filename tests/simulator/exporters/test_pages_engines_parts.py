"""Parts of engine pages: numbers, ladders, outlines and sheets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.counters import HISTOGRAMS, REQUEST_BOUNDS, STEP_BOUNDS, TTFT_BOUNDS
from simulator.exporters.ladders import quantiles, through
from simulator.exporters.numbers import cpp_number, python_number, rust_number
from simulator.exporters.outlines import release
from simulator.exporters.sheet import Outline, Sheet

RELEASES = ("vllm_0_32", "vllm_0_8", "sglang_0_5", "sglang_0_4", "tgi", "triton", "triton_now", "mindie")
COARSE = (0.2, 0.6, 2.0, 9.0, 70.0)
counts_of_requests = st.lists(
    st.integers(0, 1000), min_size=len(REQUEST_BOUNDS) + 1, max_size=len(REQUEST_BOUNDS) + 1
).map(lambda counts: np.array([counts], dtype=np.float64))


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_every_language_s_numbers_read_back(value: float) -> None:
    assert float(python_number(value)) == value
    assert float(cpp_number(value)) == pytest.approx(value, rel=1e-15)
    if value == 0 or abs(value) > 1e-5:
        assert float(rust_number(value)) == value
        assert "e" not in rust_number(value)


def test_numbers_have_the_format_of_the_servers() -> None:
    assert [rust_number(x) for x in (109.0, 0.00015000000000000001, 245.91743839099996, 2e16)] == [
        "109",
        "0.00015000000000000001",
        "245.91743839099996",
        "20000000000000000",
    ]
    assert [cpp_number(x) for x in (3.0, 16106127360.0, 4879631.328000044, 0.0001220703125)] == [
        "3",
        "16106127360",
        "4879631.328000044",
        "0.0001220703125",
    ]
    assert [number(math.nan) for number in (python_number, rust_number, cpp_number)] == ["NaN", "NaN", "Nan"]
    assert [python_number(math.inf), rust_number(-math.inf)] == ["+Inf", "-Inf"]


@given(counts_of_requests)
def test_counts_through_another_ladder_are_whole_and_rise_to_the_same_count(counts: np.ndarray) -> None:
    seen = through(counts, REQUEST_BOUNDS, COARSE)[0]
    assert seen[-1] == counts.sum()
    assert list(seen) == sorted(seen)
    assert np.array_equal(seen, np.floor(seen))
    finest = through(counts, REQUEST_BOUNDS, REQUEST_BOUNDS)[0]
    assert np.array_equal(finest, np.cumsum(counts[0]))


@given(counts_of_requests, counts_of_requests)
def test_monotonic_counts_stay_monotonic_through_another_ladder(first: np.ndarray, more: np.ndarray) -> None:
    before, after = through(first, REQUEST_BOUNDS, COARSE), through(first + more, REQUEST_BOUNDS, COARSE)
    assert (after >= before).all()


def test_bounds_that_both_ladders_have_are_exact() -> None:
    counts = np.arange(len(TTFT_BOUNDS) + 1, dtype=np.float64)[None, :]
    shared = TTFT_BOUNDS[::3]
    assert list(through(counts, TTFT_BOUNDS, shared)[0][:-1]) == list(np.cumsum(counts[0])[:-1][::3])


def test_a_quantile_is_the_same_on_a_finer_ladder() -> None:
    counts = np.array([[10.0, 40.0, 200.0, 500.0, 20.0, 0.0]])
    fine = tuple(sorted({*COARSE, 0.4, 1.0, 1.4, 4.0}))
    through_fine = np.diff(through(counts, COARSE, fine), prepend=0.0)
    for quantile in (0.2, 0.5, 0.9):
        (coarse,), (finer,) = quantiles(counts, COARSE, (quantile,)), quantiles(through_fine, fine, (quantile,))
        assert finer == pytest.approx(coarse, rel=0.01)


def test_quantiles_of_nothing_are_unknown_and_of_one_bucket_lie_inside() -> None:
    nothing, one = np.zeros(len(COARSE) + 1), np.zeros(len(COARSE) + 1)
    one[2] = 100.0
    result = quantiles(np.array([nothing, one]), COARSE, (0.5, 0.99))
    assert np.isnan(result[0]).all()
    assert result[1] == pytest.approx([0.6 + 0.5 * 1.4, 0.6 + 0.99 * 1.4])
    beyond = np.zeros(len(COARSE) + 1)
    beyond[-1] = 5.0
    assert quantiles(beyond[None, :], COARSE, (0.5,))[0][0] == 70.0


def test_a_step_below_the_first_bound_of_vllm_is_distinct_on_the_fine_ladder() -> None:
    assert HISTOGRAMS["queue"][0] == 0.3
    assert sum(bound < 0.3 for bound in HISTOGRAMS["queue_fine"]) > 20
    assert STEP_BOUNDS[0] == 0.00015000000000000001
    assert len(STEP_BOUNDS) == 35


def sheet() -> tuple[Outline, Sheet]:
    page_outline = Outline(python_number)
    page_outline.family("a", "gauge", "first")
    page_outline.sample("a", {"x": "1"}, 0)
    page_outline.sample("a", {"x": "2"}, 2)
    page_outline.family("b", "counter", "")
    page_outline.sample("b", {}, 0)
    return page_outline, Sheet(page_outline, page_outline.places(3))


@given(st.lists(st.tuples(*[st.floats(0, 10)] * 3), min_size=1, max_size=6))
def test_a_reused_sheet_equals_a_new_one(rows: list[tuple[float, float, float]]) -> None:
    _, used = sheet()
    for row in rows:
        _, fresh = sheet()
        assert used.render(np.array(row)) == fresh.render(np.array(row))


def test_a_sheet_with_unchanged_numbers_is_not_rewritten() -> None:
    _, one = sheet()
    first = one.render(np.array([1.0, 7.0, 3.0]))
    assert first == b'# HELP a first\n# TYPE a gauge\na{x="1"} 1.0\na{x="2"} 3.0\n# TYPE b counter\nb 1.0\n'
    assert one.render(np.array([1.0, 7.0, 3.0])) is first
    assert one.render(np.array([1.0, 8.0, math.nan])).count(b"NaN") == 1


def test_a_gap_follows_each_family() -> None:
    page = Outline(rust_number, gap="\n")
    for name in ("a", "b"):
        page.family(name, "gauge", "")
        page.sample(name, {}, 0)
    assert Sheet(page, page.places(1)).render(np.array([2.0])) == b"# TYPE a gauge\na 2\n\n# TYPE b gauge\nb 2\n\n"


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_has_no_duplicate_family(name: str) -> None:
    names = [family["name"] for family in release(name).families]
    assert len(names) == len(set(names)) > 15
    assert all(family.get("help", "x") for family in release(name).families)
