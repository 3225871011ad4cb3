"""Planner inputs of a fleet; a bad service or a failing planner does not stop the cycle."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import (
    Calibration,
    CellStatus,
    EntityKind,
    EntityRef,
    NoPlanReason,
    NoRecommendation,
    Recommendation,
    SampleBatch,
    SignalKey,
)
from outrider.records.change_log import PhaseTime, StartPhase, Startup
from outrider.topology import Topology
from planner.capacity import derivation
from planner.capacity.present import PresentLoad
from service.config.service_settings import ServiceSettings
from service.config.settings import PlannerSettings
from service.planning import hindsight, planning
from service.planning.planning import Planning
from service.planning.replan import ServiceNow, Situation
from store import factory, memory, migrate
from tests.support import waiting

NOW = datetime(2026, 11, 18, 17, tzinfo=UTC)
GOOD, BAD, BARE = (EntityRef("c", EntityKind.SERVICE, "prod", name) for name in ("good", "bad", "bare"))
REPLICA = EntityRef("c", EntityKind.REPLICA, "prod", "good-0")
POD, NODE = EntityRef("c", EntityKind.POD, "prod", "good-0"), EntityRef("c", EntityKind.NODE, None, "n1")
GPUS = tuple(EntityRef("c", EntityKind.GPU, None, f"g{number}") for number in range(4))
TOPOLOGY = Topology.build(
    [(REPLICA, GOOD), (POD, REPLICA), (GPUS[0], POD), *((NODE, gpu) for gpu in GPUS)],
    [GOOD, BAD, BARE],
    {gpu: {"gpu_type": "H100"} for gpu in GPUS},
)
LOAD = SignalKey("svc_requests_per_second")
SETTINGS = [
    ServiceSettings(
        name=name, gpu_type="H100", tensor_parallel=2, tokens_per_request=300, batch=32,
        tokens_per_second_per_sequence=25, floor=1, ceiling=60, startup=timedelta(minutes=5),
    )
    for name in ("good", "bad")
]  # fmt: skip


@pytest.fixture
def metrics():
    """Three days of a daily wave; the bad service's newest value is negative."""
    store = memory.MemoryMetricStore()
    slots = 3 * 144
    for slot in range(slots):
        at = NOW - timedelta(minutes=10) * (slots - slot)
        wave = 20.0 * (1.0 + 0.8 * np.sin((at.hour + at.minute / 60 - 8) / 24 * 2 * np.pi))
        values = np.array([[wave], [wave if slot < slots - 1 else -5.0], [wave]])
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        store.write(at, [SampleBatch("t", at, EntityKind.SERVICE, (LOAD,), (GOOD, BAD, BARE), values, status, 15.0)])
    return store


