"""Trust verdicts that block scale-in and cordons (safety rule 1), and alerts that explain them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    CellStatus,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    Incident,
    Layer,
    Plan,
    Priority,
    RemediationSession,
    SampleBatch,
    SignalKey,
    TrustVerdict,
    Verdict,
    Window,
)
from outrider.ports import Collected, CycleCommit
from outrider.topology import DELETED, Topology
from service.engine import fleet_state
from service.engine.detector_memory import Detection
from service.engine.window_cache import WindowCache
from store.memory.state import MemoryStateStore

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
GPU, NODE = EntityRef("c", EntityKind.GPU, None, "gpu-0"), EntityRef("c", EntityKind.NODE, None, "node-0")
REPLICA, SERVICE = EntityRef("c", EntityKind.REPLICA, "s", "a-0"), EntityRef("c", EntityKind.SERVICE, "s", "a")
EXPORTER, ENGINE = (
    EntityRef("c", EntityKind.WORKLOAD, fleet_state.TARGETS_NAMESPACE, name) for name in ("dcgm", "a-0")
)
TOPOLOGY = Topology.build(
    [(NODE, GPU), (GPU, REPLICA), (REPLICA, SERVICE)],
    (EXPORTER, ENGINE),
    {EXPORTER: {"stands_for": NODE.key}, ENGINE: {"stands_for": REPLICA.key}},
    NOW,
)
HOLDING = (
    TrustVerdict.FAILED,
    TrustVerdict.STALE,
    TrustVerdict.RESET,
    TrustVerdict.PARTIAL,
    TrustVerdict.CLOCK_STEP,
    TrustVerdict.FROZEN,
)


def detection(verdict: TrustVerdict, about: EntityRef) -> Detection:
    found = Detection((), timedelta(seconds=15), fleet_state.NEEDS)
    for turn, trust in enumerate((TrustVerdict.FRESH, verdict)):
        codes = [trust.code if target == about else TrustVerdict.FRESH.code for target in (EXPORTER, ENGINE)]
        values = np.array([[1.0, code] for code in codes])
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        keys = fleet_state.NEEDS[EntityKind.WORKLOAD]
        at = NOW + turn * timedelta(seconds=15)
        batch = SampleBatch("watch", at, EntityKind.WORKLOAD, keys, (EXPORTER, ENGINE), values, status)
        found.run(at, Collected((batch,), ()), TOPOLOGY)
    return found


def alert(fault: str, entity: EntityRef, state: AlertState = AlertState.FIRING) -> Alert:
    return Alert(fault, fault, Priority.P1, entity, state, AlertReason.STILL_TRUE, NOW, NOW, fault=fault)


@pytest.mark.parametrize("verdict", TrustVerdict)
def test_trust_in_the_metrics_page_of_a_node_decides_its_cordon(verdict: TrustVerdict) -> None:
    held = fleet_state.untrusted((), TOPOLOGY, detection(verdict, EXPORTER))
    assert held == ({NODE} if verdict in HOLDING else set())


@pytest.mark.parametrize("verdict", TrustVerdict)
def test_trust_in_the_metrics_page_of_a_replica_decides_scale_in(verdict: TrustVerdict) -> None:
    held = fleet_state.untrusted((), TOPOLOGY, detection(verdict, ENGINE))
    assert held == ({SERVICE} if verdict in HOLDING else set())


@pytest.mark.parametrize("verdict", HOLDING)
def test_a_lost_device_explains_a_partial_metrics_page_only(verdict: TrustVerdict) -> None:
    """Otherwise the fault that requires a cordon would block it."""
    held = fleet_state.untrusted((alert("gpu-lost", GPU),), TOPOLOGY, detection(verdict, EXPORTER))
    assert held == (set() if verdict is TrustVerdict.PARTIAL else {NODE})


@pytest.mark.parametrize(
    "trust", [alert("gpu-lost", GPU, AlertState.RESOLVED), alert("disk-full", NODE), alert("engine-dead", REPLICA)]
)
def test_other_alerts_do_not_explain_a_partial_metrics_page(trust: Alert) -> None:
    assert fleet_state.untrusted((trust,), TOPOLOGY, detection(TrustVerdict.PARTIAL, EXPORTER)) == {NODE}


def test_an_untrusted_node_is_not_healthy() -> None:
    found = detection(TrustVerdict.PARTIAL, EXPORTER)
    assert NODE not in fleet_state.healthy((), TOPOLOGY, found, fleet_state.untrusted((), TOPOLOGY, found))


class NodeList:
    """What the control plane reports of nodes, cycle by cycle."""

    def __init__(self) -> None:
        self._cache, self._cycle = WindowCache(fleet_state.NEEDS, 100), 0

    def report(self, cycles: int, *names: str, cluster: str = "c") -> None:
        """The nodes of so many cycles of 15 s. None is cordoned."""
        self.report_all(cycles, EntityKind.NODE, *(EntityRef(cluster, EntityKind.NODE, None, name) for name in names))

    def report_all(self, cycles: int, kind: EntityKind, *entities: EntityRef) -> None:
        """The entities of one kind, for so many cycles. Every value is zero."""
        keys = fleet_state.NEEDS[kind]
        values = np.zeros((len(entities), len(keys)))
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        for _ in range(cycles):
            at = NOW + self._cycle * timedelta(seconds=15)
            self._cache.push(at, [SampleBatch("list", at, kind, keys, entities, values, status)])
            self._cycle += 1

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        return self._cache.window(kind, keys, span, timedelta(seconds=15))


def ours(listed: NodeList, topology: Topology) -> tuple[frozenset[EntityRef], frozenset[EntityRef]]:
    """(deleted nodes, nodes cordoned by us) of a session that cordoned NODE."""
    session = RemediationSession("s", "inc", NOW, cordoned=(NODE,))
    facts = fleet_state.fleet_facts((), (), Plan(), topology, listed, sessions=(session,), paused=False)
    return facts.deleted_nodes, facts.nodes_cordoned_by_us


WITHOUT_NODE = Topology.build([], [EntityRef("c", EntityKind.NODE, None, "node-1")])
MINUTE = 4  # cycles


def test_a_node_that_the_control_plane_no_longer_lists_is_deleted() -> None:
    listed = NodeList()
    listed.report(10 * MINUTE, "node-0", "node-1")
    listed.report(4 * MINUTE, "node-1")
    assert ours(listed, WITHOUT_NODE) == (frozenset(), {NODE}), "it may return"
    listed.report(2 * MINUTE, "node-1")
    assert ours(listed, WITHOUT_NODE) == ({NODE}, frozenset())
    listed.report(1, "node-0", "node-1")
    assert ours(listed, WITHOUT_NODE) == (frozenset(), {NODE})


def test_a_node_that_a_page_or_the_api_still_names_is_not_deleted() -> None:
    listed = NodeList()
    listed.report(10 * MINUTE, "node-1")
    assert ours(listed, TOPOLOGY) == (frozenset(), {NODE})


def test_an_outage_of_the_control_plane_s_metrics_deletes_no_node() -> None:
    """Safety rule 1: the absence of values is not the absence of nodes."""
    silent, short, ended = NodeList(), NodeList(), NodeList()
    silent.report(20 * MINUTE)
    assert ours(silent, WITHOUT_NODE) == (frozenset(), {NODE})
    short.report(2 * MINUTE, "node-1")
    assert ours(short, WITHOUT_NODE) == (frozenset(), {NODE}), "the engine has just started"
    ended.report(10 * MINUTE, "node-0", "node-1")
    ended.report(6 * MINUTE)
    ended.report(1, "node-1")
    assert ours(ended, WITHOUT_NODE) == (frozenset(), {NODE}), "the list has just returned"


POD = EntityRef("c", EntityKind.POD, "s", "a-0")


@pytest.mark.parametrize(
    ("minutes", "edges", "clusters"),
    [
        (6, [(POD, REPLICA), (REPLICA, SERVICE)], {"c"}),
        (2, [(POD, REPLICA), (REPLICA, SERVICE)], set()),
        (6, [], set()),
    ],
)
def test_a_cluster_is_listed_while_it_reports_the_pods_of_a_service(
    minutes: int, edges: list[tuple[EntityRef, EntityRef]], clusters: set[str]
) -> None:
    """A service that has just been listed, or nodes alone, do not show that another service has ended."""
    reported = NodeList()
    reported.report_all(minutes * MINUTE, EntityKind.POD, POD)
    topology = Topology.build(edges, [NODE])
    facts = fleet_state.fleet_facts((), (), Plan(), topology, reported, sessions=(), paused=False)
    assert facts.listed_clusters == clusters
    reported.report_all(1, EntityKind.SERVICE, SERVICE)
    facts = fleet_state.fleet_facts((), (), Plan(), topology, reported, sessions=(), paused=False)
    assert facts.recent_services == {SERVICE}


def test_the_list_of_another_cluster_deletes_no_node() -> None:
    listed = NodeList()
    listed.report(10 * MINUTE, "node-1", cluster="other")
    assert ours(listed, WITHOUT_NODE) == (frozenset(), {NODE})


def test_a_fault_is_as_sure_as_the_surest_of_its_active_alerts() -> None:
    doubtful = replace(alert("disk-slow", NODE), annotations={"score": "0.50"})
    over = alert("disk-slow", NODE, AlertState.RESOLVED)
    listed = NodeList()

    def scores(*alerts: Alert) -> Mapping[tuple[EntityRef, str], float]:
        return fleet_state.fleet_facts((), alerts, Plan(), TOPOLOGY, listed, sessions=(), paused=False).scores

    assert scores(doubtful, over) == {(NODE, "disk-slow"): 0.5}
    assert scores(doubtful, alert("disk-slow", NODE)) == {(NODE, "disk-slow"): 1.0}, "another monitor's alert"


def test_all_active_alerts_and_incidents_are_read() -> None:
    state = MemoryStateStore()
    many = [
        replace(alert("gpu-lost", replace(GPU, name=f"gpu-{place}")), fingerprint=str(place)) for place in range(2_500)
    ]
    over = replace(alert("gpu-lost", GPU, AlertState.RESOLVED), fingerprint="over")
    opened = [
        Incident(str(place), Layer.HARDWARE, Priority.P1, NOW, (), (), (str(place),), (), NOW) for place in range(1_500)
    ]
    cycle = CycleRecord("c", NOW, 0.1, 1, 1, 1, 0, 0, 0)
    state.commit(CycleCommit(cycle=cycle, alerts=(*many, over), incidents=opened))
    assert {found.fingerprint for found in fleet_state.active_alerts(state)} == {found.fingerprint for found in many}
    assert len(fleet_state.open_incidents(state)) == len(opened)


def test_the_guard_rails_count_actions_of_a_day_and_of_open_sessions() -> None:
    state = MemoryStateStore()
    day, old = timedelta(days=1), NOW - timedelta(days=3)
    many = [action(str(place), "s", NOW - timedelta(minutes=place % 60)) for place in range(1_500)]
    open_session, closed = RemediationSession("open", "inc", old), RemediationSession("closed", "inc", old, NOW)
    others = [action("kept", "open", old), action("gone", "closed", old)]
    cycle = CycleRecord("c", NOW, 0.1, 1, 1, 1, 0, 0, 0)
    state.commit(CycleCommit(cycle=cycle, actions=(*many, *others), sessions=(open_session, closed)))
    assert len(fleet_state.actions_since(state, NOW - timedelta(hours=1))) == len(many)
    weighed = fleet_state.weighed_actions(state, state.sessions(), NOW - day)
    assert {found.id for found in weighed} == {found.id for found in (*many, others[0])}
    assert len(fleet_state.weighed_actions(state, (), NOW - day)) == len(many)


def action(name: str, session: str, at: datetime) -> Action:
    return Action(
        name, session, ActionKind.CORDON, NODE, {}, "inc", False, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS,
        ActionStatus.DONE, at,
    )  # fmt: skip


def test_a_deleted_pod_takes_its_replica_and_its_target_with_it() -> None:
    pod = EntityRef("c", EntityKind.POD, "s", REPLICA.name)
    labels = {**TOPOLOGY.labels, pod: {DELETED: "true", "uid": "u-1"}}
    topology = replace(TOPOLOGY, labels=labels)
    assert fleet_state.deleted(topology) == {pod, REPLICA, ENGINE}
    assert fleet_state.deleted(TOPOLOGY) == frozenset()
    values = detection(TrustVerdict.FAILED, ENGINE)
    assert fleet_state.untrusted((), TOPOLOGY, values) == {SERVICE}
    assert fleet_state.untrusted((), topology, values) == frozenset(), "the page of a deleted pod is not a gap"
