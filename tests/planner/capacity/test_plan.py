from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model import (
    BacktestScore,
    CellStatus,
    Forecast,
    NoPlanReason,
    NoRecommendation,
    Plan,
    PlanReason,
    Recommendation,
    SignalKey,
)
from planner.capacity import derivation, prescale
from planner.capacity.lead_bound import DEFAULT_RULE, Basis, BoundRule
from planner.capacity.plan import PlanSettings, plan, weekly_growth
from planner.performance.headroom import capacity_per_second

CHEAP = PlanSettings()


def _plan(build, values, *, calibration=True, status=None, **fleet) -> Recommendation | NoRecommendation:
    known = {build.service: build.calibration()} if calibration is True else calibration or {}
    result = plan(build.history(values, status), known, [build.fleet(**fleet)], build.now, settings=CHEAP)
    return result.recommendations[0]


def _steady(build, level, days=5):
    return np.full(days * 144, level)


def test_a_constant_load_needs_the_result_of_the_formula(build):
    result = _plan(build, _steady(build, 40.0), current_replicas=19)
    assert (result.target_replicas, result.gpus, result.reason) == (19, 76, PlanReason.ENOUGH)
    assert result.cost_per_hour == 76 * 2.5
    assert result.derivation["units_raw"] == pytest.approx(18.75)
    assert result.need_at is None


def test_load_above_capacity_is_needed_now(build):
    result = _plan(build, _steady(build, 40.0), current_replicas=10)
    assert (result.target_replicas, result.reason, result.binding) == (19, PlanReason.LOAD_NOW, "load")
    assert result.need_at == build.now
    assert result.needed_by == build.now - timedelta(minutes=5)


def test_replicas_start_before_a_forecast_rise(build):
    # 09:00 on the rising flank: 23 replicas are needed now, and more within the 90 minutes of start-up.
    values = build.wave(6.0, level=40.0, noise=0.0)
    calibration = {build.service: build.calibration(startup_seconds=5400.0)}
    before = _plan(build, values, calibration=calibration, current_replicas=24)
    assert before.reason is PlanReason.FORECAST_PEAK
    assert before.binding == "forecast"
    assert before.target_replicas > 24
    assert build.now < before.need_at < build.now + timedelta(minutes=100)
    assert before.needed_by == before.need_at - timedelta(minutes=90)
    assert before.derivation["next_24h"]["replicas"] >= before.target_replicas


def test_the_next_day_keeps_the_limits_and_names_the_binding_one(build):
    values = build.wave(6.0, level=40.0, noise=0.0)
    free = _plan(build, values, current_replicas=24, ceiling=400).derivation["next_24h"]
    assert free["limited_by"] is None
    assert free["replicas"] == free["needed"] > 20
    for limits, name, count in (({"ceiling": 20}, "ceiling", 20), ({"quota_gpus": 43, "ceiling": 400}, "quota", 10),
                                ({"floor": 300, "ceiling": 400}, "floor", 300)):  # fmt: skip
        limited = _plan(build, values, current_replicas=24, **limits)
        day = limited.derivation["next_24h"]
        assert (day["limited_by"], day["replicas"], day["gpus"]) == (name, count, 4 * count)
        assert day["needed"] == free["needed"]
        for language in ("en", "zh"):
            lines = [
                line for line in derivation.lines(limited, language) if str(free["needed"]) in line and "24" in line
            ]
            assert any(str(count) in line for line in lines)


def test_the_next_day_includes_the_bound_from_past_forecast_errors(build):
    result = _plan(build, build.wave(6.0, level=40.0), current_replicas=24, ceiling=400)
    assert result.derivation["next_24h"]["replicas"] >= result.derivation["need_by_bound"]


def test_the_ceiling_binds_and_is_reported(build):
    result = _plan(build, _steady(build, 40.0), current_replicas=10, ceiling=12)
    assert (result.target_replicas, result.reason, result.binding) == (12, PlanReason.AT_CEILING, "ceiling")