@pytest.fixture
def change_log(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    migrate.upgrade(url)
    opened = factory.open_change_log(factory.urls_of(url)[0])
    yield opened
    opened.close()


def _planning(metrics, change_log=None, **more):
    return Planning(metrics, PlannerSettings(), SETTINGS, lambda *_: (6, 6), change_log=change_log, **more)


def test_a_negative_value_of_one_service_does_not_stop_any_plan(metrics):
    plan = _planning(metrics).plan_if_due(NOW, TOPOLOGY)
    results = {item.service.name: item for item in plan.recommendations}
    assert isinstance(results["good"], Recommendation)
    assert isinstance(results["bad"], Recommendation)
    assert results["bad"].derivation["data"]["negative"] == 1
    bare = results["bare"]
    assert isinstance(bare, NoRecommendation)
    assert (bare.reason, bare.detail) == (NoPlanReason.NO_CALIBRATION, "plan.refused_no_values")


def test_a_clock_that_jumps_ahead_and_back_does_not_end_planning(metrics):
    making = _planning(metrics, with_hindsight=False)
    assert making.plan_if_due(NOW + timedelta(days=1), TOPOLOGY) is not None
    assert making.plan_if_due(NOW, TOPOLOGY) is not None
    assert making.plan_if_due(NOW + timedelta(minutes=1), TOPOLOGY) is None


def test_a_failing_planner_keeps_the_last_plan(metrics, monkeypatch):
    making = _planning(metrics)
    first = making.plan_if_due(NOW, TOPOLOGY)

    def broken(*_args, **_kwargs):
        raise ValueError("broken")

    monkeypatch.setattr(planning, "make_plan", broken)
    assert making.plan_if_due(NOW + timedelta(minutes=10), TOPOLOGY) is None
    assert making.latest is first, "the last plan stays"


def _starts(count, node=0.0):
    for number in range(count):
        began = NOW - timedelta(hours=number + 1)
        phases = (PhaseTime(StartPhase.PULL, 40.0, "event"), PhaseTime(StartPhase.WEIGHT_LOAD, 80.0, "log"))
        if node:
            phases = (PhaseTime(StartPhase.NODE_PROVISION, node, "event"), *phases)
        ready = began + timedelta(seconds=120 + node)
        yield Startup(f"s{number}", POD, began, service="good", phases=phases, ready_at=ready)


def test_the_lead_time_is_measured_on_the_start_ups_of_the_change_log(metrics, change_log):
    change_log.save_startups(list(_starts(8)))
    plan = _planning(metrics, change_log, with_hindsight=False).plan_if_due(NOW, TOPOLOGY)
    results = {item.service.name: item for item in plan.recommendations}
    lead = results["good"].derivation["lead"]
    assert (lead["source"], lead["starts"], lead["gpus_free"]) == ("measured", 8, 3)
    assert [part["name"] for part in lead["parts"]] == ["pull", "weight_load", "margin"]
    assert results["good"].lead_time == timedelta(seconds=132)
    assert results["bad"].derivation["lead"]["source"] == "configured"
    earlier = _planning(metrics, change_log, with_hindsight=False).plan_if_due(NOW - timedelta(hours=6), TOPOLOGY)
    then = {item.service.name: item for item in earlier.recommendations}["good"].derivation["lead"]
    assert (then["source"], then["starts"]) == ("configured", 2), "later starts are not known"


@pytest.mark.slow
def test_hindsight_is_stored(metrics, change_log):
    _planning(metrics, change_log).plan_if_due(NOW, TOPOLOGY)
    at, document = change_log.document(hindsight.DOCUMENT)
    assert at == NOW
    (good, _) = sorted(document["services"], key=lambda entry: entry["service"] != "good")
    assert good["first_start_at"] < good["peak_at"]
    assert good["without_starts"]["waited"] > 10_000 > good["with_plan"]["waited"]
    for language in ("en", "zh"):
        text = hindsight.sentence(good, language)
        assert f"{good['without_starts']['waited']:,}" in text
        assert "{" not in text
    assert not hindsight.is_due(change_log, NOW + timedelta(hours=1))
    assert hindsight.is_due(change_log, NOW + timedelta(hours=7))


def load_test(**changes):
    calibration = Calibration(
        GOOD, "H100", 300.0, 16.0, 25.0, 2, 1, 480.0, 900, "measured", "prior", "", "",
        NOW - timedelta(days=3), {}, "load_test", NOW + timedelta(days=3),
    )  # fmt: skip
    return replace(calibration, **changes)


def recommended(metrics, *tests):
    plan = _planning(metrics, tests=lambda: tests).plan_if_due(NOW, TOPOLOGY)
    return next(item for item in plan.recommendations if item.service == GOOD)


def test_a_load_test_is_used_and_reported_if_the_engines_show_too_little(metrics):
    imported = load_test(source="vllm", measured_at=NOW - timedelta(days=1), batch=8.0)
    recommendation = recommended(metrics, imported, load_test())
    assert recommendation.derivation["inputs"]["batch"]["value"] == 16.0
    assert recommendation.derivation["calibration"]["source"] == "load_test"
    assert any("load_test" in line for line in derivation.lines(recommendation))
    assert recommended(metrics, imported).derivation["inputs"]["batch"]["value"] == 8.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"valid_until": NOW}, "too_old"),
        ({"gpu_type": "A100"}, "other_gpu"),
        ({"tensor_parallel": 4}, "other_group"),
    ],
)
def test_a_load_test_that_does_not_apply_is_rejected_with_the_reason(metrics, changes, reason):
    recommendation = recommended(metrics, load_test(**changes))
    assert recommendation.derivation["inputs"]["batch"]["value"] == 32.0
    assert recommendation.derivation["calibration"]["source"] == "configured"
    assert any(reason in line for line in derivation.lines(recommendation, "zh"))


def test_tp_and_pp_of_engines_apply_unless_configured(metrics):
    labels = {**TOPOLOGY.labels, REPLICA: {"tensor_parallel": "4", "pipeline_parallel": "many"}}
    topology = Topology.build(TOPOLOGY.edges, TOPOLOGY.entities, labels)
    bare = ServiceSettings.model_validate(
        {name: value for name, value in SETTINGS[0].model_dump(exclude_unset=True).items() if name != "tensor_parallel"}
    )
    results = {}
    for name, settings in (("configured", SETTINGS), ("bare", [bare])):
        making = Planning(metrics, PlannerSettings(), settings, lambda *_: (6, 6))
        plan = making.plan_if_due(NOW, topology)
        results[name] = next(item for item in plan.recommendations if item.service == GOOD)
    assert results["configured"].gpus == 2 * results["configured"].target_replicas
    assert results["bare"].gpus == 4 * results["bare"].target_replicas
    assert results["bare"].derivation["nodes"]["gpus_per_node"] == 4
    assert results["bare"].derivation["nodes"]["source"] == "topology"


