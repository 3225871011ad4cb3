"""The decisions of a cycle from values only: no store, no clock."""

import ast
import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from alerts.routing.pipeline import NotificationSettings
from alerts.rules.files import load_rules
from detectors.rca.fault_catalogue import load as load_knowledge
from detectors.registry import DETECTORS
from outrider.model import (
    ActionKind,
    ActionStatus,
    AlertState,
    CellStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Floats,
    Plan,
    PlanReason,
    Recommendation,
    SampleBatch,
    SignalKey,
    TrustVerdict,
)
from outrider.ports import Collected
from outrider.topology import Topology
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.policy import Policy
from remediation.playbooks.files import packaged
from service.engine import decide as decide_module
from service.engine import fleet_state
from service.engine.decide import DecisionConfig, decide
from service.engine.detect import DetectionInputs
from service.engine.detector_memory import Detection
from service.engine.inputs import CycleInputs, StoredState

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
NODES = tuple(EntityRef("c", EntityKind.NODE, None, f"node-{number}") for number in range(4))
GPUS = tuple(EntityRef("c", EntityKind.GPU, None, f"GPU-{number}") for number in range(4))
PODS = tuple(EntityRef("c", EntityKind.POD, "llm", f"chat-{number}") for number in range(4))
REPLICAS = tuple(EntityRef("c", EntityKind.REPLICA, "llm", f"chat-{number}") for number in range(4))
SERVICE = EntityRef("c", EntityKind.SERVICE, "llm", "chat")
TARGETS = tuple(
    EntityRef("c", EntityKind.WORKLOAD, fleet_state.TARGETS_NAMESPACE, replica.name) for replica in REPLICAS
)
TOPOLOGY = Topology.build(
    [
        edge
        for node, gpu, pod, replica in zip(NODES, GPUS, PODS, REPLICAS, strict=True)
        for edge in ((node, gpu), (gpu, pod), (node, pod), (pod, replica), (replica, SERVICE))
    ],
    TARGETS,
    {target: {"stands_for": replica.key} for target, replica in zip(TARGETS, REPLICAS, strict=True)},
    NOW,
)


def batch(kind: EntityKind, entities: tuple[EntityRef, ...], values: Floats) -> SampleBatch:
    keys = fleet_state.NEEDS.get(kind, (SignalKey("hw_accel_power_watts"),))
    return SampleBatch("test", NOW, kind, keys, entities, values, np.full(values.shape, CellStatus.PRESENT, np.uint8))


def collected(*events: Event, up: float = 1.0) -> Collected:
    """A round in which every target is up, or none is."""
    trust = float((TrustVerdict.FRESH if up else TrustVerdict.FAILED).code)
    batches = [
        batch(EntityKind.WORKLOAD, TARGETS, np.array([[up, trust]] * len(TARGETS))),
        batch(EntityKind.NODE, NODES, np.array([[0.0, 1.0]] * len(NODES))),
    ]
    if up:
        batches.append(batch(EntityKind.GPU, GPUS, np.full((len(GPUS), 1), 300.0)))
        batches.append(
            batch(EntityKind.REPLICA, REPLICAS, np.ones((len(REPLICAS), len(fleet_state.NEEDS[EntityKind.REPLICA]))))
        )
    return Collected(tuple(batches), events, topology=TOPOLOGY)


def setup(*names: str) -> tuple[Detection, DecisionConfig]:
    detection = Detection([DETECTORS[name]() for name in names], STEP, fleet_state.NEEDS)
    config = DecisionConfig(
        detectors=detection.detector_set,
        rules=load_rules(None),
        knowledge=load_knowledge(),
        policy=Policy(autonomy=AutonomyLevels(Autonomy.ACT), dry_run=False),
        messaging=NotificationSettings(routes=dict.fromkeys(("phone", "sms", "im", "mail", "report"), ("chat-room",))),
        playbooks=packaged(),
    )
    return detection, config