def test_no_traffic_scales_in_to_the_floor(build):
    result = _plan(build, _steady(build, 0.0), current_replicas=10, floor=2)
    assert (result.target_replicas, result.reason, result.binding) == (2, PlanReason.AT_FLOOR, "floor")


@pytest.mark.parametrize("lost", ["missing", "held"])
def test_lost_values_never_scale_in(build, lost):
    values, status = _steady(build, 10.0), None
    if lost == "missing":
        values[-6:] = np.nan
    else:
        status = np.full(values.size, CellStatus.PRESENT)
        status[-6:] = CellStatus.STALE
    result = _plan(build, values, status=status, current_replicas=19)
    assert (result.target_replicas, result.reason) == (19, PlanReason.SCALE_IN_HELD_NO_VALUES)
    assert result.derivation["load_trusted"] is False


def test_lost_values_still_scale_out_on_the_forecast(build):
    values = build.wave(6.0, level=40.0, noise=0.0)
    values[-6:] = np.nan
    result = _plan(build, values, current_replicas=15)
    assert result.reason is PlanReason.FORECAST_PEAK
    assert result.target_replicas > 15


def test_survivors_without_room_stay(build):
    # load of 18.75 replicas on 20: without one of them, 19 would run above 95 % of the planned load
    result = _plan(build, _steady(build, 40.0), current_replicas=20)
    assert (result.target_replicas, result.reason, result.binding) == (20, PlanReason.SURVIVORS_TOO_BUSY, "survivors")


def test_requests_in_flight_and_queued_keep_their_replicas(build):
    values = _steady(build, 4.0)
    history = build.history(values)
    from dataclasses import replace

    more = np.full((1, values.size, 2), [320.0, 70.0])
    history = replace(
        history,
        keys=(*history.keys, SignalKey("svc_inflight_requests"), SignalKey("svc_queue_requests")),
        values=np.concatenate([history.values, more], axis=2),
        status=np.zeros((1, values.size, 3), dtype=np.uint8),
    )
    calibrations = {build.service: build.calibration()}
    result = plan(history, calibrations, [build.fleet(current_replicas=12)], build.now, settings=CHEAP)
    assert result.recommendations[0].reason is PlanReason.SURVIVORS_TOO_BUSY


def test_a_missing_recommendation_has_a_reason(build):
    values = _steady(build, 10.0)
    assert _plan(build, np.full(500, np.nan)).reason is NoPlanReason.NO_HISTORY
    assert _plan(build, values, calibration=None).reason is NoPlanReason.NO_CALIBRATION
    assert _plan(build, values, calibration=None, current_replicas=0).reason is NoPlanReason.NO_REPLICAS
    broken = {build.service: build.calibration(batch=0.0)}
    assert _plan(build, values, calibration=broken).reason is NoPlanReason.BAD_CALIBRATION
    old = values.copy()
    old[-150:] = np.nan
    assert _plan(build, old).reason is NoPlanReason.NO_VALUES


def test_a_service_without_history_does_not_stop_the_others(build):
    from dataclasses import replace

    stranger = replace(build.service, name="unseen")
    fleet = [build.fleet(service=stranger), build.fleet(current_replicas=19)]
    calibrations = {build.service: build.calibration()}
    result = plan(build.history(_steady(build, 40.0)), calibrations, fleet, build.now, settings=CHEAP)
    assert isinstance(result, Plan)
    assert [each.reason for each in result.recommendations] == [NoPlanReason.NO_HISTORY, PlanReason.ENOUGH]
    assert len(result.forecasts) == 1


def test_an_empty_history_gives_a_result(build):
    from dataclasses import replace

    history = build.history(np.empty(0))
    history = replace(history, entities=(), values=np.empty((0, 0, 1)), status=np.empty((0, 0, 1), dtype=np.uint8))
    result = plan(history, {}, [build.fleet()], build.now)
    assert result.recommendations[0].reason is NoPlanReason.NO_HISTORY