def present(rate, *, current=6, ready=6, at=NOW, **more):
    """The situation of the good service; it serves 5.3 requests/s with two of its replicas."""
    load = PresentLoad(rate=rate, arrivals=rate, calm=rate, running=rate * 12.0, waiting=0.0, spread=0.0)
    return Situation(at, {GOOD: ServiceNow(current, ready, replace(load, **more))})


def good(plan):
    return next(item for item in plan.recommendations if item.service == GOOD)


def test_a_surge_is_planned_at_once_with_the_forecasts_of_the_last_plan(metrics, monkeypatch):
    making = _planning(metrics, with_hindsight=False)
    first = making.plan_if_due(NOW, TOPOLOGY, present(35.0, current=20, ready=20))
    monkeypatch.setattr(planning, "make_plan", None)  # no forecast, no calibration, no history
    later = NOW + timedelta(minutes=2)
    assert making.plan_if_due(later, TOPOLOGY, present(35.0, current=20, ready=20, at=later)) is None
    later += timedelta(seconds=15)
    surge = present(80.0, current=20, ready=20, at=later, waiting=400.0, spread=1.0)
    revised = making.plan_if_due(later, TOPOLOGY, surge)
    assert good(revised).target_replicas > good(first).target_replicas
    assert good(revised).derivation["replanned"] == ["load_above_plan", "queue"]
    assert revised.forecasts == first.forecasts
    assert revised.revised == (GOOD,)
    assert revised.new_recommendations == (good(revised),)
    again = replace(surge, at=later + timedelta(seconds=15))
    assert making.plan_if_due(again.at, TOPOLOGY, again) is None, "nothing has changed since"


def test_ordered_replicas_that_start_raise_no_further_target(metrics):
    making = _planning(metrics, with_hindsight=False)
    making.plan_if_due(NOW, TOPOLOGY, present(35.0))
    at = NOW + timedelta(seconds=15)
    surge = {"waiting": 400.0, "spread": 1.0}
    ordered = good(making.plan_if_due(at, TOPOLOGY, present(40.0, at=at, **surge))).target_replicas
    assert ordered > 6
    at += timedelta(seconds=15)
    starting = present(40.0, current=ordered, ready=6, at=at, **surge)
    revised = making.plan_if_due(at, TOPOLOGY, replace(starting, ended={"scale": frozenset({GOOD})}))
    assert good(revised).target_replicas == ordered
    assert good(revised).current_replicas == ordered


def test_a_plan_made_in_the_background_is_revised_if_the_surge_began_meanwhile(metrics):
    making = _planning(metrics, with_hindsight=False, in_background=True)
    try:
        calm = present(35.0)
        making.plan_if_due(NOW, TOPOLOGY, calm)
        assert waiting.until(lambda: making.plan_if_due(NOW, TOPOLOGY, calm), "the first plan")
        at = NOW + timedelta(minutes=10)
        assert making.plan_if_due(at, TOPOLOGY, replace(calm, at=at)) is None, "it is being made"
        surges = (
            present(80.0, at=at + timedelta(seconds=15 * turn), waiting=400.0, spread=1.0) for turn in range(1, 5000)
        )
        plans = waiting.until(lambda: _scheduled_at(making, next(surges), at), "the second plan")
        assert good(plans).derivation["replanned"]
        assert good(plans).made_at > at
        assert plans.revised is None, "its forecasts are new and must be stored"
    finally:
        making.close()


def _scheduled_at(making, situation, at):
    """The plan once its forecasts are those of ``at``."""
    made = making.plan_if_due(situation.at, TOPOLOGY, situation)
    return made if made is not None and made.forecasts[0].made_at == at else None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_constant_noisy_load_never_flaps(seed):
    """Two hours at 15 s: the fleet follows every target at once, and never scales in both directions."""
    store, random, level = memory.MemoryMetricStore(), np.random.default_rng(seed), 20.0
    for slot in range(3 * 144):
        at = NOW - timedelta(minutes=10) * (3 * 144 - slot)
        values = np.full((1, 1), random.poisson(level * 600.0) / 600.0)
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        store.write(at, [SampleBatch("t", at, EntityKind.SERVICE, (LOAD,), (GOOD,), values, status, 15.0)])
    making, current, counts = _planning(store, with_hindsight=False), 12, []
    for cycle in range(480):
        at, rate = NOW + timedelta(seconds=15 * cycle), random.poisson(level * 30.0) / 30.0
        if cycle % 40 == 0:
            values = np.full((1, 1), random.poisson(level * 600.0) / 600.0)
            status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
            store.write(at, [SampleBatch("t", at, EntityKind.SERVICE, (LOAD,), (GOOD,), values, status, 15.0)])
        made = making.plan_if_due(at, TOPOLOGY, present(rate, current=current, ready=current, at=at, calm=level))
        current = current if made is None else good(made).target_replicas
        counts.append(current)
    steps = np.sign(np.diff([12, *counts]))
    assert not ((steps > 0).any() and (steps < 0).any()), counts
    assert len(set(counts)) <= 3, counts
