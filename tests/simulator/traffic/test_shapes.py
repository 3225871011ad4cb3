from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import UsageError
from outrider.model import Floats
from simulator.spec.fleets import TrafficSpec
from simulator.spec.trace import bridged, read_trace
from simulator.traffic import shapes
from simulator.traffic.shapes import SHAPES, Load, load, salt_of

MONDAY = datetime(2026, 11, 16, tzinfo=UTC).timestamp()
DAY = MONDAY + 2 * 86400 + np.arange(0, 86400, 60.0)
NOON = MONDAY + 2 * 86400 + 43200
SALT = salt_of(7, "chat-70b")


def seen(shape: str, times: Floats, **more: float) -> Load:
    return load(TrafficSpec(shape=shape, **more), times, SALT)


def against_weekly(shape: str, times: Floats, **more: float) -> Floats:
    return seen(shape, times, **more).rate / seen("weekly", times).rate


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "trace"])
def test_a_shape_is_a_function_of_its_seed_and_time_alone(shape: str) -> None:
    whole = seen(shape, DAY)
    again = seen(shape, DAY[500:510])
    assert np.array_equal(whole.rate[500:510], again.rate)
    assert (whole.rate > 0).all()
    assert not np.array_equal(whole.rate, load(TrafficSpec(shape=shape), DAY, SALT + 99).rate)


def test_an_unknown_shape_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="zigzag") as refused:
        seen("zigzag", DAY)
    assert "launch-day" in refused.value.hint
    with pytest.raises(UsageError, match="needs a trace"):
        seen("trace", DAY)


def test_diurnal_has_no_weekend_and_weekly_has() -> None:
    saturday = MONDAY + 5 * 86400 + np.arange(0, 86400, 600.0)
    ratio = seen("weekly", saturday).rate / seen("diurnal", saturday).rate
    assert np.allclose(ratio, TrafficSpec().weekend_ratio)


def test_bursts_are_as_frequent_and_high_as_in_the_public_traces() -> None:
    times = MONDAY + np.arange(0, 200 * 86400, 60.0)
    over = against_weekly("bursty", times, noise_ratio=0.0)
    begins = np.flatnonzero(np.diff((over > shapes.BURST_LEAST).astype(int)) == 1)
    # ServeGen: 3.0 a day above 1.25 x, 1.2 above 1.5 x and .43 above 2 x; overlapping ones count as one here.
    assert begins.size / 200 == pytest.approx(3.0, rel=0.3)
    higher = [np.flatnonzero(np.diff((over > limit).astype(int)) == 1).size / 200 for limit in (1.5, 2.0)]
    assert higher[0] == pytest.approx(1.2, rel=0.5)
    assert higher[1] == pytest.approx(0.43, rel=0.6)


def test_bursts_can_be_ordered_and_are_mild() -> None:
    times = NOON + np.arange(-600, 2 * 3600.0, 10.0)
    over = against_weekly("bursty", times, event_at=NOON, noise_ratio=shapes.BURST_NOISE_RATIO)
    over *= seen("weekly", times).rate / seen("weekly", times, noise_ratio=shapes.BURST_NOISE_RATIO).rate
    begins = times[np.flatnonzero(np.diff((over > 1.1).astype(int)) == 1)]
    assert np.diff(begins) == pytest.approx(np.full(5, 600.0), abs=10.0)  # within the resolution of the grid
    assert over.max() == pytest.approx(shapes.ORDERED_BURST_FACTOR)
    assert over[times < NOON].max() == pytest.approx(1.0)


def test_a_launch_rises_in_minutes_and_fades_over_hours() -> None:
    more = against_weekly("launch-day", NOON + np.array([-60.0, 1800.0, 6 * 3600.0, 20 * 3600.0]), event_at=NOON)
    assert more[0] == pytest.approx(1.0)
    assert 1.2 < more[1] <= 1.3
    assert 1.05 < more[2] < more[1]
    assert more[3] < 1.05


def test_a_holiday_is_a_sunday_in_the_week() -> None:
    wednesday = MONDAY + 2 * 86400
    quiet = against_weekly("holiday", wednesday + np.array([43200.0, -3600.0, 86400.0 + 3600.0]), event_at=wednesday)
    assert quiet.tolist() == pytest.approx([shapes.HOLIDAY_FACTOR, 1.0, 1.0])


