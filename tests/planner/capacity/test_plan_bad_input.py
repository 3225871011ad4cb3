"""A fault of one service affects only its own plan, and is named."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import (
    EngineLoad,
    EntityKind,
    EntityRef,
    LeadTime,
    NoPlanReason,
    NoRecommendation,
    PlanReason,
    Recommendation,
)
from outrider.records.change_log import PhaseTime, StartPhase, Startup
from planner.capacity import derivation
from planner.capacity.lead_time import LeadSettings, lead_time
from planner.capacity.plan import PlanSettings, plan

CHEAP = PlanSettings()


def _steady(level: float, days: float = 5) -> np.ndarray:
    return np.full(round(days * 144), level)


def _plan(build, values, **fleet) -> Recommendation:
    known = {build.service: build.calibration()}
    (result,) = plan(build.history(values), known, [build.fleet(**fleet)], build.now, settings=CHEAP).recommendations
    assert isinstance(result, Recommendation), result
    return result


def _codes(result: Recommendation) -> list[str]:
    return [caution["code"] for caution in result.derivation["cautions"]]


# --- one bad service beside a good one --------------------------------------------------------------


def _two(build, bad_values=None, bad_calibration=None):
    other = replace(build.service, name="other")
    good = _steady(40.0)
    rows = np.stack([good if bad_values is None else bad_values, good])
    history = build.history(good)
    history = replace(
        history,
        entities=(build.service, other),
        values=rows[:, :, None],
        status=np.zeros((2, good.size, 1), dtype=np.uint8),
    )
    calibrations = {build.service: bad_calibration or build.calibration(), other: build.calibration(service=other)}
    fleet = [build.fleet(), build.fleet(service=other, current_replicas=19)]
    first, second = plan(history, calibrations, fleet, build.now, settings=CHEAP).recommendations
    assert isinstance(second, Recommendation)
    assert (second.target_replicas, second.reason) == (19, PlanReason.ENOUGH), "the good service has its plan"
    return first


@pytest.mark.parametrize("value", [-3.0, np.inf, -np.inf])
def test_an_impossible_newest_value_counts_as_missing(build, value):
    values = _steady(40.0)
    values[-1] = value
    result = _two(build, bad_values=values)
    assert isinstance(result, Recommendation)
    assert result.target_replicas == 19
    assert result.derivation["data"]["negative"] == 1
    assert "negative_values" in _codes(result)


def test_nothing_but_negative_values_is_no_history(build):
    assert _two(build, bad_values=_steady(-1.0)).reason is NoPlanReason.NO_HISTORY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("startup_seconds", float("nan")),
        ("startup_seconds", -1.0),
        ("tensor_parallel", 0),
        ("pipeline_parallel", 0),
        ("batch", float("inf")),
        ("tokens_per_request", float("nan")),
    ],
)
def test_an_invalid_calibration_field_is_reported(build, field, value):
    result = _two(build, bad_calibration=build.calibration(**{field: value}))
    assert isinstance(result, NoRecommendation)
    assert result.reason is NoPlanReason.BAD_CALIBRATION
    assert result.arguments["field"] == field


def test_a_load_too_large_to_compute_affects_only_its_service(build):
    assert _two(build, bad_values=_steady(1e300)).reason is NoPlanReason.NO_HISTORY
    result = _two(build, bad_calibration=build.calibration(tokens_per_request=1e308))
    assert isinstance(result, NoRecommendation)
    assert result.reason is NoPlanReason.FAILED
    assert result.arguments["error"]


def test_a_service_listed_twice_and_a_floor_above_the_ceiling_are_refused(build):
    known, history = {build.service: build.calibration()}, build.history(_steady(40.0))
    twice = plan(history, known, [build.fleet(), build.fleet()], build.now, settings=CHEAP)
    assert [item.reason for item in twice.recommendations] == [NoPlanReason.LISTED_TWICE] * 2
    assert len(twice.forecasts) == 1
    (wrong,) = plan(history, known, [build.fleet(floor=9, ceiling=3)], build.now, settings=CHEAP).recommendations
    assert (wrong.reason, dict(wrong.arguments)) == (
        NoPlanReason.LIMITS_CONTRADICT,
        {"floor": "9", "ceiling": "3"},
    )


def test_the_reason_for_a_missing_calibration_is_reported(build):
    facts = ("plan.refused_not_enough_load", {"kv": "12%"})
    (result,) = plan(
        build.history(_steady(4.0)), {}, [build.fleet(no_calibration=facts)], build.now, settings=CHEAP
    ).recommendations
    assert (result.reason, result.detail, dict(result.arguments)) == (NoPlanReason.NO_CALIBRATION, *facts)


# --- limits -----------------------------------------------------------------------------------------


def test_a_ceiling_below_the_running_replicas_is_reported_and_removes_no_needed_replica(build):
    result = _plan(build, _steady(30.0), current_replicas=20, floor=1, ceiling=5)
    assert (result.target_replicas, result.binding, result.reason) == (15, "ceiling", PlanReason.OVER_LIMIT)


@pytest.mark.parametrize(("limits", "binding", "reason"), [
    ({"ceiling": 0, "floor": 0}, "ceiling", PlanReason.AT_CEILING),
    ({"quota_gpus": 0}, "quota", PlanReason.AT_QUOTA),
])  # fmt: skip
def test_a_zero_limit_starts_nothing_and_is_reported(build, limits, binding, reason):
    result = _plan(build, _steady(30.0), current_replicas=0, **limits)
    assert (result.target_replicas, result.binding, result.reason) == (0, binding, reason)


def test_a_quota_of_gpus_counts_whole_replicas(build):
    result = _plan(build, _steady(40.0), current_replicas=10, quota_gpus=50)
    assert (result.target_replicas, result.gpus, result.reason) == (12, 48, PlanReason.AT_QUOTA)


def test_no_more_replicas_are_ordered_than_the_fleet_has_gpus_for(build):
    result = _plan(build, _steady(40.0), current_replicas=10, placeable_replicas=12)
    assert (result.target_replicas, result.binding, result.reason) == (12, "free_gpus", PlanReason.NO_GPU_FREE)
    assert (result.most_replicas, result.derivation["most"]) == (12, {"replicas": 12, "limit": "free_gpus"})
    (caution,) = [one for one in result.derivation["cautions"] if one["code"] == "no_gpu_placeable"]
    assert caution["arguments"] == {"n": "12", "needed": str(result.derivation["need_now"])}
    assert any("the fleet has GPUs for 12" in line for line in derivation.lines(result))
    ordered = _plan(build, _steady(40.0), current_replicas=14, placeable_replicas=12)
    assert ordered.target_replicas == 14, "an order that waits for a place is not taken back"


def test_without_new_nodes_the_lead_time_has_none():
    fixed = LeadSettings(node_provision=None)
    result = lead_time(STARTS, configured_seconds=300.0, gpus_free=0, gpus_needed=4, settings=fixed)
    assert result.seconds == lead_time(STARTS, configured_seconds=300.0).seconds


def test_a_hundredfold_sample_is_doubted_until_the_next_one_confirms_it(build):
    values = _steady(20.0)
    values[-1] = 2000.0
    first = _plan(build, values, current_replicas=12, ceiling=2000)
    assert first.target_replicas <= 24
    assert "spike_doubted" in _codes(first)
    values[-2:] = 2000.0
    second = _plan(build, values, current_replicas=12, ceiling=2000)
    assert "spike_doubted" not in _codes(second)
    assert (second.target_replicas, second.reason) == (24, PlanReason.STEP_LIMIT)


def test_engines_that_are_full_confirm_a_spike(build):
    values = _steady(20.0)
    values[-1] = 2000.0
    full = EngineLoad(running=400.0, waiting=20_000.0)
    result = _plan(build, values, current_replicas=12, ceiling=2000, engines=full)
    assert "spike_doubted" not in _codes(result)
    assert result.reason is PlanReason.STEP_LIMIT


def test_an_hour_has_a_limit_too(build):
    recent = ((build.now - timedelta(minutes=50), 4), (build.now - timedelta(minutes=20), 14))
    values = _steady(20.0)
    values[-3:] = 200.0
    result = _plan(build, values, current_replicas=16, ceiling=500, recent=recent)
    assert (result.target_replicas, result.binding) == (20, "step")


def test_no_scale_in_within_half_an_hour_of_a_scale_out(build):
    recent = ((build.now - timedelta(minutes=20), 10), (build.now - timedelta(minutes=10), 19))
    held = _plan(build, _steady(10.0), current_replicas=19, recent=recent)
    assert (held.target_replicas, held.reason) == (19, PlanReason.SCALE_IN_COOLING)
    later = tuple((at - timedelta(minutes=40), count) for at, count in recent)
    assert _plan(build, _steady(10.0), current_replicas=19, recent=later).target_replicas < 19


# --- running replicas, and the time of a start -----------------------------------------------------


def test_replicas_that_do_not_serve_are_not_capacity(build):
    result = _plan(build, _steady(40.0), current_replicas=19, ready_replicas=12)
    assert (result.target_replicas, result.reason) == (19, PlanReason.NOT_READY_YET)
    assert result.need_at == build.now
    assert result.derivation["capacity_ready"] < result.derivation["capacity_now"]
    fewer = _plan(build, _steady(10.0), current_replicas=19, ready_replicas=3)
    assert (fewer.target_replicas, fewer.binding) == (19, "ready")


def test_a_queue_needs_replicas_that_the_rate_does_not(build):
    full = EngineLoad(running=320.0, waiting=160.0)
    result = _plan(build, _steady(20.0), current_replicas=10, engines=full)
    # 10 full replicas, and one more for a minute's share of the queue, with the buffer
    assert result.derivation["need_by_engines"] == 14
    assert (result.target_replicas, result.reason) == (14, PlanReason.LOAD_NOW)


def test_a_full_kv_cache_keeps_its_replicas(build):
    result = _plan(build, _steady(4.0), current_replicas=8, engines=EngineLoad(running=10.0, kv_replicas=6.5))
    assert (result.target_replicas, result.binding) == (8, "survivors")
    assert result.derivation["survivors"]["kv_raw"] == pytest.approx(6.5 / 0.9)


def test_a_start_longer_than_the_forecast_has_a_warning(build):
    result = _plan(build, _steady(40.0), lead=LeadTime(26 * 3600.0, "measured", 9))
    assert "lead_beyond_horizon" in _codes(result)
    assert result.lead_time == timedelta(hours=26)


AT = datetime(2026, 5, 20, tzinfo=UTC)


def _start(number: int, *phases: tuple[StartPhase, float], node: float = 0.0) -> Startup:
    facts = ([(StartPhase.NODE_PROVISION, node)] if node else []) + list(phases)
    parts = tuple(PhaseTime(phase, seconds, "event") for phase, seconds in facts)
    pod = EntityRef("c", EntityKind.POD, "prod", f"p{number}")
    total = timedelta(seconds=sum(seconds for _, seconds in facts))
    return Startup(f"s{number}", pod, AT, phases=parts, ready_at=AT + total)


STARTS = [
    _start(n, (StartPhase.PULL, 30.0), (StartPhase.WEIGHT_LOAD, 100.0 + n), node=400.0 if n == 3 else 0.0)
    for n in range(20)
]


def test_the_lead_time_is_that_of_a_real_start_at_the_95th_percentile():
    result = lead_time(STARTS, configured_seconds=300.0)
    assert (result.source, result.starts) == ("measured", 20)
    assert result.seconds == pytest.approx(148.0 * 1.1)
    assert [(part.name, part.seconds) for part in result.parts[:2]] == [("pull", 30.0), ("weight_load", 118.0)]
    assert sum(part.seconds for part in result.parts) == pytest.approx(result.seconds)


def test_a_new_node_counts_only_while_no_gpu_is_free():
    free = lead_time(STARTS, configured_seconds=300.0, gpus_free=4, gpus_needed=4)
    none = lead_time(STARTS, configured_seconds=300.0, gpus_free=3, gpus_needed=4)
    assert none.seconds - free.seconds == pytest.approx(400.0)
    assert (none.parts[0].name, none.parts[0].source) == ("node_provision", "measured")
    never_seen = lead_time(
        [], configured_seconds=300.0, gpus_free=0, settings=LeadSettings(node_provision=timedelta(minutes=7))
    )
    assert (never_seen.source, never_seen.seconds) == ("configured", 720.0)
    assert never_seen.parts[0].source == "prior"


def test_few_starts_count_only_if_slower_than_configured():
    assert lead_time(STARTS[:2], configured_seconds=300.0).source == "configured"
    assert lead_time(STARTS[:2], configured_seconds=60.0).source == "measured"
    assert lead_time(STARTS[3:4], configured_seconds=300.0).seconds == 300.0, "its wait for a node is taken out"


def test_unexplained_time_of_a_start_is_merged_into_one_part():
    started = _start(0, (StartPhase.OTHER, 100.0), (StartPhase.PULL, 20.0), (StartPhase.PULL, 10.0))
    started = replace(started, ready_at=AT + timedelta(seconds=600))
    parts = lead_time([started] * 6, configured_seconds=60.0).parts
    assert [part.name for part in parts] == ["pull", "other", "margin"]
    assert [round(part.seconds) for part in parts] == [30, 570, 60]


# --- the history ------------------------------------------------------------------------------------


def test_times_in_any_order_give_the_same_plan(build):
    values = build.wave(6.0)
    known, fleet = {build.service: build.calibration()}, [build.fleet(current_replicas=24)]
    history = build.history(values)
    order = np.random.default_rng(1).permutation(values.size)
    mixed = replace(
        history, times=history.times[order], values=history.values[:, order], status=history.status[:, order]
    )
    first = plan(history, known, fleet, build.now, settings=CHEAP).recommendations[0]
    other = plan(mixed, known, fleet, build.now, settings=CHEAP).recommendations[0]
    assert (first.target_replicas, first.derivation["load_now"], first.need_at) == (
        other.target_replicas,
        other.derivation["load_now"],
        other.need_at,
    )


def test_missing_slots_are_counted_and_a_new_service_has_low_confidence(build):
    values = _steady(40.0)
    values[100:110] = np.nan
    result = _plan(build, values)
    assert result.derivation["data"] == {
        "slots": 720, "missing": 10, "held": 0, "negative": 0, "days": 5.0, "confidence": "usual",
    }  # fmt: skip
    assert "data_missing" in _codes(result)
    young = _plan(build, _steady(40.0, days=0.5))
    assert young.derivation["data"]["confidence"] == "low"
    assert "new_service" in _codes(young)


# --- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_line_is_in_the_selected_language_and_complete(build, language):
    full = EngineLoad(running=320.0, waiting=160.0)
    result = _plan(
        build, build.wave(6.0), current_replicas=24, ready_replicas=20, engines=full, quota_gpus=80,
        lead=lead_time(STARTS, configured_seconds=300.0, gpus_free=0, gpus_needed=4),
    )  # fmt: skip
    lines = derivation.lines(result, language)
    assert not [line for line in lines if "{" in line or line.startswith("plan.")]
    assert len(lines) >= 11
    chinese = [line for line in lines if any("\u4e00" <= sign <= "\u9fff" for sign in line)]
    assert len(chinese) == (len(lines) if language == "zh" else 0)


def test_the_impact_of_no_action_is_counted(build):
    values = build.wave(6.0, level=40.0, noise=0.0)
    few, enough = _plan(build, values, current_replicas=22), _plan(build, values, current_replicas=60, ceiling=100)
    assert few.derivation["without"]["waited"] > 1000
    assert few.derivation["without"]["first_at"] is not None
    assert enough.derivation["without"]["waited"] == 0
