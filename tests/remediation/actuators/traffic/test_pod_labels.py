"""Pods that leave a Service or an InferencePool by a label, on a real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, EntityKind, EntityRef, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.api_server import ApiServer, ConflictError
from remediation.actuators.kubernetes.ownership import ACTION, OWNER, SESSION
from remediation.actuators.traffic.diversions import TRAFFIC
from remediation.actuators.traffic.route import TrafficRoute
from tests.support.kube import Cluster
from tests.support.kube_actions import an_action
from tests.support.kube_scene import run
from tests.support.traffic_scene import (
    APPS,
    CHAT,
    PODS,
    POOLS,
    SERVING,
    SPACE,
    actuator_of,
    labels_of,
    pod,
    replica_ref,
    replicas,
    service,
)
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
POOL = TrafficRoute("inference_pool")


def shift(name: str, **params: Any) -> Any:
    return an_action(ActionKind.SHIFT_TRAFFIC, replica_ref(name), **{"service": "chat", **params})


def restore(name: str, **params: Any) -> Any:
    return an_action(ActionKind.RESTORE_TRAFFIC, replica_ref(name), **{"service": "chat", **params})


def endpoints(cluster: Cluster, name: str = "chat") -> set[str]:
    """Names of the pods that the real controller lists as endpoints of a Service."""
    query = f"?labelSelector=kubernetes.io/service-name={name}"
    slices = cluster.get(f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices{query}")["items"]
    return {entry["targetRef"]["name"] for each in slices for entry in each.get("endpoints") or []}


def addressed(cluster: Cluster, names: list[str]) -> None:
    """Gives the pods addresses, as their kubelets do: without one a pod is not an endpoint."""
    for number, name in enumerate(names):
        cluster.pod_status(
            cluster.get(f"{PODS}/{name}"), podIP=f"10.1.0.{number + 1}", podIPs=[{"ip": f"10.1.0.{number + 1}"}]
        )


def workload(cluster: Cluster, kind: str, selector: dict[str, str], count: int = 2) -> list[str]:
    """Creates a workload ``chat`` whose pods also have the serving label; returns the names of its ready pods."""
    labels = {"app": "chat", SERVING: "true"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}
    spec = {"selector": {"matchLabels": selector}, "replicas": count, "template": template}
    plural = "deployments" if kind == "Deployment" else "statefulsets"
    extra = {"serviceName": "chat", "podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}
    cluster.create(f"{APPS}/{plural}", {"metadata": {"name": "chat"}, "spec": {**spec, **extra}})
    until(lambda: len(cluster.pods(SPACE)) == count, "the pods exist")
    for each in cluster.pods(SPACE):
        run(cluster, each)
    return sorted(each["metadata"]["name"] for each in cluster.pods(SPACE))


def test_a_pod_leaves_the_endpoints_of_its_service_and_returns(cluster: Cluster) -> None:
    cluster.node("traffic-a")  # the controller lists pods of known nodes only
    names = replicas(cluster, node="traffic-a")
    addressed(cluster, names)
    until(lambda: endpoints(cluster) == set(names), "all pods are endpoints")
    actuator, action = actuator_of(cluster), shift("chat-1")
    before = cluster.get(f"{PODS}/chat-1")["metadata"]
    outcome = actuator.perform(action)
    assert (outcome.status, outcome.detail) == (
        OutcomeStatus.DONE, f"pod chat-1 leaves Service chat: it loses the label {SERVING}"
    )  # fmt: skip
    until(lambda: endpoints(cluster) == {"chat-0", "chat-2"}, "the pod is no endpoint")
    marked = cluster.get(f"{PODS}/chat-1")["metadata"]
    assert (marked["labels"][OWNER], marked["labels"][SESSION]) == ("outrider", "ses-1")
    assert marked["annotations"][ACTION] == action.id
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    outcome = actuator.perform(restore("chat-1"))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, f"pod chat-1 gets label {SERVING} true back")
    after = cluster.get(f"{PODS}/chat-1")["metadata"]
    assert after["labels"] == before["labels"]
    assert TRAFFIC not in after.get("annotations", {})
    until(lambda: endpoints(cluster) == set(names), "the pod is an endpoint again")
    assert actuator.perform(restore("chat-1")).status is OutcomeStatus.ALREADY
    cluster.delete("/api/v1/nodes/traffic-a")


def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(cluster: Cluster) -> None:
    replicas(cluster)
    before = labels_of(cluster, "chat-1")
    action = shift("chat-1", dry_run=True)
    (request,) = actuator_of(cluster).requests(action)
    assert (request.method, request.url) == ("PATCH", f"{PODS}/chat-1")
    assert actuator_of(cluster).perform(action).status is OutcomeStatus.DRY_RUN
    assert labels_of(cluster, "chat-1") == before


def test_a_pod_of_a_deployment_loses_a_label_that_its_replica_set_does_not_need(cluster: Cluster) -> None:
    first, second = workload(cluster, "Deployment", {"app": "chat"})
    service(cluster, "chat", app="chat", **{SERVING: "true"})
    actuator_of(cluster).perform(shift(first))
    labels = labels_of(cluster, first)
    assert (labels["app"], SERVING in labels) == ("chat", False)
    assert cluster.get(f"{PODS}/{first}")["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    assert {each["metadata"]["name"] for each in cluster.pods(SPACE)} == {first, second}, "no replacement starts"


def test_a_pod_that_would_be_replaced_is_refused_without_a_permission(cluster: Cluster) -> None:
    first, second = workload(cluster, "Deployment", {"app": "chat"})
    service(cluster, "chat", app="chat")
    with pytest.raises(ActuationError, match="would replace pod") as refused:
        actuator_of(cluster).perform(shift(first))
    assert SERVING in refused.value.hint
    permitted = actuator_of(cluster, TrafficRoute("service", "chat", replace=True))
    action = shift(first)
    outcome = permitted.perform(action)
    assert "releases it and starts a replacement" in outcome.detail
    until(lambda: len(cluster.pods(SPACE)) == 3, "the ReplicaSet has started a replacement")
    assert permitted.perform(action).status is OutcomeStatus.ALREADY
    assert labels_of(cluster, second)["app"] == "chat"
    assert permitted.perform(restore(first)).status is OutcomeStatus.DONE

    def remaining() -> int:
        return sum("deletionTimestamp" not in each["metadata"] for each in cluster.pods(SPACE))

    until(lambda: remaining() == 2, "the ReplicaSet removes the surplus")


def test_a_pod_of_a_stateful_set_never_loses_the_label_that_claims_it(cluster: Cluster) -> None:
    first, _ = workload(cluster, "StatefulSet", {"app": "chat"})
    service(cluster, "chat", app="chat")
    with pytest.raises(ActuationError, match="StatefulSet chat needs every label that Service chat selects by"):
        actuator_of(cluster, TrafficRoute("service", "chat", replace=True)).perform(shift(first))
    assert labels_of(cluster, first)["app"] == "chat"


def test_other_services_that_lose_the_pod_are_named(cluster: Cluster) -> None:
    names = replicas(cluster)
    service(cluster, "chat-metrics", app="chat", **{SERVING: "true"})
    outcome = actuator_of(cluster).perform(shift(names[0]))
    assert "leaves Service chat and Service chat-metrics" in outcome.detail


def test_a_label_that_other_services_need_is_not_taken(cluster: Cluster) -> None:
    for name in ("chat-0", "chat-1"):
        pod(cluster, name, tier="gpu")
    service(cluster, "chat", app="chat", tier="gpu")
    service(cluster, "chat-metrics", app="chat")
    actuator_of(cluster).perform(shift("chat-0"))
    labels = labels_of(cluster, "chat-0")
    assert (labels["app"], "tier" in labels) == ("chat", False)


def test_a_configured_label_is_taken_if_the_service_selects_by_it(cluster: Cluster) -> None:
    replicas(cluster)
    actuator_of(cluster, TrafficRoute("service", "chat", label="app")).perform(shift("chat-0"))
    assert "app" not in labels_of(cluster, "chat-0")
    with pytest.raises(ActuationError, match="does not select by the label tier"):
        actuator_of(cluster, TrafficRoute("service", "chat", label="tier")).perform(shift("chat-1"))


def test_the_last_ready_pod_stays(cluster: Cluster) -> None:
    pod(cluster, "chat-0")
    pod(cluster, "chat-1", ready=False)
    service(cluster, "chat", app="chat")
    with pytest.raises(ActuationError, match="Service chat would have no ready pod left"):
        actuator_of(cluster).perform(shift("chat-0"))
    action = shift("chat-1")
    assert actuator_of(cluster).perform(action).status is OutcomeStatus.DONE
    cluster.delete(f"{PODS}/chat-0", json={"gracePeriodSeconds": 0})
    repeated = actuator_of(cluster).perform(action)
    assert repeated.status is OutcomeStatus.ALREADY, "a repeated action is not judged again"


def test_several_services_need_a_name(cluster: Cluster) -> None:
    for name in ("chat-0", "chat-1"):
        pod(cluster, name)
    for name in ("blue", "green"):
        service(cluster, name, app="chat")
    with pytest.raises(ActuationError, match="several Services select pod chat-0: blue, green"):
        actuator_of(cluster).perform(shift("chat-0"))
    outcome = actuator_of(cluster, TrafficRoute("service", "blue")).perform(shift("chat-0"))
    assert "leaves Service blue and Service green" in outcome.detail


def test_missing_objects_are_named(cluster: Cluster) -> None:
    pod(cluster, "chat-0")
    with pytest.raises(ActuationError, match="no Service selects pod chat-0"):
        actuator_of(cluster).perform(shift("chat-0"))
    with pytest.raises(ActuationError, match="Service traffic/chat-x does not exist"):
        actuator_of(cluster, TrafficRoute("service", "chat-x")).perform(shift("chat-0"))
    gone = actuator_of(cluster).perform(shift("chat-9"))
    assert (gone.status, gone.detail) == (OutcomeStatus.ALREADY, "pod chat-9 no longer exists")
    assert actuator_of(cluster).perform(restore("chat-9")).status is OutcomeStatus.ALREADY


def test_sessions_divert_one_pod_together_and_restore_their_own(cluster: Cluster) -> None:
    replicas(cluster)
    actuator = actuator_of(cluster)
    actuator.perform(shift("chat-0", session="ses-1"))
    with pytest.raises(ActuationError, match="shifted by another session"):
        actuator.perform(restore("chat-0", session="ses-2"))
    assert actuator.perform(shift("chat-0", session="ses-2")).status is OutcomeStatus.DONE
    outcome = actuator.perform(restore("chat-0", session="ses-1"))
    assert "stays out for another session" in outcome.detail
    assert SERVING not in labels_of(cluster, "chat-0")
    assert labels_of(cluster, "chat-0")[SESSION] == "ses-2"
    actuator.perform(restore("chat-0", session="ses-2"))
    assert labels_of(cluster, "chat-0")[SERVING] == "true"


def test_a_label_that_an_operator_gave_back_stays_as_it_is(cluster: Cluster) -> None:
    replicas(cluster)
    actuator, action = actuator_of(cluster), shift("chat-0")
    actuator.perform(action)
    cluster.patch(f"{PODS}/chat-0", {"metadata": {"labels": {SERVING: "shadow"}}})
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    outcome = actuator.perform(restore("chat-0"))
    assert "was changed by hand to shadow; it stays" in outcome.detail
    labels = labels_of(cluster, "chat-0")
    assert (labels[SERVING], OWNER in labels) == ("shadow", False)


def test_a_pod_that_changed_since_it_was_read_is_a_conflict(cluster: Cluster) -> None:
    replicas(cluster)
    (request,) = actuator_of(cluster).requests(shift("chat-0"))
    cluster.patch(f"{PODS}/chat-0", {"metadata": {"labels": {"edited": "meanwhile"}}})
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    with ApiServer(cluster.url, access) as server, pytest.raises(ConflictError):
        server.send(request, dry_run=False)
    assert labels_of(cluster, "chat-0")[SERVING] == "true"


def test_every_pod_of_a_replica_leaves(cluster: Cluster) -> None:
    replicas(cluster)
    target = EntityRef("c", EntityKind.REPLICA, SPACE, "group-0")
    pods = {"service": "chat", "pods": ["chat-0", "chat-1"]}
    actuator = actuator_of(cluster)
    actuator.perform(an_action(ActionKind.SHIFT_TRAFFIC, target, **pods))
    assert [SERVING in labels_of(cluster, f"chat-{number}") for number in range(3)] == [False, False, True]
    actuator.perform(an_action(ActionKind.RESTORE_TRAFFIC, target, service="chat"))
    assert all(SERVING in labels_of(cluster, f"chat-{number}") for number in range(3))


def test_a_selector_has_no_weights(cluster: Cluster) -> None:
    replicas(cluster)
    with pytest.raises(ActuationError, match="a Service has no weights"):
        actuator_of(cluster).perform(shift("chat-0", weight=0.5))
    with pytest.raises(ActuationError, match="a Service has no weights"):
        actuator_of(cluster).perform(an_action(ActionKind.BALANCE_TRAFFIC, CHAT, weights={"chat-0": 50}))
    with pytest.raises(ActuationError, match="traffic of a service cannot be shifted"):
        actuator_of(cluster).perform(an_action(ActionKind.SHIFT_TRAFFIC, CHAT))


def test_an_account_without_the_permission_is_refused(cluster: Cluster) -> None:
    replicas(cluster)
    with pytest.raises(ActuationError, match="403"):
        actuator_of(cluster, token="stranger").perform(shift("chat-0"))
    assert SERVING in labels_of(cluster, "chat-0")


def test_a_pod_leaves_its_inference_pool_and_returns(cluster: Cluster) -> None:
    for name in ("chat-0", "chat-1"):
        pod(cluster, name, **{SERVING: "true"})
    selector = {"matchLabels": {"app": "chat", SERVING: "true"}}
    picker = {"name": "picker", "port": {"number": 9002}}
    spec = {"selector": selector, "targetPorts": [{"number": 8000}], "endpointPickerRef": picker}
    kind = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    cluster.create(POOLS, {**kind, "metadata": {"name": "llama"}, "spec": spec})
    actuator, action = actuator_of(cluster, POOL), shift("chat-0")
    outcome = actuator.perform(action)
    assert outcome.detail == f"pod chat-0 leaves InferencePool llama: it loses the label {SERVING}"
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    with pytest.raises(ActuationError, match="InferencePool llama would have no ready pod left"):
        actuator.perform(shift("chat-1"))
    assert actuator.perform(restore("chat-0")).status is OutcomeStatus.DONE
    assert labels_of(cluster, "chat-0")[SERVING] == "true"


def test_a_pod_without_a_pool_is_refused(cluster: Cluster) -> None:
    pod(cluster, "chat-0")
    with pytest.raises(ActuationError, match="no InferencePool selects pod chat-0"):
        actuator_of(cluster, POOL).perform(shift("chat-0"))
