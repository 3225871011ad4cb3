"""Canary weight of ingress-nginx on a real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from remediation.actuators.kubernetes.ownership import ACTION, OWNER
from remediation.actuators.traffic.diversions import TRAFFIC
from remediation.actuators.traffic.ingress_canary import CANARY, TOTAL, WEIGHT
from remediation.actuators.traffic.route import TrafficRoute
from tests.support.kube import Cluster
from tests.support.kube_actions import an_action
from tests.support.traffic_scene import CHAT, INGRESSES, SERVING, actuator_of, labels_of, pod, replica_ref, service

pytestmark = pytest.mark.control_plane
ROUTE = TrafficRoute("ingress_canary", "chat-canary")
PATH = f"{INGRESSES}/chat-canary"


def ingress(cluster: Cluster, name: str, backend: str, **annotations: str) -> None:
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": backend, "port": {"number": 8000}}}}
    spec = {"ingressClassName": "nginx", "rules": [{"host": "chat.example.com", "http": {"paths": [path]}}]}
    cluster.create(INGRESSES, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})


def scene(cluster: Cluster, canary_weight: str = "40", main_pods: int = 1, **annotations: str) -> None:
    """A canary with one pod, and a main side with ``main_pods``."""
    pod(cluster, "canary-0", app="canary")
    service(cluster, "canary", app="canary")
    for number in range(main_pods):
        pod(cluster, f"main-{number}", app="main", **{SERVING: "true"})
    service(cluster, "main", app="main", **{SERVING: "true"})
    ingress(cluster, "chat", "main")
    ingress(cluster, "chat-canary", "canary", **{CANARY: "true", WEIGHT: canary_weight, **annotations})


def shift(name: str, **params: Any) -> Any:
    return an_action(ActionKind.SHIFT_TRAFFIC, replica_ref(name), **{"service": "chat", **params})


def restore(name: str, **params: Any) -> Any:
    return an_action(ActionKind.RESTORE_TRAFFIC, replica_ref(name), **{"service": "chat", **params})


def weight(cluster: Cluster) -> str | None:
    value: str | None = cluster.get(PATH)["metadata"]["annotations"].get(WEIGHT)
    return value


def test_the_canary_leaves_once_and_returns_with_its_exact_weight(cluster: Cluster) -> None:
    scene(cluster)
    actuator, action = actuator_of(cluster, ROUTE), shift("canary-0")
    before = cluster.get(PATH)["metadata"]["annotations"]
    outcome = actuator.perform(action)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "Ingress chat-canary: canary-weight 40 -> 0 of 100")
    assert weight(cluster) == "0"
    assert cluster.get(PATH)["metadata"]["annotations"][ACTION] == action.id
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    with pytest.raises(ActuationError, match="another session"):
        actuator.perform(restore("canary-0", session="ses-2"))
    assert actuator.perform(restore("canary-0")).status is OutcomeStatus.DONE
    assert cluster.get(PATH)["metadata"]["annotations"] == before
    assert OWNER not in cluster.get(PATH)["metadata"].get("labels", {})
    assert actuator.perform(restore("canary-0")).status is OutcomeStatus.ALREADY


@pytest.mark.parametrize(("target", "ratio", "expected"), [
    ("canary-0", 0.5, "20"), ("main-0", 0.0, "100"), ("main-0", 0.5, "70"),
])  # fmt: skip
def test_either_side_keeps_a_share_of_its_weight(cluster: Cluster, target: str, ratio: float, expected: str) -> None:
    scene(cluster)
    actuator = actuator_of(cluster, ROUTE)
    actuator.perform(shift(target, weight=ratio))
    assert weight(cluster) == expected
    actuator.perform(restore(target))
    assert weight(cluster) == "40"


def test_both_sides_cannot_leave(cluster: Cluster) -> None:
    scene(cluster)
    actuator = actuator_of(cluster, ROUTE)
    actuator.perform(shift("main-0"))
    with pytest.raises(ActuationError, match="its weight is changed for another replica already"):
        actuator.perform(shift("canary-0", session="ses-2"))
    with pytest.raises(ActuationError, match="a replica is out of rotation"):
        actuator.perform(an_action(ActionKind.BALANCE_TRAFFIC, CHAT, weights={"canary-0": 50, "main-0": 50}))
    assert weight(cluster) == "100"


def test_a_side_without_a_ready_pod_does_not_get_everything(cluster: Cluster) -> None:
    pod(cluster, "canary-0", ready=False, app="canary")
    pod(cluster, "main-0", app="main")
    for name in ("canary", "main"):
        service(cluster, name, app=name)
    ingress(cluster, "chat", "main")
    ingress(cluster, "chat-canary", "canary", **{CANARY: "true", WEIGHT: "10"})
    with pytest.raises(ActuationError, match="Service canary would get all traffic and has no ready pod"):
        actuator_of(cluster, ROUTE).perform(shift("main-0"))
    assert weight(cluster) == "10"


def test_a_pod_that_shares_its_side_leaves_its_service(cluster: Cluster) -> None:
    scene(cluster, main_pods=2)
    actuator = actuator_of(cluster, ROUTE)
    action = shift("main-0")
    outcome = actuator.perform(action)
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    assert "pod main-0 leaves Service main" in outcome.detail
    assert (weight(cluster), SERVING in labels_of(cluster, "main-0")) == ("40", False)
    assert actuator.perform(restore("main-0")).status is OutcomeStatus.DONE
    assert SERVING in labels_of(cluster, "main-0")


def test_computed_weights_become_the_share_of_the_total(cluster: Cluster) -> None:
    scene(cluster, "5", **{TOTAL: "1000"})
    actuator = actuator_of(cluster, ROUTE)
    action = an_action(ActionKind.BALANCE_TRAFFIC, CHAT, weights={"canary-0": 25, "main-0": 75})
    assert actuator.perform(action).detail == "Ingress chat-canary: canary-weight 5 -> 250 of 1000"
    assert weight(cluster) == "250"
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    actuator.perform(an_action(ActionKind.RESTORE_TRAFFIC, CHAT))
    assert weight(cluster) == "5"


def test_a_weight_set_by_hand_meanwhile_stays(cluster: Cluster) -> None:
    scene(cluster)
    actuator = actuator_of(cluster, ROUTE)
    actuator.perform(shift("canary-0"))
    cluster.patch(PATH, {"metadata": {"annotations": {WEIGHT: "7"}}})
    assert "canary-weight was changed by hand to 7; it stays" in actuator.perform(restore("canary-0")).detail
    assert weight(cluster) == "7"
    assert TRAFFIC not in cluster.get(PATH)["metadata"]["annotations"]


def test_a_dry_run_changes_nothing(cluster: Cluster) -> None:
    scene(cluster)
    actuator, action = actuator_of(cluster, ROUTE), shift("canary-0", dry_run=True)
    (request,) = actuator.requests(action)
    (annotations,) = [each["value"] for each in request.body if each["path"] == "/metadata/annotations"]
    assert annotations[WEIGHT] == "0"
    assert actuator.perform(action).status is OutcomeStatus.DRY_RUN
    assert weight(cluster) == "40"


def test_missing_and_unsuitable_objects_are_named(cluster: Cluster) -> None:
    with pytest.raises(ActuationError, match="Ingress chat-canary does not exist in traffic"):
        actuator_of(cluster, ROUTE).perform(shift("canary-0"))
    assert actuator_of(cluster, ROUTE).perform(restore("canary-0")).status is OutcomeStatus.ALREADY
    scene(cluster)
    with pytest.raises(ActuationError, match="Ingress chat is not a canary"):
        actuator_of(cluster, TrafficRoute("ingress_canary", "chat")).perform(shift("canary-0"))
    with pytest.raises(ActuationError, match="does not route to other-0"):
        actuator_of(cluster, ROUTE).perform(shift("other-0"))
    cluster.patch(PATH, {"metadata": {"annotations": {WEIGHT: "ten"}}})
    with pytest.raises(ActuationError, match="'ten' is not a weight"):
        actuator_of(cluster, ROUTE).perform(shift("canary-0"))


def test_an_account_without_the_permission_is_refused(cluster: Cluster) -> None:
    scene(cluster)
    with pytest.raises(ActuationError, match="403"):
        actuator_of(cluster, ROUTE, "stranger").perform(shift("canary-0"))
    assert weight(cluster) == "40"
