"""Weights of a Gateway API HTTPRoute on a real control plane, with the real definition."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.api_server import ApiServer, ConflictError
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.kubernetes.ownership import ACTION, INCIDENT, OWNER, SESSION
from remediation.actuators.traffic.diversions import TRAFFIC
from remediation.actuators.traffic.route import TrafficRoute
from tests.support.kube import Cluster
from tests.support.kube_actions import an_action
from tests.support.traffic_scene import (
    CHAT,
    HTTP_ROUTES,
    PODS,
    POOLS,
    SERVICES,
    SERVING,
    actuator_of,
    http_route,
    labels_of,
    pod,
    replica_ref,
    replicas,
    service,
)

pytestmark = pytest.mark.control_plane
ROUTE = TrafficRoute("http_route", "chat")
EVEN = {"chat-0": 40, "chat-1": 30, "chat-2": 30}


@pytest.fixture
def actuator(cluster: Cluster) -> KubernetesActuator:
    return actuator_of(cluster, ROUTE)


@pytest.fixture
def path(cluster: Cluster) -> str:
    """Three replicas, each a backend of its own."""
    replicas(cluster)
    return http_route(cluster, EVEN)


def shift(name: str, **params: Any) -> Any:
    return an_action(ActionKind.SHIFT_TRAFFIC, replica_ref(name), **{"service": "chat", **params})


def restore(name: str, **params: Any) -> Any:
    return an_action(ActionKind.RESTORE_TRAFFIC, replica_ref(name), **{"service": "chat", **params})


def balance(weights: dict[str, int], **params: Any) -> Any:
    return an_action(ActionKind.BALANCE_TRAFFIC, CHAT, weights=weights, **params)


def weights(cluster: Cluster, path: str, rule: int = 0) -> dict[str, int]:
    references = cluster.get(path)["spec"]["rules"][rule]["backendRefs"]
    return {reference["name"]: reference["weight"] for reference in references}


def set_by_hand(cluster: Cluster, path: str, changed: dict[str, int]) -> None:
    rules = cluster.get(path)["spec"]["rules"]
    for reference in rules[0]["backendRefs"]:
        reference["weight"] = changed.get(reference["name"], reference["weight"])
    cluster.patch(path, {"spec": {"rules": rules}})


def test_a_replica_leaves_the_route_once_and_returns_with_its_exact_weight(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    before = cluster.get(path)
    action = shift("chat-0")
    outcome = actuator.perform(action)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "HTTPRoute chat: 0/chat-0 40 -> 0")
    assert weights(cluster, path) == {**EVEN, "chat-0": 0}
    meta = cluster.get(path)["metadata"]
    assert (meta["labels"][OWNER], meta["labels"][SESSION]) == ("outrider", "ses-1")
    assert (meta["labels"][INCIDENT], meta["annotations"][ACTION]) == ("inc-1", action.id)
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    assert actuator.perform(restore("chat-0")).status is OutcomeStatus.DONE
    after = cluster.get(path)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert after["metadata"].get("labels") == before["metadata"].get("labels")
    assert actuator.perform(restore("chat-0")).status is OutcomeStatus.ALREADY


def test_a_part_of_the_weight_stays(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    actuator.perform(shift("chat-0", weight=0.25))
    assert weights(cluster, path) == {**EVEN, "chat-0": 10}
    actuator.perform(shift("chat-0", weight=0.5))
    assert weights(cluster, path)["chat-0"] == 20, "a share of the full weight, not of the present one"


def test_a_share_that_whole_weights_cannot_express_is_refused(cluster: Cluster, actuator: KubernetesActuator) -> None:
    replicas(cluster)
    http_route(cluster, dict.fromkeys(EVEN, 1))
    with pytest.raises(ActuationError, match="not a whole number") as refused:
        actuator.perform(shift("chat-0", weight=0.4))
    assert "multiply" in refused.value.hint


def test_the_requests_are_exactly_what_is_sent(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    action = shift("chat-1", dry_run=True)
    (request,) = actuator.requests(action)
    assert (request.method, request.url) == ("PATCH", path)
    assert {"op": "add", "path": "/spec/rules/0/backendRefs/1/weight", "value": 0} in request.body
    version = cluster.get(path)["metadata"]["resourceVersion"]
    assert request.body[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
    assert actuator.perform(action).status is OutcomeStatus.DRY_RUN
    assert weights(cluster, path) == EVEN
    assert TRAFFIC not in cluster.get(path)["metadata"]["annotations"]


def test_a_route_that_changed_since_it_was_read_is_a_conflict(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    (request,) = actuator.requests(shift("chat-0"))
    set_by_hand(cluster, path, {"chat-1": 60})
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    with ApiServer(cluster.url, access) as server, pytest.raises(ConflictError):
        server.send(request, dry_run=False)
    assert weights(cluster, path) == {**EVEN, "chat-1": 60}


def test_a_change_of_another_session_is_not_undone(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    actuator.perform(shift("chat-0", session="ses-1"))
    with pytest.raises(ActuationError, match="shifted by another session"):
        actuator.perform(restore("chat-0", session="ses-2"))
    assert weights(cluster, path)["chat-0"] == 0


def test_a_replica_that_two_sessions_divert_returns_with_the_last_of_them(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    actuator.perform(shift("chat-0", session="ses-1", weight=0.5))
    actuator.perform(shift("chat-0", session="ses-2"))
    assert weights(cluster, path)["chat-0"] == 0
    actuator.perform(restore("chat-0", session="ses-2"))
    assert weights(cluster, path)["chat-0"] == 20, "that of the first session"
    actuator.perform(restore("chat-0", session="ses-1"))
    assert weights(cluster, path) == EVEN


def test_two_replicas_are_restored_one_by_one(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    actuator.perform(shift("chat-0", session="ses-1"))
    actuator.perform(shift("chat-1", session="ses-2"))
    actuator.perform(restore("chat-0", session="ses-1"))
    assert weights(cluster, path) == {**EVEN, "chat-1": 0}
    assert cluster.get(path)["metadata"]["labels"][SESSION] == "ses-2"
    actuator.perform(restore("chat-1", session="ses-2"))
    assert weights(cluster, path) == EVEN
    assert OWNER not in cluster.get(path)["metadata"].get("labels", {})


def test_a_weight_set_by_hand_meanwhile_stays(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    action = shift("chat-0")
    actuator.perform(action)
    set_by_hand(cluster, path, {"chat-0": 5})
    repeated = actuator.perform(action)
    assert repeated.status is OutcomeStatus.ALREADY, "the same action does not fight the operator"
    assert repeated.detail == "0/chat-0 was changed by hand to 5; it stays"
    with pytest.raises(ActuationError, match="changed by hand to 5"):
        actuator.perform(shift("chat-0"))
    outcome = actuator.perform(restore("chat-0"))
    assert "changed by hand to 5; it stays" in outcome.detail
    assert weights(cluster, path)["chat-0"] == 5
    assert TRAFFIC not in cluster.get(path)["metadata"]["annotations"]


def test_a_weight_of_zero_that_somebody_else_set_stays_theirs(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    set_by_hand(cluster, path, {"chat-0": 0})
    assert actuator.perform(shift("chat-0")).status is OutcomeStatus.ALREADY
    assert actuator.perform(restore("chat-0")).status is OutcomeStatus.ALREADY
    assert weights(cluster, path)["chat-0"] == 0


def test_the_last_backend_with_traffic_is_not_taken_out(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    set_by_hand(cluster, path, {"chat-1": 0, "chat-2": 0})
    with pytest.raises(ActuationError, match="no backend would get traffic"):
        actuator.perform(shift("chat-0"))
    assert weights(cluster, path)["chat-0"] == 40


def test_traffic_is_not_left_to_backends_without_a_ready_pod(cluster: Cluster, actuator: KubernetesActuator) -> None:
    pod(cluster, "chat-0")
    pod(cluster, "chat-1", ready=False)
    for name in ("chat-0", "chat-1"):
        service(cluster, name, replica=name)
    path = http_route(cluster, {"chat-0": 1, "chat-1": 1})
    with pytest.raises(ActuationError, match="only chat-1 without a ready pod would get traffic"):
        actuator.perform(shift("chat-0"))
    assert weights(cluster, path) == {"chat-0": 1, "chat-1": 1}


def test_a_pod_that_shares_its_backend_leaves_the_service_of_that_backend(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    replicas(cluster)
    pod(cluster, "next-0", app="next")
    service(cluster, "next", app="next")
    path = http_route(cluster, {"chat": 90, "next": 10})
    action = shift("chat-1")
    outcome = actuator.perform(action)
    assert outcome.detail == f"pod chat-1 leaves Service chat: it loses the label {SERVING}"
    assert weights(cluster, path) == {"chat": 90, "next": 10}
    assert SERVING not in labels_of(cluster, "chat-1")
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    with pytest.raises(ActuationError, match="also serves other replicas"):
        actuator.perform(shift("chat-2", weight=0.5))
    assert actuator.perform(restore("chat-1")).status is OutcomeStatus.DONE
    assert labels_of(cluster, "chat-1")[SERVING] == "true"


def test_backends_may_be_inference_pools(cluster: Cluster, actuator: KubernetesActuator) -> None:
    pod(cluster, "blue-0", app="blue")
    pod(cluster, "green-0", app="green")
    for name in ("blue", "green"):
        picker = {"name": "picker", "port": {"number": 9002}}
        spec = {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": picker,
        }
        kind = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
        cluster.create(POOLS, {**kind, "metadata": {"name": name}, "spec": spec})
    group = {"group": "inference.networking.k8s.io", "kind": "InferencePool"}
    references = [{**group, "name": "blue", "weight": 50}, {**group, "name": "green", "weight": 50}]
    body = {"metadata": {"name": "chat"}, "spec": {"rules": [{"backendRefs": references}]}}
    cluster.create(HTTP_ROUTES, {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", **body})
    actuator.perform(shift("blue-0"))
    assert weights(cluster, f"{HTTP_ROUTES}/chat") == {"blue": 0, "green": 50}


def test_a_route_of_a_gitops_controller_is_left_to_it(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    cluster.patch(
        path, {"metadata": {"annotations": {"argocd.argoproj.io/tracking-id": "chat:gateway/HTTPRoute:x/chat"}}}
    )
    with pytest.raises(ActuationError, match="managed by Argo CD application chat, which would revert it"):
        actuator.perform(shift("chat-0"))
    with pytest.raises(ActuationError, match="managed by Argo CD"):
        actuator.perform(balance({"chat-0": 50, "chat-1": 50}))
    assert weights(cluster, path) == EVEN


def test_a_route_that_flagger_sets_is_left_to_it(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    cluster.patch(path, {"metadata": {"labels": {"step": "1"}}}, by="flagger")
    with pytest.raises(ActuationError, match="managed by flagger"):
        actuator.perform(shift("chat-0"))


def test_missing_objects_are_named(cluster: Cluster, actuator: KubernetesActuator) -> None:
    with pytest.raises(ActuationError, match="HTTPRoute chat does not exist in traffic"):
        actuator.perform(shift("chat-0"))
    replicas(cluster)
    http_route(cluster, EVEN)
    with pytest.raises(ActuationError, match=r"no backend of HTTPRoute chat serves chat-9 \(backends: chat-0, chat-1"):
        actuator.perform(shift("chat-9"))


def test_a_route_that_was_deleted_needs_no_restore(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    actuator.perform(shift("chat-0"))
    cluster.delete(path)
    outcome = actuator.perform(restore("chat-0"))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.ALREADY, "HTTPRoute chat does not exist in traffic")


def test_the_backend_of_a_pod_that_has_ended_is_taken_out_by_its_name(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    cluster.delete(f"{PODS}/chat-0", json={"gracePeriodSeconds": 0})
    assert actuator.perform(shift("chat-0")).status is OutcomeStatus.DONE
    assert weights(cluster, path)["chat-0"] == 0


def test_a_backend_without_its_service_gets_no_traffic_from_us(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    set_by_hand(cluster, path, {"chat-2": 0})
    cluster.delete(f"{SERVICES}/chat-1")
    with pytest.raises(ActuationError, match="only chat-1 without a ready pod would get traffic"):
        actuator.perform(shift("chat-0"))
    assert weights(cluster, path)["chat-0"] == 40


def test_a_damaged_record_is_not_overwritten(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    cluster.patch(path, {"metadata": {"annotations": {TRAFFIC: "{not json"}}})
    for action in (shift("chat-0"), restore("chat-0")):
        with pytest.raises(ActuationError, match="cannot be read"):
            actuator.perform(action)
    assert weights(cluster, path) == EVEN


def test_an_account_without_the_permission_is_refused(cluster: Cluster, path: str) -> None:
    with pytest.raises(ActuationError, match="403") as refused:
        actuator_of(cluster, ROUTE, "stranger").perform(shift("chat-0"))
    assert "rbac-act.yaml" in refused.value.hint
    assert weights(cluster, path) == EVEN


def test_computed_weights_are_set_once(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    action = balance({"chat-0": 20, "chat-1": 50, "chat-2": 30})
    outcome = actuator.perform(action)
    assert outcome.detail == "HTTPRoute chat: 0/chat-0 40 -> 20, 0/chat-1 30 -> 50"
    assert weights(cluster, path) == {"chat-0": 20, "chat-1": 50, "chat-2": 30}
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    back = an_action(ActionKind.RESTORE_TRAFFIC, CHAT)
    assert actuator.perform(back).status is OutcomeStatus.DONE
    assert weights(cluster, path) == EVEN


def test_weights_that_stay_are_the_full_ones_and_leave_no_record(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    lasting = balance({"chat-0": 20, "chat-1": 50, "chat-2": 30}, undo="none")
    assert actuator.perform(lasting).status is OutcomeStatus.DONE
    assert weights(cluster, path) == {"chat-0": 20, "chat-1": 50, "chat-2": 30}
    meta = cluster.get(path)["metadata"]
    assert TRAFFIC not in meta.get("annotations", {})
    assert OWNER not in meta.get("labels", {})
    assert actuator.perform(lasting).status is OutcomeStatus.ALREADY
    assert actuator.perform(an_action(ActionKind.RESTORE_TRAFFIC, CHAT)).status is OutcomeStatus.ALREADY
    actuator.perform(shift("chat-1"))
    actuator.perform(restore("chat-1"))
    assert weights(cluster, path)["chat-1"] == 50, "the new weight is its full one"
    set_by_hand(cluster, path, {"chat-1": 40})
    assert actuator.perform(shift("chat-1")).status is OutcomeStatus.DONE, "people may change it again"


def test_newer_weights_of_another_session_replace_older_ones(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    actuator.perform(balance({"chat-0": 20, "chat-1": 50, "chat-2": 30}, session="ses-1"))
    actuator.perform(balance({"chat-0": 60, "chat-1": 20, "chat-2": 20}, session="ses-2"))
    assert weights(cluster, path) == {"chat-0": 60, "chat-1": 20, "chat-2": 20}
    actuator.perform(an_action(ActionKind.RESTORE_TRAFFIC, CHAT, session="ses-2"))
    assert weights(cluster, path) == EVEN


def test_backends_without_a_computed_weight_keep_their_share(cluster: Cluster, actuator: KubernetesActuator) -> None:
    replicas(cluster)
    path = http_route(cluster, {"chat-0": 1, "chat-1": 1, "chat-2": 2})
    actuator.perform(balance({"chat-0": 75, "chat-1": 25}))
    found = weights(cluster, path)
    assert found["chat-2"] / sum(found.values()) == 0.5
    assert found["chat-0"] / found["chat-1"] == 3


def test_a_replica_out_of_rotation_is_not_filled_by_computed_weights(
    cluster: Cluster, path: str, actuator: KubernetesActuator
) -> None:
    actuator.perform(shift("chat-2"))
    actuator.perform(balance({"chat-0": 80, "chat-1": 20, "chat-2": 50}))
    found = weights(cluster, path)
    assert found["chat-2"] == 0
    assert found["chat-0"] == 4 * found["chat-1"]
    actuator.perform(restore("chat-2"))
    found = weights(cluster, path)
    assert found["chat-2"] / sum(found.values()) == 0.3, "its share before both actions"


def test_replicas_without_a_backend_are_named(cluster: Cluster, path: str, actuator: KubernetesActuator) -> None:
    outcome = actuator.perform(balance({"chat-0": 50, "chat-1": 25, "chat-2": 25, "chat-7": 10}))
    assert "without a backend: chat-7" in outcome.detail
    with pytest.raises(ActuationError, match="no backend of HTTPRoute chat serves chat-8"):
        actuator.perform(balance({"chat-8": 10}))


@pytest.mark.parametrize(
    ("requested", "message"),
    [({}, "needs weights"), ({"chat-0": 0}, "all weights are 0"), ({"chat-0": -1}, "not a whole number")],
)
def test_invalid_weights_are_refused(
    cluster: Cluster, path: str, actuator: KubernetesActuator, requested: dict[str, int], message: str
) -> None:
    with pytest.raises(ActuationError, match=message):
        actuator.perform(balance(requested))
    assert weights(cluster, path) == EVEN
