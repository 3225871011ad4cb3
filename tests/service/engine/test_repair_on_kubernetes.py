"""The safety rules and the reliability of repairs, on a real control plane with the test as its kubelet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from collectors.kubernetes.disruption_budgets import blocked_pods
from collectors.kubernetes.objects import DISRUPTION_BUDGETS, PODS, Objects
from collectors.kubernetes.pods import pod_facts
from outrider.clock import ManualClock, SystemClock
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    HoldReason,
    Outcome,
    OutcomeStatus,
    StepState,
)
from outrider.topology import Topology
from outrider.wire.http_auth import Access
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.kubernetes.nodes import TAINT
from remediation.actuators.kubernetes.ownership import ACTION, OWNER, SESSION
from remediation.decide.limits import ACTION_TIME_LIMIT
from service.engine.dispatch import LEASE
from store.factory import SqlStateStore, open_state
from tests.remediation.conftest import CYCLE, Fleet
from tests.support.kube import ADMIN, Cluster
from tests.support.kube_actions import actuator_of
from tests.support.kube_scene import deployment, run_all, template
from tests.support.repair_loop import RepairLoop
from tests.support.waiting import until

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]
SPACE = "repairing"
NODES = ("repair-a", "repair-b", "repair-c", "repair-d")
NEIGHBOR = "router"
BUDGETS = f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"


class Scene:
    """Four nodes with one ready pod each, the fleet that decides about them, and the state store."""

    def __init__(self, cluster: Cluster, folder: Path, **limits: Any) -> None:
        self.cluster, self._url = cluster, f"sqlite:///{folder}/state.db"
        self.state = open_state(self._url)
        self.clock, self.reads_budgets = ManualClock(SystemClock().now()), False
        self.fleet = Fleet(len(NODES), **limits)
        self.fleet.nodes = [EntityRef("c1", EntityKind.NODE, None, name) for name in NODES]
        self._pods()

    def _pods(self) -> None:
        """Reads the pods: one replica each, named after its node."""
        fleet, edges, labels = self.fleet, [], {}
        on = _placed(self.cluster)
        for index, name in enumerate(NODES):
            pod = on[name]["metadata"]
            fleet.pods[index] = EntityRef("c1", EntityKind.POD, SPACE, pod["name"])
            labels[fleet.pods[index]] = {"uid": pod["uid"]}
            edges += [
                (fleet.nodes[index], fleet.gpus[index]),
                (fleet.gpus[index], fleet.pods[index]),
                (fleet.nodes[index], fleet.pods[index]),
                (fleet.pods[index], fleet.replicas[index]),
                (fleet.replicas[index], fleet.service),
            ]
        fleet.topology = Topology.build(edges, labels)

    def loop(self, actuator: Any = None, state: SqlStateStore | None = None) -> RepairLoop:
        """An engine. Traffic has no actuator here: its steps are done at once."""
        actuator = WithoutTraffic(actuator or actuator_of(self.cluster))
        return RepairLoop(self.fleet, state or self.state, actuator, self.clock, observe=self._observe)

    def _observe(self) -> None:
        """Nodes as the collector reports them. Pods count as ready: a restart is not what is tested here."""
        try:
            nodes = {node["metadata"]["name"]: node for node in self.cluster.get("/api/v1/nodes")["items"]}
        except httpx.HTTPError:
            return  # the server is away: what was known stays
        cordoned = {name for name, node in nodes.items() if node["spec"].get("unschedulable")}
        facts = replace(self.fleet.facts, ready_pods=frozenset(self.fleet.pods))
        self.fleet.facts = replace(
            facts, unschedulable=frozenset(node for node in self.fleet.nodes if node.name in cordoned)
        )
        if self.reads_budgets:
            self._mark_protected()

    def _mark_protected(self) -> None:
        """Pods with the budgets that refuse their eviction, as the collector marks them."""
        pods = self.cluster.pods(SPACE)
        budgets = self.cluster.get(BUDGETS)["items"]
        objects = Objects.of([*((PODS, pod) for pod in pods), *((DISRUPTION_BUDGETS, each) for each in budgets)])
        blocked = blocked_pods(objects, {pod["metadata"]["uid"]: pod_facts(pod) for pod in pods})
        edges, labels = list(self.fleet.topology.edges), dict(self.fleet.topology.labels)
        for pod in pods:
            entity = EntityRef("c1", EntityKind.POD, SPACE, pod["metadata"]["name"])
            node = EntityRef("c1", EntityKind.NODE, None, pod["spec"].get("nodeName", ""))
            if node in self.fleet.nodes:
                edges.append((node, entity))
                labels[entity] = {"uid": pod["metadata"]["uid"], **blocked.get(pod["metadata"]["uid"], {})}
        self.fleet.topology = Topology.build(edges, labels, labels)

    def second_store(self) -> SqlStateStore:
        """Another handle, as another engine has it."""
        return open_state(self._url)

    def break_gpu(self, index: int = 0) -> str:
        """Breaks the GPU of a node, and its replica."""
        self.fleet.sick.add(self.fleet.replicas[index])
        return self.fleet.break_("gpu-lost", self.fleet.gpus[index])

    def mend(self, incident: str, index: int = 0) -> None:
        """The GPU is well again."""
        self.fleet.mend(self.fleet.replicas[index])
        self.fleet.mend(self.fleet.gpus[index], resolve=incident)

    def node(self, index: int = 0) -> dict[str, Any]:
        """The node as it is on the API server."""
        return self.cluster.get(f"/api/v1/nodes/{NODES[index]}")

    def is_cordoned(self, index: int = 0) -> bool:
        """True if no pod would be scheduled there."""
        return bool(self.node(index)["spec"].get("unschedulable"))

    def protect_neighbor(self, **budget: Any) -> None:
        """Runs a ready pod of another Deployment on the first node, with a disruption budget."""
        labels = {"app": NEIGHBOR}
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODES[0]}
        spec = {"selector": {"matchLabels": labels}, "replicas": 1, "template": pod}
        path = f"/apis/apps/v1/namespaces/{SPACE}/deployments"
        self.cluster.create(path, {"metadata": {"name": NEIGHBOR}, "spec": spec})
        run_all(self.cluster, SPACE, len(NODES) + 1)
        selected = {"selector": {"matchLabels": labels}, **budget}
        self.cluster.create(BUDGETS, {"metadata": {"name": NEIGHBOR}, "spec": selected})
        until(
            lambda: self.cluster.get(f"{BUDGETS}/{NEIGHBOR}")["status"].get("currentHealthy") == 1,
            "the budget counts its pod",
        )

    def leaving(self) -> list[str]:
        """Nodes of the pods that are being deleted."""
        return [pod["spec"]["nodeName"] for pod in self.cluster.pods(SPACE) if pod["metadata"].get("deletionTimestamp")]

    def end_leaving(self) -> None:
        """Confirms the end of each pod that is being deleted, as its kubelet does."""
        for pod in self.cluster.pods(SPACE):
            if pod["metadata"].get("deletionTimestamp"):
                path = f"/api/v1/namespaces/{SPACE}/pods/{pod['metadata']['name']}"
                self.cluster.delete(path, json={"gracePeriodSeconds": 0})


class WithoutTraffic:
    """The actuator, but for traffic: this cluster has no gateway."""

    def __init__(self, actuator: Any) -> None:
        self._actuator = actuator

    def perform(self, action: Action) -> Any:
        if action.kind in (ActionKind.SHIFT_TRAFFIC, ActionKind.RESTORE_TRAFFIC):
            now = SystemClock().now()
            return Outcome(action.id, OutcomeStatus.DONE, "", now, now)
        return self._actuator.perform(action)


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """Four nodes, each with a ready pod of the Deployment ``chat``."""
    if control_plane.http.get(f"/api/v1/namespaces/{SPACE}").status_code == 404:
        control_plane.namespace(SPACE)
    for name in NODES:
        control_plane.node(name, gpus=1, pool="repair")
    selected = {"nodeSelector": {"pool": "repair"}}
    deployment(control_plane, SPACE, len(NODES), template=template(gpus=1, **selected))
    until(lambda: set(_placed(control_plane)) == set(NODES), "there is a pod on each node")
    run_all(control_plane, SPACE, len(NODES))
    yield control_plane
    for kind in ("deployments", "replicasets"):
        options = {"propagationPolicy": "Background"}
        control_plane.delete(f"/apis/apps/v1/namespaces/{SPACE}/{kind}", params=options)
    control_plane.delete(BUDGETS)
    for name in NODES:
        control_plane.delete(f"/api/v1/nodes/{name}")
    until(lambda: control_plane.without_pods(SPACE), "every pod is gone")


def _placed(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The pods by node. After an outage of the server its controllers create one too many, which stays pending."""
    return {name: pod for pod in cluster.pods(SPACE) if (name := pod["spec"].get("nodeName"))}