def test_the_derivation_is_plain_json(build):
    result = _plan(build, build.wave(15.0), current_replicas=19)
    document = json.loads(json.dumps(dict(result.derivation), allow_nan=False))
    assert document["forecast"]["model"] == "ensemble"
    assert document["calibration"]["origin"] == "measured"
    assert document["lines"]
    assert document["weekly_growth_ratio"] == pytest.approx(0.0, abs=0.02)


def test_with_prophet_in_the_competition(build):
    result = plan(build.history(build.wave(8.0)), {build.service: build.calibration()}, [build.fleet()], build.now)
    assert isinstance(result.recommendations[0], Recommendation)
    assert result.forecasts[0].score.coverage90 is not None


def test_weekly_growth_compares_two_weeks(build):
    values = np.concatenate([build.wave(15.0)[: 8 * 144], build.wave(15.0)[8 * 144 :] * 1.2])
    times = build.times(15.0)
    assert weekly_growth(times, values, build.now) == pytest.approx(0.2, abs=0.02)
    assert weekly_growth(times[300:], values[300:], build.now) is None
    assert weekly_growth(times, np.zeros(times.size), build.now) is None
    sparse = values.copy()
    sparse[::2] = np.nan
    sparse[1::4] = np.nan
    assert weekly_growth(times, sparse, build.now) is None
    assert weekly_growth(np.empty(0), np.empty(0), build.now) is None


@pytest.mark.parametrize(
    ("needs", "binding"),
    [((8, 9, 9), "forecast"), ((9, 8, 9), "load"), ((9, 9, 9), "load"), ((4, 5, 3), "forecast"), ((5, 4, 3), "load")],
)
def test_the_larger_need_binds_an_unchanged_or_smaller_count(needs, binding):
    now, coming, stay = needs
    for current in (max(now, coming), max(now, coming) + 2):
        result = prescale.target(
            current=current, floor=1, ceiling=40, need_now=now, need_forecast=coming, need_survivors=stay
        )
        assert (result.replicas, result.binding, result.reason) == (max(now, coming), binding, PlanReason.ENOUGH)


def test_explain_names_the_bound_if_it_exceeds_the_forecast(build):
    result = _plan(build, _steady(build, 40.0), current_replicas=19)
    facts = {**result.derivation, "need_by_formula": 17, "need_by_bound": 19}
    changed = replace(result, binding="forecast", derivation=facts)
    assert any(
        "decided by the upper bound from past forecast errors: 19 replicas" in line
        for line in derivation.lines(changed)
    )
    changed = replace(changed, derivation={**facts, "need_by_formula": 19})
    assert any("decided by the forecast peak: 19 replicas" in line for line in derivation.lines(changed))


def test_times_of_a_plan_are_whole_seconds(build):
    odd = build.now + timedelta(seconds=3, microseconds=123456)
    known = {build.service: build.calibration(startup_seconds=61.3)}
    history = build.history(_steady(build, 40.0))
    (result,) = plan(history, known, [build.fleet(current_replicas=10)], odd, settings=CHEAP).recommendations
    assert result.need_at == build.now + timedelta(seconds=3)
    assert result.needed_by == build.now - timedelta(seconds=59)


def test_if_a_limit_allows_no_start_there_is_no_start_time(build):
    for limit in ({"ceiling": 10}, {"quota_gpus": 40}, {"quota_gpus": 0}, {"placeable_replicas": 10}):
        result = _plan(build, _steady(build, 40.0), current_replicas=10, floor=0, **limit)
        assert result.need_at == build.now
        assert result.needed_by is None
    result = _plan(build, _steady(build, 40.0), current_replicas=10, ceiling=11)
    assert result.needed_by is not None


def test_an_overload_is_reported(build):
    result = _plan(build, _steady(build, 40.0), current_replicas=2)
    for language, text in (("en", "the 2 replicas run at"), ("zh", "当前 2 个副本承担计划负载的")):
        lines = [line for line in derivation.lines(result, language) if text in line]
        assert len(lines) == 1
        assert "%" not in lines[0]


_replicas = st.integers(0, 50)