def test_an_outage_is_followed_by_a_rebound() -> None:
    result = against_weekly("outage-rebound", NOON + np.array([-60.0, 600.0, 1230.0, 7200.0]), event_at=NOON)
    assert result[1] < 0.05
    assert result[2] > 1.3
    assert result[[0, 3]].tolist() == pytest.approx([1.0, 1.0], abs=0.01)


def test_waves_shift_lengths_and_tenants_but_not_the_rate() -> None:
    middle = NOON + np.array([1200.0])
    wave = seen("long-prompts", middle, event_at=NOON)
    assert wave.prompt[0] == pytest.approx(shapes.WAVE_FACTOR)
    shifted = seen("mix-shift", NOON + np.array([-1.0, 7200.0, 5 * 3600.0]), event_at=NOON)
    assert shifted.shift.tolist() == pytest.approx([0.0, shapes.SHIFT_RATIO, 0.0])
    usual = seen("weekly", middle).rate
    assert np.array_equal(wave.rate, usual)


def test_a_retry_storm_has_a_short_peak_and_eager_clients_for_longer() -> None:
    storm = seen("retry-storm", NOON + np.array([-10.0, 60.0, 600.0, 1000.0]), event_at=NOON)
    assert storm.retries.tolist() == [0.0, shapes.STORM_RETRIES, shapes.STORM_RETRIES, 0.0]
    peak = against_weekly("retry-storm", NOON + np.array([60.0, 600.0]), event_at=NOON)
    assert peak.tolist() == pytest.approx([shapes.STORM_FACTOR, 1.0])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), week=st.integers(0, 200))
def test_by_default_every_week_has_its_event_in_working_hours(seed: int, week: int) -> None:
    times = MONDAY + week * 7 * 86400 + np.arange(0, 7 * 86400, 300.0)
    lengths = load(TrafficSpec(shape="long-prompts"), times, salt_of(seed, "chat")).prompt
    inside = np.flatnonzero(lengths > 1.0 + 1e-9)
    assert inside.size > 0
    hours = (times[inside] % 86400) / 3600
    assert hours.min() >= 9
    assert hours.max() < 18
    assert ((times[inside] - MONDAY) // 86400 % 7).max() < 5


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("time_utc,requests_per_second\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_a_trace_keeps_hours_and_repeats(tmp_path: Path) -> None:
    rows = [f"2026-11-{16 + day:02}T{hour:02}:00:00Z,{10 * day + hour}" for day in range(2) for hour in range(24)]
    trace = read_trace(write(tmp_path / "two-days.csv", rows))
    assert trace.step_seconds == 3600
    assert trace.at(np.array([MONDAY + 5400.0]))[0] == pytest.approx(1.5)
    assert trace.at(np.array([MONDAY + 86400.0 * 4 + 3600.0]))[0] == 1.0
    spec = TrafficSpec(shape="trace", trace=trace)
    assert load(spec, np.array([MONDAY + 86400.0 + 23 * 3600.0]), SALT).rate[0] == pytest.approx(1.0, abs=0.02)
    assert hash(spec) == hash(replace(spec))


def test_missing_slots_use_the_previous_day_and_on_the_first_day_the_next(tmp_path: Path) -> None:
    nan = np.nan
    assert bridged(np.array([nan, 2.0, 3.0, nan, 5.0, nan]), 2).tolist() == [3.0, 2.0, 3.0, 2.0, 5.0, 2.0]
    trace = read_trace(
        write(tmp_path / "t.csv", ["2026-11-16T00:00:00Z,4", "2026-11-16T12:00:00Z,6", "2026-11-17T00:00:00Z,"])
    )
    assert trace.rates.tolist() == [4.0, 6.0, 4.0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["2026-11-16T00:00:00Z,1", "yesterday,2"], ":3"),
        (["2026-11-16T00:00:00Z,1", "2026-11-16T00:10:00Z,-2"], ":3"),
        (["2026-11-16T00:00:00Z,1"], "fewer than two"),
        (["2026-11-16T00:00:00Z,1", "2026-11-16T00:10:00Z,1", "2026-11-16T01:00:00Z,1"], "regular grid"),
    ],
)
def test_a_bad_trace_is_refused_by_its_line(tmp_path: Path, rows: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_trace(write(tmp_path / "bad.csv", rows))


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="lacks a column"):
        read_trace(path)
    with pytest.raises(UsageError, match="does not exist"):
        read_trace(tmp_path / "none.csv")
