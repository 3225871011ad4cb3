"""Restarts and deletions of pods on a real control plane."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from outrider.clock import ManualClock, SystemClock
from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE, an_action, pod_ref
from tests.support.kube_scene import deployment, run, run_all, template
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
PODS = f"/api/v1/namespaces/{SPACE}/pods"


def names(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.pods(SPACE) if not pod["metadata"].get("deletionTimestamp")}


def budget(cluster: Cluster, least: int) -> None:
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": "chat"}}}
    budgets = f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"
    cluster.create(budgets, {"metadata": {"name": "chat"}, "spec": spec})
    until(lambda: bool(cluster.get(f"{budgets}/chat")["status"].get("expectedPods")), "the budget counts its pods")


def restart_of(pod: dict[str, Any], **params: Any) -> Any:
    return an_action(ActionKind.RESTART_POD, pod_ref(pod["metadata"]["name"]), **params)


def test_a_ready_pod_is_evicted_and_recreated_once(cluster: Cluster, actuator: KubernetesActuator) -> None:
    deployment(cluster, SPACE, 2, template=template(gpus=1))
    run_all(cluster, SPACE, 2)
    pod = cluster.pods(SPACE)[0]
    action = restart_of(pod, uid=pod["metadata"]["uid"])
    assert [request.url.rsplit("/", 1)[1] for request in actuator.requests(action)] == ["eviction"]
    assert actuator.perform(action).status is OutcomeStatus.DONE
    until(lambda: len(names(cluster)) == 2 and pod["metadata"]["name"] not in names(cluster), "the pod is replaced")
    assert actuator.perform(action).status is OutcomeStatus.ALREADY


def test_a_disruption_budget_protects_ready_pods_only(cluster: Cluster, actuator: KubernetesActuator) -> None:
    deployment(cluster, SPACE, 2, template=template(gpus=1))
    healthy, broken = cluster.scheduled(SPACE, 2)
    run(cluster, healthy)
    budget(cluster, 1)
    held = actuator.perform(restart_of(healthy))
    assert held.status is OutcomeStatus.IN_PROGRESS
    assert "disruption budget" in held.detail
    assert actuator.perform(restart_of(broken)).status is OutcomeStatus.DONE
    until(lambda: broken["metadata"]["name"] not in names(cluster), "the pod is gone")
    assert healthy["metadata"]["name"] in names(cluster)


def test_the_new_pod_of_a_stateful_set_is_not_restarted_again(cluster: Cluster, actuator: KubernetesActuator) -> None:
    sets = f"/apis/apps/v1/namespaces/{SPACE}/statefulsets"
    spec = {"selector": {"matchLabels": {"app": "chat"}}, "serviceName": "chat", "template": template(gpus=1)}
    cluster.create(sets, {"metadata": {"name": "chat"}, "spec": {**spec, "replicas": 1}})
    old = cluster.scheduled(SPACE, 1)[0]
    run(cluster, old)
    by_uid, by_age = restart_of(old, uid=old["metadata"]["uid"]), restart_of(old)
    assert actuator.perform(by_uid).status is OutcomeStatus.DONE
    cluster.delete(f"{PODS}/chat-0", json={"gracePeriodSeconds": 0})
    until(
        lambda: {pod["metadata"]["uid"] for pod in cluster.pods(SPACE)} - {old["metadata"]["uid"]}, "the new pod exists"
    )
    new = cluster.pods(SPACE)[0]["metadata"]
    assert new["name"] == "chat-0"
    decided_earlier = replace(by_age, decided_at=by_age.decided_at - timedelta(minutes=1))
    assert actuator.perform(by_uid).status is OutcomeStatus.ALREADY
    assert actuator.perform(decided_earlier).status is OutcomeStatus.ALREADY
    assert cluster.pods(SPACE)[0]["metadata"]["uid"] == new["uid"]


def test_a_pod_without_a_controller_is_not_deleted(cluster: Cluster, actuator: KubernetesActuator) -> None:
    cluster.create(PODS, {"metadata": {"name": "bare"}, "spec": template(gpus=1)["spec"]})
    with pytest.raises(ActuationError, match="no controller"):
        actuator.perform(an_action(ActionKind.RESTART_POD, pod_ref("bare")))
    assert names(cluster) == {"bare"}


def test_a_stuck_pod_is_deleted_only_after_its_grace_period(cluster: Cluster) -> None:
    deployment(cluster, SPACE, 1, template=template(gpus=1))
    pod = cluster.scheduled(SPACE, 1)[0]
    run(cluster, pod)
    name = pod["metadata"]["name"]
    clock = ManualClock(SystemClock().now())
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    actuator = KubernetesActuator(cluster.url, access, clock=clock)
    action = an_action(ActionKind.DELETE_STUCK_POD, pod_ref(name), uid=pod["metadata"]["uid"])
    with pytest.raises(ActuationError, match="not being deleted"):
        actuator.perform(action)
    cluster.delete(f"{PODS}/{name}", json={"gracePeriodSeconds": 30})
    assert actuator.perform(action).status is OutcomeStatus.IN_PROGRESS
    clock.advance(timedelta(seconds=95))
    assert actuator.perform(action).status is OutcomeStatus.DONE
    until(lambda: all(other["metadata"]["name"] != name for other in cluster.pods(SPACE)), "the pod is gone")
    assert actuator.perform(action).status is OutcomeStatus.ALREADY


def test_a_stuck_pod_of_a_stateful_set_waits_for_the_end_of_its_node(cluster: Cluster) -> None:
    sets = f"/apis/apps/v1/namespaces/{SPACE}/statefulsets"
    spec = {"selector": {"matchLabels": {"app": "chat"}}, "serviceName": "chat", "template": template(gpus=1)}
    cluster.create(sets, {"metadata": {"name": "chat"}, "spec": {**spec, "replicas": 1}})
    pod = cluster.scheduled(SPACE, 1)[0]
    run(cluster, pod)
    cluster.delete(f"{PODS}/chat-0", json={"gracePeriodSeconds": 30})
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    later = ManualClock(SystemClock().now() + timedelta(minutes=5))
    actuator = KubernetesActuator(cluster.url, access, clock=later)
    with pytest.raises(ActuationError, match="belongs to a StatefulSet"):
        actuator.perform(an_action(ActionKind.DELETE_STUCK_POD, pod_ref("chat-0")))
    assert cluster.pods(SPACE)[0]["metadata"]["uid"] == pod["metadata"]["uid"]
