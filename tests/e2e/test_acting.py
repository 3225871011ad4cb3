"""The whole platform on a real control plane: a GPU breaks, its node leaves service, and returns once it is healthy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.model import ActionKind, ActionStatus, AlertState, DecisionReason, Verdict
from remediation.actuators.kubernetes.nodes import TAINT
from remediation.actuators.kubernetes.ownership import ACTION, INCIDENT, OWNER, SESSION
from service.config import settings as settings_file
from service.wiring import stores as wiring_stores
from tests.support import crds
from tests.support.acting import ROOT, ActingPlatform, apply_roles, configuration
from tests.support.kube import Cluster, MissingError
from tests.support.kube_fleet import SERVICE, KubeFleet, kube_fleet
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]
NODES = ("act-1", "act-2", "act-3")
_TARGETS = len(NODES) + 3  # a device exporter per node, two engines, the control plane
FALLEN_OFF_THE_BUS = 79
_TAKEN_OVER_SECONDS = 150.0  # an action that was claimed at the kill is free again after its lease of a minute


@pytest.fixture
def fleet(control_plane: Cluster, request: pytest.FixtureRequest) -> Iterator[KubeFleet]:
    apply_roles(control_plane)
    name = "act-" + str(abs(hash(request.node.name)))[:6]
    with kube_fleet(control_plane, name, NODES) as running:
        until(lambda: len(running.engines()) == 2, "both engines run")
        yield running


@pytest.fixture
def platform(fleet: KubeFleet, tmp_path: Path) -> Iterator[ActingPlatform]:
    acting = ActingPlatform(fleet, configuration(fleet, tmp_path))
    acting.rounds(8)
    assert acting.state.incidents() == ()
    yield acting
    acting.close()


def break_gpu(fleet: KubeFleet) -> tuple[dict[str, Any], str]:
    """Lets the GPU of an engine fall off the bus; returns its pod and its node."""
    pod = fleet.engines()[0]
    fleet.xid[fleet.gpu_of(pod["metadata"]["name"])] = FALLEN_OFF_THE_BUS
    return pod, str(pod["spec"]["nodeName"])


def cordoned(fleet: KubeFleet, node: str) -> bool:
    return bool(fleet.node(node)["spec"].get("unschedulable"))


def marks_of(fleet: KubeFleet, node: str) -> set[str]:
    """Returns our labels, annotation and taint on a node."""
    document = fleet.node(node)
    names = {*document["metadata"]["labels"], *document["metadata"].get("annotations", {})}
    taints = {taint["key"] for taint in document["spec"].get("taints") or ()}
    return (names | taints) & {OWNER, SESSION, INCIDENT, ACTION, TAINT}


def in_order(story: list[str], *parts: str) -> None:
    """Asserts that the story has these parts in this order."""
    rest = iter(story)
    for part in parts:
        assert any(part in line for line in rest), f"{part!r} is missing or out of order in {story}"


def test_a_lost_gpu_is_isolated_and_its_node_returns(platform: ActingPlatform, fleet: KubeFleet) -> None:
    pod, node = break_gpu(fleet)
    name = pod["metadata"]["name"]
    platform.until(lambda: cordoned(fleet, node), "the node is cordoned")
    (incident,) = platform.state.incidents()
    assert marks_of(fleet, node) == {OWNER, SESSION, INCIDENT, ACTION, TAINT}
    assert fleet.node(node)["metadata"]["labels"][INCIDENT] == incident.id
    platform.until(lambda: platform.actions(ActionKind.RESTART_POD, ActionStatus.DONE), "the pod is replaced")
    (restart,) = platform.actions(ActionKind.RESTART_POD)
    assert restart.params["uid"] == pod["metadata"]["uid"]
    until(lambda: len(fleet.engines()) == 2, "the replacement runs", seconds=180)
    assert node not in {engine["spec"]["nodeName"] for engine in fleet.engines()}
    platform.rounds(4)
    assert cordoned(fleet, node), "the node stays out while its GPU is broken"
    (drain,) = platform.actions(ActionKind.DRAIN)
    assert drain.status is ActionStatus.WAITING_APPROVAL, "healthy pods move only after an approval"

    fleet.xid.clear()
    platform.until(lambda: not cordoned(fleet, node), "the node is back")
    assert marks_of(fleet, node) == set()
    platform.until(lambda: platform.state.sessions() == (), "the session is closed")
    platform.rounds(4)
    (closed,) = platform.state.incidents()
    assert (closed.id, closed.resolved_at is not None) == (incident.id, True)
    assert platform.state.alerts(states=[AlertState.FIRING]) == ()
    done = [action.kind for action in platform.all_actions() if action.status is ActionStatus.DONE]
    assert sorted(done) == sorted({ActionKind.CORDON, ActionKind.RESTART_POD, ActionKind.UNCORDON})
    assert len(platform.actions(ActionKind.CORDON)) == len(platform.actions(ActionKind.UNCORDON)) == 1
    in_order(
        platform.story(),
        "alert_changed gpu-lost",
        f"incident_opened {incident.id} opened",
        f"action_decided cordon node/{node} within_limits",
        f"action_performed cordon node/{node} done",
        f"action_decided restart_pod pod/{fleet.namespace}/{name} within_limits",
        f"action_performed restart_pod pod/{fleet.namespace}/{name} done",
        "entity_deleted",
        f"action_decided drain node/{node} needs_approval",
        f"incident_resolved {incident.id} resolved",
        f"action_decided uncordon node/{node} recovered",
        f"action_performed uncordon node/{node} done",
    )


# --- a route with weights ------------------------------------------------------------------------------

COLOURS = ("chat-blue", "chat-green")
WEIGHTS = {"chat-blue": 40, "chat-green": 60}
ROUTED = {
    "actuators": {"shift_traffic": "traffic", "restore_traffic": "traffic"},
    "traffic": {"routes": {SERVICE: {"kind": "http_route", "name": "chat"}}},
}


@pytest.fixture
def routed(control_plane: Cluster, request: pytest.FixtureRequest) -> Iterator[KubeFleet]:
    """Two Deployments of one service, each with one pod, behind an HTTPRoute with a weight for each."""
    apply_roles(control_plane)
    try:
        crds.install(control_plane, *crds.ROUTES)
    except MissingError as error:
        pytest.skip(f"missing: {error}")
    name = "route-" + str(abs(hash(request.node.name)))[:6]
    with kube_fleet(control_plane, name, NODES, replicas=1, deployments=COLOURS) as running:
        until(lambda: len(running.engines()) == 2, "both engines run")
        for colour in COLOURS:
            spec = {"selector": {"deployment": colour}, "ports": [{"port": 8000}]}
            control_plane.create(f"/api/v1/namespaces/{name}/services", {"metadata": {"name": colour}, "spec": spec})
        backends = [{"name": colour, "port": 8000, "weight": weight} for colour, weight in WEIGHTS.items()]
        route = {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "chat"},
            "spec": {"parentRefs": [{"name": "public"}], "rules": [{"backendRefs": backends}]},
        }
        control_plane.create(routes_of(running), route)
        yield running
        control_plane.delete(f"{routes_of(running)}/chat")


def routes_of(fleet: KubeFleet) -> str:
    return f"/apis/gateway.networking.k8s.io/v1/namespaces/{fleet.namespace}/httproutes"


def weights_of(fleet: KubeFleet) -> dict[str, int]:
    (rule,) = fleet.cluster.get(f"{routes_of(fleet)}/chat")["spec"]["rules"]
    return {backend["name"]: backend["weight"] for backend in rule["backendRefs"]}


def test_the_weight_of_a_replaced_pod_returns_and_the_session_ends(routed: KubeFleet, tmp_path: Path) -> None:
    """The replacement in a Deployment has another name: the diverted replica never returns."""
    platform = ActingPlatform(routed, configuration(routed, tmp_path, remediation=ROUTED))
    try:
        platform.rounds(8)
        broken, node = break_gpu(routed)
        name, colour = broken["metadata"]["name"], broken["metadata"]["labels"]["deployment"]
        platform.until(lambda: weights_of(routed)[colour] == 0, "the traffic is shifted")
        assert weights_of(routed) == {**WEIGHTS, colour: 0}
        platform.until(lambda: platform.actions(ActionKind.RESTART_POD, ActionStatus.DONE), "the pod is replaced")
        until(lambda: len(routed.engines()) == 2, "the replacement runs", seconds=180)
        assert name not in {pod["metadata"]["name"] for pod in routed.engines()}
        platform.until(lambda: weights_of(routed)[colour], "the traffic is back")
        assert weights_of(routed) == WEIGHTS
        assert cordoned(routed, node), "the node itself is not repaired yet"
        routed.xid.clear()
        platform.until(lambda: platform.state.sessions() == (), "the session is closed")
        assert not cordoned(routed, node)
        assert weights_of(routed) == WEIGHTS
        assert OWNER not in routed.cluster.get(f"{routes_of(routed)}/chat")["metadata"].get("labels", {})
        (restore,) = platform.actions(ActionKind.RESTORE_TRAFFIC)
        assert (restore.target.name, restore.status) == (name, ActionStatus.DONE)
    finally:
        platform.close()


def test_a_node_that_an_operator_uncordons_is_not_cordoned_again(platform: ActingPlatform, fleet: KubeFleet) -> None:
    _, node = break_gpu(fleet)
    platform.until(lambda: cordoned(fleet, node), "the node is cordoned")
    platform.round()
    fleet.cluster.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}}, by="kubectl-uncordon")
    platform.rounds(8)
    assert not cordoned(fleet, node)
    planned = {row.action.kind: row for row in platform.preview().of_fault("gpu-lost", f"node/{node}")}
    answers = {answer.guard: answer for answer in planned[ActionKind.CORDON].guards}
    assert "operator" in answers["owner"].detail, "another fault of this node does not overrule the operator either"
    fleet.xid.clear()
    platform.until(lambda: platform.state.sessions() == (), "the session is closed")
    assert marks_of(fleet, node) == set()
    assert [action.status for action in platform.actions(ActionKind.CORDON)] == [ActionStatus.DONE]


def test_a_node_that_an_autoscaler_removes_is_left_to_it(platform: ActingPlatform, fleet: KubeFleet) -> None:
    pod = fleet.engines()[0]
    node = str(pod["spec"]["nodeName"])
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    fleet.cluster.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}}, by="cluster-autoscaler")
    platform.rounds(2)
    fleet.xid[fleet.gpu_of(pod["metadata"]["name"])] = FALLEN_OFF_THE_BUS
    platform.until(lambda: platform.actions(ActionKind.CORDON), "the cordon is decided")
    platform.rounds(2)
    (cordon,) = platform.actions(ActionKind.CORDON)
    assert (cordon.status, cordon.reason) == (ActionStatus.REFUSED, DecisionReason.OWNED)
    assert "cluster-autoscaler" in {objection.detail for objection in cordon.objections if objection.guard == "owner"}
    assert marks_of(fleet, node) == set()
    planned = {row.action.kind: row for row in platform.preview().of_open_incidents()}
    answers = {answer.guard: answer for answer in planned[ActionKind.CORDON].guards}
    assert (answers["owner"].verdict, answers["owner"].detail) == (Verdict.REFUSED, "cluster-autoscaler")


def test_an_api_server_that_is_away_delays_the_cordon(platform: ActingPlatform, fleet: KubeFleet) -> None:
    _, node = break_gpu(fleet)
    fleet.cluster.stop_api()
    try:
        platform.until(lambda: platform.actions(ActionKind.CORDON), "the cordon is decided")
        platform.rounds(3)
        (waiting,) = platform.actions(ActionKind.CORDON)
        assert (waiting.status, "cannot be reached" in waiting.detail) == (ActionStatus.INTENDED, True)
    finally:
        fleet.cluster.start_api()
    platform.until(lambda: cordoned(fleet, node), "the node is cordoned")
    platform.until(lambda: platform.actions(ActionKind.RESTART_POD, ActionStatus.DONE), "the pod is replaced")
    (cordon,) = platform.actions(ActionKind.CORDON)
    assert cordon.status is ActionStatus.DONE
    assert len(platform.state.incidents()) == 1


def test_a_killed_engine_continues_the_playbook_once(fleet: KubeFleet, tmp_path: Path) -> None:
    port = free_port()
    more = {"api": {"port": port}, "dashboard": {"enabled": False}, "log": {"level": "warning"}}
    file = configuration(fleet, tmp_path, interval="1s", **more)
    command = [sys.executable, "-m", "service.cli", "serve", "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        overview = f"http://127.0.0.1:{port}/api/v1/overview"
        until(lambda: _targets_up(overview) == _TARGETS, "all pages are read")
        before = {pod["metadata"]["name"] for pod in fleet.engines()}
        _, node = break_gpu(fleet)
        until(lambda: cordoned(fleet, node), "the node is cordoned")
        engine = int((tmp_path / "store" / "outrider.engine.lock").read_text())
        os.kill(engine, signal.SIGKILL)
        settings = settings_file.load(file)

        def replaced() -> bool:
            with wiring_stores.state_reader(settings) as store:
                restarts = [action for action in store.actions(limit=100) if action.kind is ActionKind.RESTART_POD]
            return [action.status for action in restarts] == [ActionStatus.DONE]

        until(replaced, "the next engine replaces the pod", seconds=_TAKEN_OVER_SECONDS)
        until(lambda: len(fleet.engines()) == 2, "the replacement runs", seconds=180)
        with wiring_stores.state_reader(settings) as store:
            actions, incidents = store.actions(limit=100), store.incidents()
        finished = [action.kind for action in actions if action.status is ActionStatus.DONE]
        assert sorted(finished) == [ActionKind.CORDON, ActionKind.RESTART_POD], actions
        assert len(incidents) == 1
        assert cordoned(fleet, node)
        after = {pod["metadata"]["name"] for pod in fleet.engines()}
        assert (len(after & before), len(after - before)) == (1, 1), "exactly one pod was replaced"
        assert "Traceback" not in (tmp_path / "serve.log").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _targets_up(overview: str) -> int:
    try:
        monitoring = httpx.get(overview, timeout=5).json()["monitoring"]
    except (httpx.HTTPError, ValueError, KeyError):
        return 0
    return int(monitoring["targets_up"]) if monitoring["fresh"] else 0