@given(_replicas, _replicas, _replicas, st.none() | _replicas, _replicas, _replicas)
def test_a_target_keeps_every_rule(current, floor, ceiling, need_now, need_forecast, need_survivors):
    floor, ceiling = min(floor, ceiling), max(floor, ceiling)
    result = prescale.target(
        current=current,
        floor=floor,
        ceiling=ceiling,
        need_now=need_now,
        need_forecast=need_forecast,
        need_survivors=need_survivors,
    )
    if result.replicas > current:
        assert floor <= result.replicas <= ceiling
        assert result.replicas <= max(need_now or 0, need_forecast, floor)
    if result.replicas < current:
        assert need_now is not None
        assert result.replicas >= max(need_survivors, min(need_now, ceiling), min(need_forecast, ceiling), floor)
    if result.reason is PlanReason.SCALE_IN_HELD_NO_VALUES:
        assert need_now is None
        assert result.replicas == current


@given(st.floats(1.0, 500.0), st.integers(0, 2**16))
def test_constant_load_never_flaps(build, level, seed):
    generator = np.random.default_rng(seed)
    calibration = build.calibration()

    def need(load: float, room: float = 1.0) -> int:
        return int(np.ceil(load / capacity_per_second(calibration, 1, 0.25) * room))

    current, changes = need(level), []
    for _ in range(40):
        loads = level * (1 + 0.01 * np.clip(generator.standard_normal(3), -2, 2))
        result = prescale.target(
            current=current,
            floor=0,
            ceiling=10_000,
            need_now=need(loads[-1]),
            need_forecast=need(level),
            need_survivors=need(loads.max(), 1 + prescale.HYSTERESIS),
        )
        if result.replicas != current:
            changes.append(np.sign(result.replicas - current))
            current = result.replicas
    assert len(set(changes)) <= 1


def test_the_first_need_is_the_first_instant_above(build):
    times = build.now.timestamp() + 600.0 * np.arange(4)
    text = Forecast(
        "s",
        build.service,
        build.now,
        build.step,
        times,
        {0.95: np.array([1.0, 2.0, 5.0, 3.0])},
        "last-value",
        BacktestScore(None, None, None, 0),
    )
    assert prescale.first_need(text, 2.0) == build.now + timedelta(minutes=20)
    assert prescale.first_need(text, 5.0) is None
    assert prescale.peak(text, build.now + timedelta(minutes=10)).value == 2.0
    assert prescale.peak(text, build.now - timedelta(minutes=10)).value == 1.0


def test_a_measured_error_is_the_buffer_and_is_reported(build):
    hour = 2 * np.pi * np.arange(8 * 144) / 144.0
    noise = np.random.default_rng(4).normal(0.0, 0.05, hour.size)
    load = (30.0 + 10.0 * np.sin(hour)) * np.exp(noise)
    (result,) = plan(
        build.history(load), {build.service: build.calibration()}, [build.fleet(current_replicas=40)], build.now,
        settings=PlanSettings(rules={build.service: BoundRule(Basis.GROWTH, 2.0)}),
    ).recommendations  # fmt: skip
    facts = result.derivation
    assert facts["buffer"]["source"] == "measured"
    assert 0.05 <= facts["buffer"]["value"] <= 0.3
    assert facts["inputs"]["buffer"]["value"] == facts["buffer"]["value"]
    assert facts["peak"]["quantile"] == 0.5
    assert facts["peak"]["value"] < facts["peak"]["p95"]
    assert (facts["bound"]["margin"], facts["bound"]["basis"]) == (2.0, "growth")
    assert facts["need_forecast"] == max(facts["need_by_formula"], facts["need_by_bound"])
    (plain,) = plan(
        build.history(load), {build.service: build.calibration()}, [build.fleet(current_replicas=40)], build.now
    ).recommendations
    assert plain.derivation["bound"]["margin"] == DEFAULT_RULE.headroom
    assert plain.derivation["bound"]["out"] < facts["bound"]["out"]
    text = "\n".join(derivation.lines(result))
    assert ": measured; 1 in 20" in text or "limited to 0.05" in text
