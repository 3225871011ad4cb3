"""Cordon, un-cordon and drain on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.kubernetes.nodes import TAINT
from remediation.actuators.kubernetes.ownership import ACTION, INCIDENT, OWNER, SESSION
from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE, an_action, node_ref
from tests.support.kube_scene import deployment, run_all, template
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
NODE = "/api/v1/nodes/acting-a"
A = node_ref("acting-a")
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def node(cluster: Cluster) -> dict[str, Any]:
    return cluster.get(NODE)


def without_marks_of_the_server(node: dict[str, Any]) -> dict[str, Any]:
    """The spec of a node without the taints that the control plane sets and removes in its own time."""
    taints = [taint for taint in node["spec"].get("taints", []) if not taint["key"].startswith("node.kubernetes.io/")]
    return {**node["spec"], "taints": taints}


def place(cluster: Cluster, replicas: int, **spec: Any) -> list[dict[str, Any]]:
    """Runs ready pods of a Deployment on node acting-a."""
    cluster.patch("/api/v1/nodes/acting-b", {"spec": {"unschedulable": True}})
    deployment(cluster, SPACE, replicas, template=template(gpus=1, **spec))
    run_all(cluster, SPACE, replicas)
    cluster.patch("/api/v1/nodes/acting-b", {"spec": {"unschedulable": None}})
    return cluster.pods(SPACE)


def test_a_node_that_monitoring_lost_stays_cordoned(cluster: Cluster, actuator: KubernetesActuator) -> None:
    """The un-cordon of a deleted node must not return a broken one that is only not reported."""
    actuator.perform(an_action(ActionKind.CORDON, A))
    with pytest.raises(ActuationError, match="node acting-a exists; it stays cordoned"):
        actuator.perform(an_action(ActionKind.UNCORDON, A, deleted=True))
    assert node(cluster)["spec"]["unschedulable"] is True


def test_the_uncordon_of_a_deleted_node_is_done(cluster: Cluster, actuator: KubernetesActuator) -> None:
    actuator.perform(an_action(ActionKind.CORDON, A))
    cluster.delete(NODE)
    outcome = actuator.perform(an_action(ActionKind.UNCORDON, A, deleted=True))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.ALREADY, "node acting-a no longer exists")
    cluster.node("acting-a", pool="acting")
    outcome = actuator.perform(an_action(ActionKind.UNCORDON, A, deleted=True))
    assert outcome.detail == "node acting-a is already schedulable", "another one under its name is not ours"


def test_a_cordon_marks_the_node_and_an_uncordon_removes_every_mark(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    before = node(cluster)
    cordon = an_action(ActionKind.CORDON, A)
    assert actuator.perform(cordon).status is OutcomeStatus.DONE
    cordoned = node(cluster)
    assert cordoned["spec"]["unschedulable"] is True
    assert {taint["key"]: taint["effect"] for taint in cordoned["spec"]["taints"]}[TAINT] == "NoSchedule"
    labels, notes = cordoned["metadata"]["labels"], cordoned["metadata"]["annotations"]
    assert (labels[OWNER], labels[SESSION], labels[INCIDENT]) == ("outrider", "ses-1", "inc-1")
    assert notes[ACTION] == cordon.id
    assert actuator.perform(cordon).status is OutcomeStatus.ALREADY
    assert actuator.requests(cordon) == ()

    assert actuator.perform(an_action(ActionKind.UNCORDON, A)).status is OutcomeStatus.DONE
    until(lambda: not node(cluster)["spec"].get("taints"), "the node has no taint")
    after = node(cluster)
    assert "unschedulable" not in after["spec"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert ACTION not in after["metadata"].get("annotations", {})
    assert actuator.perform(an_action(ActionKind.UNCORDON, A)).status is OutcomeStatus.ALREADY


def test_taints_of_others_are_kept(cluster: Cluster, actuator: KubernetesActuator) -> None:
    own = {"key": "dedicated", "value": "llm", "effect": "NoSchedule"}
    cluster.patch(NODE, {"spec": {"taints": [own]}})
    actuator.perform(an_action(ActionKind.CORDON, A))
    assert own in node(cluster)["spec"]["taints"]
    actuator.perform(an_action(ActionKind.UNCORDON, A))
    assert own in node(cluster)["spec"]["taints"]
    assert TAINT not in {taint["key"] for taint in node(cluster)["spec"]["taints"]}


def test_a_node_cordoned_by_someone_else_stays_theirs(cluster: Cluster, actuator: KubernetesActuator) -> None:
    cluster.patch(NODE, {"spec": {"unschedulable": True}})
    outcome = actuator.perform(an_action(ActionKind.CORDON, A))
    assert outcome.status is OutcomeStatus.ALREADY
    assert "someone else" in outcome.detail
    assert OWNER not in node(cluster)["metadata"]["labels"]
    undone = actuator.perform(an_action(ActionKind.UNCORDON, A))
    assert (undone.status, "stays theirs" in undone.detail) == (OutcomeStatus.ALREADY, True)
    assert node(cluster)["spec"]["unschedulable"] is True


def test_a_session_does_not_uncordon_the_node_of_another_session(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    actuator.perform(an_action(ActionKind.CORDON, A, session="ses-1"))
    with pytest.raises(ActuationError, match="another session"):
        actuator.perform(an_action(ActionKind.UNCORDON, A, session="ses-2"))
    assert node(cluster)["spec"]["unschedulable"] is True


def test_a_node_uncordoned_by_hand_only_loses_our_marks(cluster: Cluster, actuator: KubernetesActuator) -> None:
    actuator.perform(an_action(ActionKind.CORDON, A))
    cluster.patch(NODE, {"spec": {"unschedulable": None, "taints": None}})
    assert actuator.perform(an_action(ActionKind.UNCORDON, A)).status is OutcomeStatus.DONE
    assert OWNER not in node(cluster)["metadata"]["labels"]


def test_a_node_that_vanishes_needs_nothing(cluster: Cluster, actuator: KubernetesActuator) -> None:
    gone = node_ref("acting-gone")
    for kind in (ActionKind.CORDON, ActionKind.DRAIN, ActionKind.UNCORDON):
        outcome = actuator.perform(an_action(kind, gone))
        assert (outcome.status, outcome.detail) == (OutcomeStatus.ALREADY, "node acting-gone no longer exists")


def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(cluster: Cluster, actuator: KubernetesActuator) -> None:
    place(cluster, 2)
    before = node(cluster)
    for kind in (ActionKind.CORDON, ActionKind.DRAIN):
        action = an_action(kind, A, dry_run=True)
        assert actuator.requests(action)
        assert actuator.perform(action).status is OutcomeStatus.DRY_RUN
    after = node(cluster)
    assert without_marks_of_the_server(after) == without_marks_of_the_server(before)
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in cluster.pods(SPACE))


def test_a_drain_evicts_all_pods_that_are_recreated_elsewhere(cluster: Cluster, actuator: KubernetesActuator) -> None:
    place(cluster, 3)
    bare = {"metadata": {"name": "bare"}, "spec": {**template(gpus=1)["spec"], "nodeName": "acting-a"}}
    cluster.create(f"/api/v1/namespaces/{SPACE}/pods", bare)
    drain = an_action(ActionKind.DRAIN, A)
    first = actuator.perform(drain)
    assert first.status is OutcomeStatus.IN_PROGRESS
    assert "3 pods are evicted; without a controller, not evicted: acting/bare" in first.detail
    assert node(cluster)["spec"]["unschedulable"] is True

    def on_node() -> list[str]:
        return [
            pod["metadata"]["name"] for pod in cluster.pods(SPACE) if pod["spec"].get("nodeName") == "acting-a"
        ]  # fmt: skip

    for pod in cluster.pods(SPACE):  # the kubelet confirms the end of each
        if pod["metadata"].get("deletionTimestamp"):
            path = f"/api/v1/namespaces/{SPACE}/pods/{pod['metadata']['name']}"
            cluster.delete(path, json={"gracePeriodSeconds": 0})
    until(lambda: on_node() == ["bare"], "the evicted pods are gone")
    assert actuator.perform(drain).status is OutcomeStatus.ALREADY
    placed = cluster.scheduled(SPACE, 4)
    assert {pod["spec"]["nodeName"] for pod in placed if pod["metadata"]["name"] != "bare"} == {"acting-b"}


def test_a_disruption_budget_delays_a_drain_and_is_named(cluster: Cluster, actuator: KubernetesActuator) -> None:
    place(cluster, 2)
    budget = {"minAvailable": 2, "selector": {"matchLabels": {"app": "chat"}}}
    budgets = f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"
    cluster.create(budgets, {"metadata": {"name": "chat"}, "spec": budget})
    until(lambda: cluster.get(f"{budgets}/chat")["status"].get("currentHealthy") == 2, "the budget counts its pods")
    outcome = actuator.perform(an_action(ActionKind.DRAIN, A))
    assert outcome.status is OutcomeStatus.IN_PROGRESS
    assert "disruption budget" in outcome.detail
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in cluster.pods(SPACE))


def ending(cluster: Cluster) -> set[str]:
    pods = cluster.pods(SPACE)
    return {pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")}


def test_a_pod_with_two_budgets_does_not_stop_the_evictions_of_others(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    first, *others = sorted(pod["metadata"]["name"] for pod in place(cluster, 3))
    cluster.patch(f"/api/v1/namespaces/{SPACE}/pods/{first}", {"metadata": {"labels": {"also": "yes"}}})
    budgets = f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"
    for name, labels, count in (("chat", {"app": "chat"}, 3), ("also", {"also": "yes"}, 1)):
        spec = {"minAvailable": 0, "selector": {"matchLabels": labels}}
        cluster.create(budgets, {"metadata": {"name": name}, "spec": spec})
        path = f"{budgets}/{name}"
        until(
            lambda path=path, count=count: cluster.get(path)["status"].get("currentHealthy") == count,  # type: ignore[misc]
            "the budget counts its pods",
        )
    drain = an_action(ActionKind.DRAIN, A)
    outcome = actuator.perform(drain)
    assert (outcome.status, "more than one PodDisruptionBudget" in outcome.detail) == (OutcomeStatus.IN_PROGRESS, True)
    assert ending(cluster) == set(others)
    with pytest.raises(ActuationError, match="more than one PodDisruptionBudget") as refused:
        actuator.perform(drain)  # no other pod is left to evict
    assert refused.value.retryable


@pytest.fixture
def protecting_policy(cluster: Cluster) -> Iterator[str]:
    """Admission that refuses evictions of the first of three pods on acting-a; returns its name."""
    name = min(pod["metadata"]["name"] for pod in place(cluster, 3))
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
    validation = {"expression": f"request.name != '{name}'", "message": "this pod stays"}
    meta = {"name": "acting-evictions"}
    cluster.create(
        f"{ADMISSION}/validatingadmissionpolicies",
        {"metadata": meta, "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}},
    )
    cluster.create(
        f"{ADMISSION}/validatingadmissionpolicybindings",
        {"metadata": meta, "spec": {"policyName": "acting-evictions", "validationActions": ["Deny"]}},
    )
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": SPACE}}
    path = f"/api/v1/namespaces/{SPACE}/pods/{name}/eviction"
    until(
        lambda: cluster.http.post(path, json=eviction, params={"dryRun": "All"}).status_code == 422,
        "the policy is in force",
    )
    yield name
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        cluster.delete(f"{ADMISSION}/{kind}/acting-evictions")


def test_a_pod_that_may_not_be_evicted_fails_the_drain_after_the_others(
    cluster: Cluster, actuator: KubernetesActuator, protecting_policy: str
) -> None:
    others = {pod["metadata"]["name"] for pod in cluster.pods(SPACE)} - {protecting_policy}
    drain = an_action(ActionKind.DRAIN, A)
    outcome = actuator.perform(drain)
    assert (outcome.status, "this pod stays" in outcome.detail) == (OutcomeStatus.IN_PROGRESS, True)
    assert ending(cluster) == others
    with pytest.raises(ActuationError, match="this pod stays") as refused:
        actuator.perform(drain)
    assert not refused.value.retryable


def test_pods_of_daemon_sets_and_finished_pods_stay(cluster: Cluster, actuator: KubernetesActuator) -> None:
    spec = {"selector": {"matchLabels": {"app": "agent"}}}
    labels = {"metadata": {"labels": {"app": "agent"}}}
    agent = {
        **labels,
        "spec": {"containers": [{"name": "agent", "image": "agent"}], "nodeSelector": {"pool": "acting"}},
    }
    cluster.create(
        f"/apis/apps/v1/namespaces/{SPACE}/daemonsets",
        {"metadata": {"name": "agent"}, "spec": {**spec, "template": agent}},
    )
    cluster.scheduled(SPACE, 2)
    outcome = actuator.perform(an_action(ActionKind.DRAIN, A))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "node acting-a is drained")
    assert len(cluster.pods(SPACE)) == 2
