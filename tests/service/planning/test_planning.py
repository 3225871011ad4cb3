"""What the planner is told of a fleet, and that one bad service or a broken planner costs no cycle."""

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
from service.config.service_settings import ServiceSettings
from service.config.settings import PlannerSettings
from service.planning import hindsight, planning
from service.planning.planning import Planning
from store import factory, memory, migrate

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
    count = 3 * 144
    for slot in range(count):
        at = NOW - timedelta(minutes=10) * (count - slot)
        wave = 20.0 * (1.0 + 0.8 * np.sin((at.hour + at.minute / 60 - 8) / 24 * 2 * np.pi))
        values = np.array([[wave], [wave if slot < count - 1 else -5.0], [wave]])
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        store.write(at, [SampleBatch("t", at, EntityKind.SERVICE, (LOAD,), (GOOD, BAD, BARE), values, status, 15.0)])
    return store


@pytest.fixture
def ledger(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    migrate.upgrade(url)
    found = factory.open_change_log(factory.urls_of(url)[0])
    yield found
    found.close()


def _planning(metrics, ledger=None, **more):
    return Planning(metrics, PlannerSettings(), SETTINGS, lambda *_: (6, 6), change_log=ledger, **more)


def test_a_negative_value_of_one_service_costs_nobody_a_plan(metrics):
    made = _planning(metrics).plan_if_due(NOW, TOPOLOGY)
    found = {one.service.name: one for one in made.recommendations}
    assert isinstance(found["good"], Recommendation)
    assert isinstance(found["bad"], Recommendation)
    assert found["bad"].derivation["data"]["negative"] == 1
    bare = found["bare"]
    assert isinstance(bare, NoRecommendation)
    assert (bare.reason, bare.detail) == (NoPlanReason.NO_CALIBRATION, "plan.refused_no_values")


def test_a_clock_that_jumps_ahead_and_back_does_not_end_planning(metrics):
    making = _planning(metrics, with_hindsight=False)
    assert making.plan_if_due(NOW + timedelta(days=1), TOPOLOGY) is not None
    assert making.plan_if_due(NOW, TOPOLOGY) is not None
    assert making.plan_if_due(NOW + timedelta(minutes=1), TOPOLOGY) is None


def test_a_planner_that_fails_costs_no_cycle(metrics, monkeypatch):
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


def test_the_lead_time_is_measured_on_the_ledger_s_starts(metrics, ledger):
    ledger.save_startups(list(_starts(8)))
    made = _planning(metrics, ledger, with_hindsight=False).plan_if_due(NOW, TOPOLOGY)
    found = {one.service.name: one for one in made.recommendations}
    lead = found["good"].derivation["lead"]
    assert (lead["source"], lead["starts"], lead["gpus_free"]) == ("measured", 8, 3)
    assert [part["name"] for part in lead["parts"]] == ["pull", "weight_load", "margin"]
    assert found["good"].lead_time == timedelta(seconds=132)
    assert found["bad"].derivation["lead"]["source"] == "configured"
    earlier = _planning(metrics, ledger, with_hindsight=False).plan_if_due(NOW - timedelta(hours=6), TOPOLOGY)
    then = {one.service.name: one for one in earlier.recommendations}["good"].derivation["lead"]
    assert (then["source"], then["starts"]) == ("configured", 2), "starts of later than that instant are not known"


def test_looking_back_is_kept_for_others_to_show(metrics, ledger):
    _planning(metrics, ledger).plan_if_due(NOW, TOPOLOGY)
    at, paper = ledger.document(hindsight.DOCUMENT)
    assert at == NOW
    (good, _) = sorted(paper["services"], key=lambda one: one["service"] != "good")
    assert good["first_start_at"] < good["peak_at"]
    assert good["without_starts"]["waited"] > 10_000 > good["with_plan"]["waited"]
    for language in ("en", "zh"):
        said = hindsight.sentence(good, language)
        assert f"{good['without_starts']['waited']:,}" in said
        assert "{" not in said
    assert not hindsight.is_due(ledger, NOW + timedelta(hours=1))
    assert hindsight.is_due(ledger, NOW + timedelta(hours=7))


def load_test(**changes):
    made = Calibration(
        GOOD, "H100", 300.0, 16.0, 25.0, 2, 1, 480.0, 900, "measured", "prior", "", "",
        NOW - timedelta(days=3), {}, "load_test", NOW + timedelta(days=3),
    )  # fmt: skip
    return replace(made, **changes)


def counted(metrics, *tests):
    made = _planning(metrics, tests=lambda: tests).plan_if_due(NOW, TOPOLOGY)
    return next(one for one in made.recommendations if one.service == GOOD)


def test_a_load_test_counts_where_engines_show_too_little_and_the_plan_says_so(metrics):
    imported = load_test(source="vllm", measured_at=NOW - timedelta(days=1), batch=8.0)
    found = counted(metrics, imported, load_test())
    assert found.derivation["inputs"]["batch"]["value"] == 16.0
    assert found.derivation["calibration"]["source"] == "load_test"
    assert any("load_test" in line for line in derivation.lines(found))
    assert counted(metrics, imported).derivation["inputs"]["batch"]["value"] == 8.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"valid_until": NOW}, "too_old"),
        ({"gpu_type": "A100"}, "other_gpu"),
        ({"tensor_parallel": 4}, "other_group"),
    ],
)
def test_a_load_test_of_something_else_is_passed_over_with_the_reason(metrics, changes, why):
    found = counted(metrics, load_test(**changes))
    assert found.derivation["inputs"]["batch"]["value"] == 32.0
    assert found.derivation["calibration"]["source"] == "configured"
    assert any(why in line for line in derivation.lines(found, "zh"))


def test_replicas_are_split_as_their_engines_say_unless_the_configuration_does(metrics):
    labels = {**TOPOLOGY.labels, REPLICA: {"tensor_parallel": "4", "pipeline_parallel": "many"}}
    said = Topology.build(TOPOLOGY.edges, TOPOLOGY.entities, labels)
    bare = ServiceSettings.model_validate(
        {name: value for name, value in SETTINGS[0].model_dump(exclude_unset=True).items() if name != "tensor_parallel"}
    )
    found = {}
    for name, settings in (("told", SETTINGS), ("bare", [bare])):
        making = Planning(metrics, PlannerSettings(), settings, lambda *_: (6, 6))
        made = making.plan_if_due(NOW, said)
        found[name] = next(one for one in made.recommendations if one.service == GOOD)
    assert found["told"].gpus == 2 * found["told"].target_replicas
    assert found["bare"].gpus == 4 * found["bare"].target_replicas
    assert found["bare"].derivation["nodes"]["gpus_per_node"] == 4
    assert found["bare"].derivation["nodes"]["source"] == "topology"