def inputs(
    detection: Detection, given: Collected, now: datetime = NOW, stored: StoredState | None = None
) -> CycleInputs:
    detection.observe(now - STEP, collected())
    detection.observe(now, given)
    return CycleInputs(
        cycle_id="cycle-1",
        now=now,
        collected=given,
        detection=DetectionInputs(now, given.topology, detection),
        memory=detection.memory,
        recent_topology=given.topology,
        stored=stored or StoredState(events=given.events),
        uncommitted_topology=given.topology,
    )


def xid(at: datetime = NOW) -> Event:
    return Event("x", EventKind.XID, GPUS[0], at, "kernel_log", "79", {}, "x")


def test_an_xid_is_an_alert_an_incident_an_action_and_a_message() -> None:
    detection, config = setup("gpu-faults")
    commit = decide(inputs(detection, collected(xid())), config).commit
    firing = [alert for alert in commit.alerts if alert.state is AlertState.FIRING]
    assert [(alert.rule, alert.entity) for alert in firing] == [("gpu-lost", GPUS[0])]
    (incident,) = commit.incidents
    assert incident.suspected_cause is not None
    assert (incident.suspected_cause.fault, incident.suspected_cause.entity) == ("gpu-lost", GPUS[0])
    assert firing[0].incident == incident.id
    assert {action.because for action in commit.actions} == {incident.id}
    assert any(action.kind is ActionKind.CORDON and action.target == NODES[0] for action in commit.actions)
    assert {message.incident for message in commit.messages} == {incident.id}
    assert {record.cycle for record in commit.audit} == {"cycle-1"}
    assert (commit.cycle.findings, commit.cycle.alerts_firing, commit.cycle.incidents_open) == (1, 1, 1)


def scale_in(now: datetime) -> Plan:
    return Plan(
        (),
        (
            Recommendation(
                SERVICE, "H100", 4, 2, 8, 1, 8, "peak", None, now, timedelta(minutes=5), None, "USD", {},
                PlanReason.FORECAST_PEAK, now,
            ),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("up", [True, False])
def test_an_outage_of_the_metrics_holds_scale_in(up: bool) -> None:
    detection, config = setup("gpu-faults")
    given = inputs(detection, collected(up=float(up)))
    outcome = decide(replace(given, plan=scale_in(NOW), latest_plan=scale_in(NOW)), config)
    assert (SERVICE in outcome.facts.untrusted) is not up
    (action,) = outcome.commit.actions
    assert action.kind is ActionKind.SCALE
    if up:
        assert action.status is ActionStatus.INTENDED
    else:
        assert (action.status, action.reason) == (ActionStatus.REFUSED, DecisionReason.VALUES_NOT_TRUSTED)


def test_the_same_inputs_give_the_same_outcome() -> None:
    detection, config = setup("gpu-faults", "seasonal-gpu", "liveness")
    given = inputs(detection, collected(xid()))
    before = copy.deepcopy(given.memory)
    first, second = decide(given, config), decide(given, config)
    assert first == second
    assert given.memory.states.keys() == before.states.keys(), "the memory that is handed in does not change"
    assert first.memory.states.keys() == second.memory.states.keys() != before.states.keys()
    for name, state in first.memory.states.items():
        assert state.entities == second.memory.states[name].entities
        for key, array in state.arrays.items():
            np.testing.assert_array_equal(array, second.memory.states[name].arrays[key])


def test_a_standing_decision_is_audited_once() -> None:
    detection, config = setup("gpu-faults")
    config = replace(config, policy=replace(config.policy, max_cordoned_nodes=0))
    first = decide(inputs(detection, collected(xid())), config)
    again = replace(inputs(detection, collected(xid())), standing=first.standing)
    held = [record for record in first.commit.audit if record.event == "held"]
    assert [record for record in decide(again, config).commit.audit if record.event == "held"] == []
    assert first.standing.held == {record.subject: record.reason for record in held}


def test_decide_imports_no_store_clock_or_random_source() -> None:
    forbidden = {"store", "outrider.clock", "uuid", "random", "secrets", "pathlib", "time"}
    for module in (decide_module.__file__, *(str(Path(decide_module.__file__).with_name("detect.py")),)):
        tree = ast.parse(Path(module).read_text(encoding="utf-8"))
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {name for name in imported if name in forbidden or name.split(".")[0] in forbidden}