@pytest.fixture
def make_scene(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(**limits: Any) -> Scene:
        made.append(Scene(cluster, tmp_path, max_actions_per_hour=1000, **limits))
        return made[-1]

    yield make
    for scene in made:
        scene.state.close()


def by_kind(loop: RepairLoop, kind: ActionKind) -> list[Action]:
    return [action for action in loop.actions() if action.kind is kind]


def test_a_lost_gpu_from_its_cordon_to_its_uncordon(make_scene):
    """Rule 6: the node returns once it is healthy, and exactly as it was."""
    scene = make_scene()
    before = scene.node()
    incident, loop = scene.break_gpu(), scene.loop()
    loop.run(2)
    node = scene.node()
    assert node["spec"]["unschedulable"] is True
    assert [taint["key"] for taint in node["spec"]["taints"] if taint["key"].startswith("outrider")] == [TAINT]
    assert node["metadata"]["labels"][SESSION]
    assert scene.leaving() == [NODES[0]]
    scene.end_leaving()
    loop.run(3)
    assert {action.status for action in loop.actions()} == {ActionStatus.DONE}
    scene.mend(incident)
    loop.run(3)
    until(lambda: not scene.node()["spec"].get("taints"), "the node has no taint")
    after = scene.node()
    assert "unschedulable" not in after["spec"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert ACTION not in after["metadata"].get("annotations", {})
    assert all(session.closed_at for session in scene.state.sessions())
    kinds = [action.kind for action in loop.actions()]
    assert sorted(set(kinds)) == sorted(kinds), "an action was decided twice"


def test_rule_5_recovery_during_a_drain_ends_it(make_scene):
    scene = make_scene()
    scene.protect_neighbor(minAvailable=1)
    incident, loop = scene.break_gpu(), scene.loop()
    loop.run(2)
    scene.end_leaving()
    loop.run(4)
    (drain,) = by_kind(loop, ActionKind.DRAIN)
    assert drain.status is ActionStatus.INTENDED
    assert "disruption budget" in drain.detail
    scene.mend(incident)
    loop.run(3)
    (drain,) = by_kind(loop, ActionKind.DRAIN)
    assert drain.status is ActionStatus.CANCELLED
    assert scene.leaving() == []
    assert not scene.is_cordoned()


def test_a_budget_that_never_yields_ends_the_drain_and_is_named(make_scene):
    scene = make_scene()
    scene.protect_neighbor(maxUnavailable=0)
    scene.break_gpu()
    loop = scene.loop()
    loop.run(2)
    scene.end_leaving()
    loop.run(int(2.5 * ACTION_TIME_LIMIT / CYCLE))
    (drain,) = by_kind(loop, ActionKind.DRAIN)
    assert drain.status is ActionStatus.FAILED
    assert "disruption budget" in drain.detail
    assert scene.leaving() == []
    assert scene.is_cordoned()


def test_a_budget_that_the_guards_know_is_named_and_pages_if_it_never_yields(make_scene):
    """No replica is ordered for the pod of another service, and no eviction is tried."""
    scene = make_scene()
    scene.protect_neighbor(maxUnavailable=0)
    scene.reads_budgets = True
    scene.break_gpu()
    loop = scene.loop()
    loop.run(2)
    scene.end_leaving()
    loop.run(8)
    (drain,) = by_kind(loop, ActionKind.DRAIN)
    assert (drain.status, drain.reason) == (ActionStatus.REFUSED, DecisionReason.DISRUPTION_BUDGET)
    held = loop.decisions.holds[0]
    assert (held.reason, held.objection.detail) == (HoldReason.HELD_BY_GUARD, f"{SPACE}/{NEIGHBOR}")
    loop.run(int(timedelta(minutes=20) / CYCLE))
    (failed,) = [step for step in loop.decisions.steps if step.kind is ActionKind.DRAIN]
    assert (failed.state, failed.page) == (StepState.FAILED, "playbooks.step_held")
    assert by_kind(loop, ActionKind.SCALE) == []
    assert scene.leaving() == []
    scene.cluster.patch(f"{BUDGETS}/{NEIGHBOR}", {"spec": {"maxUnavailable": 1}})
    until(
        lambda: scene.cluster.get(f"{BUDGETS}/{NEIGHBOR}")["status"].get("disruptionsAllowed") == 1,
        "the budget allows a disruption",
    )
    loop.run(2)
    assert by_kind(loop, ActionKind.DRAIN)[-1].approved_by is not None, "the drain is decided again"
    assert scene.leaving() == [NODES[0]]


def test_rule_1_a_metrics_outage_holds_a_drain(make_scene):
    scene = make_scene()
    scene.break_gpu()
    loop = scene.loop()
    until(lambda: loop.cycle() and by_kind(loop, ActionKind.DRAIN), "the drain is decided")
    scene.fleet.facts = replace(scene.fleet.facts, blind=True)
    leaving = scene.leaving()
    scene.end_leaving()
    run_all(scene.cluster, SPACE, len(NODES) - 1)
    loop.run(4)
    assert leaving == [NODES[0]], "the restart of the broken pod was before the outage"
    assert scene.leaving() == [], "nothing is evicted while monitoring is lost"


def test_rule_7_the_breaker_counts_nodes_and_lets_every_uncordon_pass(make_scene):
    scene = make_scene(max_cordoned_nodes=1, max_cordoned_ratio=1.0)
    first, _, _ = (scene.break_gpu(index) for index in range(3))
    loop = scene.loop()
    loop.run(4)
    assert [scene.is_cordoned(index) for index in range(4)] == [True, False, False, False]
    scene.mend(first)
    loop.run(2)
    assert not scene.is_cordoned(0)
    loop.run(3)
    assert sum(scene.is_cordoned(index) for index in range(4)) == 1, "the next node takes its place"


def test_a_node_uncordoned_by_hand_stays_so(make_scene):
    scene = make_scene()
    incident, loop = scene.break_gpu(), scene.loop()
    loop.run(1)
    assert scene.is_cordoned()
    scene.cluster.patch(f"/api/v1/nodes/{NODES[0]}", {"spec": {"unschedulable": None}})
    loop.run(20)
    assert not scene.is_cordoned(), "we cordoned it again"
    (drain,) = by_kind(loop, ActionKind.DRAIN)
    assert drain.status is ActionStatus.FAILED
    assert "un-cordoned by someone else" in drain.detail
    scene.mend(incident)
    loop.run(2)
    assert OWNER not in scene.node()["metadata"]["labels"], "our marks leave with the session"


def test_a_node_and_a_pod_that_vanish_midway_end_the_repair(make_scene):
    scene = make_scene()
    incident, loop = scene.break_gpu(), scene.loop()
    loop.run(1)
    scene.cluster.delete(f"/api/v1/nodes/{NODES[0]}")
    scene.cluster.delete(f"/api/v1/namespaces/{SPACE}/pods/{scene.fleet.pods[0].name}", json={"gracePeriodSeconds": 0})
    loop.run(5)
    scene.fleet.remove_node(0)
    scene.mend(incident)
    loop.run(3)
    assert all(session.closed_at for session in scene.state.sessions())
    assert {action.status for action in loop.actions()} == {ActionStatus.DONE}
    (uncordon,) = by_kind(loop, ActionKind.UNCORDON)
    assert uncordon.detail == f"node {NODES[0]} no longer exists"


def test_another_engine_continues_in_the_middle(make_scene):
    scene = make_scene()
    incident = scene.break_gpu()
    first = scene.loop()
    first.cycle()
    claimed = scene.state.claim_actions("the first engine", scene.clock.now(), LEASE)  # it dies holding these
    second = scene.loop(state=scene.second_store())
    second.run(8)
    scene.end_leaving()
    second.run(8)
    ended = {action.id: action.status for action in second.actions()}
    assert all(ended[action.id] is ActionStatus.DONE for action in claimed)
    assert scene.leaving() == [], "the new pod was restarted, too"
    scene.mend(incident)
    second.run(3)
    assert not scene.is_cordoned()
    kinds = [action.kind for action in second.actions()]
    assert sorted(set(kinds)) == sorted(kinds)


class Proxy:
    """Passes requests on to the API server, but answers the next writes with ``refusals``."""

    def __init__(self, cluster: Cluster) -> None:
        proxy, self.refusals = self, list[int]()
        self._upstream = upstream = httpx.Client(base_url=cluster.url, verify=False, timeout=30)

        class Handler(BaseHTTPRequestHandler):
            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.command != "GET" and proxy.refusals:
                    return self.reply(proxy.refusals.pop(0), b'{"kind":"Status","message":"not now"}')
                passed = {
                    name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers
                }
                answer = upstream.request(self.command, self.path, content=body, headers=passed)
                return self.reply(answer.status_code, answer.content)

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PATCH = do_POST = do_DELETE = forward  # noqa: N815

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """Stops it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._upstream.close()


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    """A proxy before the API server."""
    with closing(Proxy(cluster)) as running:
        yield running


@pytest.mark.parametrize("status", [401, 409, 429, 503])
def test_a_server_that_refuses_for_a_while_delays_the_repair(make_scene, proxy, tmp_path, status):
    scene = make_scene()
    token = tmp_path / "token"
    token.write_text(ADMIN)
    proxy.refusals = [status] * 3
    scene.break_gpu()
    loop = scene.loop(KubernetesActuator(proxy.url, Access(bearer_token_file=token)))
    loop.run(3)
    assert proxy.refusals == []
    loop.run(12)
    assert scene.is_cordoned()
    (cordon,) = by_kind(loop, ActionKind.CORDON)
    assert cordon.status is ActionStatus.DONE
    assert len(by_kind(loop, ActionKind.RESTART_POD)) == 1


def test_a_server_that_is_away_for_a_while_delays_the_repair(make_scene):
    scene = make_scene()
    scene.break_gpu()
    loop = scene.loop()
    scene.cluster.stop_api()
    try:
        loop.run(3)
        (cordon,) = by_kind(loop, ActionKind.CORDON)
        assert (cordon.status, "cannot be reached" in cordon.detail) == (ActionStatus.INTENDED, True)
    finally:
        scene.cluster.start_api()
    loop.run(2)
    assert scene.is_cordoned()


def test_an_account_without_the_right_fails_at_once_and_says_why(make_scene):
    scene = make_scene()
    scene.break_gpu()
    loop = scene.loop(actuator_of(scene.cluster, "stranger"))
    loop.run(2)
    (cordon,) = by_kind(loop, ActionKind.CORDON)
    assert cordon.status is ActionStatus.FAILED
    assert "may not" in cordon.detail or "forbidden" in cordon.detail.lower()
    assert not scene.is_cordoned()
