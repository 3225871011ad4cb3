from __future__ import annotations

import json
from datetime import timedelta

import numpy as np
import pytest

from outrider.clock import from_unix, rfc3339
from outrider.errors import UsageError
from planner.replay.backtest import Trace, backtest, parse_trace

CHEAP = ("ensemble",)


def _text(times, values):
    lines = [f"{rfc3339(from_unix(t))},{'' if np.isnan(v) else f'{v:.4f}'}" for t, v in zip(times, values, strict=True)]
    return "\n".join(["time_utc,requests_per_second", *lines])


def test_a_trace_is_read_with_its_missing_slots(build):
    values = build.wave(5.0)
    values[7] = np.nan
    trace = parse_trace(_text(build.times(5.0), values), "wave")
    assert trace.step == timedelta(minutes=10)
    np.testing.assert_allclose(trace.values, values, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2", "columns time_utc and requests_per_second are missing"),
        ("", "is empty"),
        ("time_utc,requests_per_second\nyesterday,1", "t.csv:2"),
        ("time_utc,requests_per_second\n2026-05-01T00:00:00Z,1\n2026-05-01T00:10:00Z,many", "t.csv:3"),
        ("time_utc,requests_per_second\n2026-05-01T00:10:00Z,1\n2026-05-01T00:00:00Z,1", "must rise"),
        (
            "time_utc,requests_per_second\n\n\n2026-05-01T00:10:00Z,1\n\n2026-05-01T00:00:00Z,1",
            "t.csv:6: timestamps must",
        ),
        (f"{'x' * 200_000},requests_per_second\n2026-05-01T00:00:00Z,1", "t.csv:1: field larger than"),
        ("time_utc,requests_per_second\n2026-05-01T00:10:00Z,1", "has only one slot"),
        ("time_utc,requests_per_second\n2026-05-01T00:10:00,1\n2026-05-01T00:20:00,1", "time zone"),
    ],
)
def test_unreadable_input_is_reported_with_its_line(text, message):
    with pytest.raises(UsageError, match=message):
        parse_trace(text, "t.csv")


def test_every_horizon_is_scored_against_the_references(build):
    trace = Trace("wave", build.times(6.0), build.wave(6.0), timedelta(minutes=10))
    ticks = iter(range(1000))
    result = backtest([trace], models=CHEAP, timer=lambda: float(next(ticks)))
    assert [row.horizon for row in result.series] == [1800.0, 7200.0, 86400.0]
    for row in result.series:
        assert row.wape < row.wape_last_value
        assert row.wape < row.wape_seasonal_naive
        assert row.wape_prophet is None
        assert 0.6 <= row.coverage90 <= 1.0
        assert row.over_provision > -0.2
        assert 0 < row.pinball < row.wape
        assert 0 < row.peak_error < 1
    assert result.seconds_per_refit == pytest.approx(1 / 24)
    json.dumps(result.as_dict(), allow_nan=False)


def test_prophet_is_scored_on_its_own_when_it_competes(build):
    trace = Trace("wave", build.times(5.0), build.wave(5.0), timedelta(minutes=10))
    result = backtest([trace], horizons=[timedelta(hours=2)], origin_every=timedelta(hours=24))
    assert result.series[0].wape_prophet < 0.2
    assert result.seconds_per_refit is None


def test_missing_slots_are_not_scored(build):
    values = build.wave(6.0, noise=0.0)
    holed = values.copy()
    holed[-200:-100] = np.nan
    trace = Trace("holed", build.times(6.0), holed, timedelta(minutes=10))
    row = backtest([trace], models=("seasonal-naive",), horizons=[timedelta(minutes=30)]).series[0]
    assert row.wape_seasonal_naive == pytest.approx(0.0, abs=1e-9)


def test_only_history_is_read(build):
    values = build.wave(6.0)
    spoiled = values.copy()
    spoiled[-1] *= 50
    facts = {"models": CHEAP, "horizons": [timedelta(minutes=30)], "origin_every": timedelta(hours=4)}
    one, other = (
        backtest([Trace("t", build.times(6.0), each, timedelta(minutes=10))], **facts) for each in (values, spoiled)
    )
    assert one.series[0].models == other.series[0].models
    assert one.series[0].wape == pytest.approx(other.series[0].wape)


def test_a_trace_too_short_to_score_is_refused(build):
    with pytest.raises(UsageError, match="not enough"):
        backtest([Trace("short", build.times(3.0), build.wave(3.0), timedelta(minutes=10))])


def test_a_trace_without_a_value_is_refused(build):
    with pytest.raises(UsageError, match=r"not enough|without any value"):
        backtest([Trace("blank", build.times(6.0), np.full(6 * 144, np.nan), timedelta(minutes=10))])
