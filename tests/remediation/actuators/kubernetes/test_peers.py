"""Nodes, pods and workloads of other programs on a real control plane: left alone, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.kubernetes.nodes import TAINT
from remediation.actuators.kubernetes.ownership import OWNER
from remediation.actuators.replica_owner import check_not_paused
from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE, an_action, node_ref, pod_ref, service_ref
from tests.support.kube_scene import deployment, run_all, template
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
A, NODE = node_ref("acting-a"), "/api/v1/nodes/acting-a"
ROLLOUTS = f"/apis/argoproj.io/v1alpha1/namespaces/{SPACE}/rollouts"
QUARANTINED = {"quarantineHealthEventIsCordoned": "True"}  # NVSentinel's fault-quarantine


def node(cluster: Cluster) -> dict[str, Any]:
    return cluster.get(NODE)


@pytest.mark.parametrize(
    ("taint", "owner"),
    [("ToBeDeletedByClusterAutoscaler", "cluster-autoscaler"), ("karpenter.sh/disrupted", "Karpenter")],
)
def test_a_node_that_an_autoscaler_removes_is_not_cordoned(
    cluster: Cluster, actuator: KubernetesActuator, taint: str, owner: str
) -> None:
    cluster.patch(NODE, {"spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]}})
    outcome = actuator.perform(an_action(ActionKind.CORDON, A))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.ALREADY, f"node acting-a is left to {owner}")
    assert OWNER not in node(cluster)["metadata"]["labels"]


def test_a_node_that_nvsentinel_quarantined_after_us_stays_out_without_our_marks(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    actuator.perform(an_action(ActionKind.CORDON, A))
    cluster.patch(NODE, {"metadata": {"annotations": QUARANTINED}})
    outcome = actuator.perform(an_action(ActionKind.UNCORDON, A))
    assert (outcome.status, outcome.detail) == (
        OutcomeStatus.DONE,
        "node acting-a is left to NVSentinel, without our marks",
    )
    assert node(cluster)["spec"]["unschedulable"] is True
    assert TAINT not in {taint["key"] for taint in node(cluster)["spec"].get("taints") or ()}
    assert OWNER not in node(cluster)["metadata"]["labels"]
    assert actuator.perform(an_action(ActionKind.UNCORDON, A)).status is OutcomeStatus.ALREADY


@pytest.fixture
def protected_pod(cluster: Cluster) -> dict[str, Any]:
    """A ready pod on acting-a that must not be disrupted, beside one that may be."""
    cluster.patch("/api/v1/nodes/acting-b", {"spec": {"unschedulable": True}})
    deployment(cluster, SPACE, 2, template=template(gpus=1))
    run_all(cluster, SPACE, 2)
    cluster.patch("/api/v1/nodes/acting-b", {"spec": {"unschedulable": None}})
    name = cluster.pods(SPACE)[0]["metadata"]["name"]
    notes = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    return cluster.patch(f"/api/v1/namespaces/{SPACE}/pods/{name}", {"metadata": {"annotations": notes}})


def ending(cluster: Cluster) -> set[str]:
    pods = cluster.pods(SPACE)
    return {str(pod["metadata"]["name"]) for pod in pods if pod["metadata"].get("deletionTimestamp")}


def test_a_protected_pod_is_restarted_only_after_an_approval(
    cluster: Cluster, actuator: KubernetesActuator, protected_pod: dict[str, Any]
) -> None:
    name = protected_pod["metadata"]["name"]
    restart = an_action(ActionKind.RESTART_POD, pod_ref(name))
    with pytest.raises(ActuationError, match="safe-to-evict=false"):
        actuator.perform(restart)
    assert ending(cluster) == set()
    assert actuator.perform(replace(restart, approved_by="alice")).status is OutcomeStatus.DONE
    assert ending(cluster) == {name}


def test_a_drain_without_approval_names_the_protected_pod_and_leaves_it(
    cluster: Cluster, actuator: KubernetesActuator, protected_pod: dict[str, Any]
) -> None:
    name = protected_pod["metadata"]["name"]
    outcome = actuator.perform(an_action(ActionKind.DRAIN, A))
    assert f"1 pod is evicted; protected, not evicted: {SPACE}/{name}" in outcome.detail
    assert ending(cluster) == {pod["metadata"]["name"] for pod in cluster.pods(SPACE)} - {name} - replacements(cluster)


def replacements(cluster: Cluster) -> set[str]:
    """Returns the names of pods that do not run yet."""
    return {str(pod["metadata"]["name"]) for pod in cluster.pods(SPACE) if pod["status"]["phase"] == "Pending"}


def test_a_workload_of_argo_cd_is_not_rolled_back(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = deployment(cluster, SPACE, template=template("vllm:good"))
    until(lambda: "annotations" in cluster.get(path)["metadata"], "the first revision is known")
    tracked = {"argocd.argoproj.io/tracking-id": f"serving:apps/Deployment:{SPACE}/chat"}
    cluster.patch(path, {"metadata": {"annotations": tracked}, "spec": {"template": template("vllm:bad")}})
    with pytest.raises(ActuationError, match="Argo CD application serving, which would revert it"):
        actuator.perform(an_action(ActionKind.ROLLBACK, service_ref("chat-70b"), workloads=["Deployment/chat"]))


@pytest.mark.parametrize("key", ["autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"])
def test_a_paused_scaled_object_is_not_changed(key: str) -> None:
    with pytest.raises(ActuationError, match=f"is paused by {key}"):
        check_not_paused({"metadata": {"annotations": {key: "2"}}}, "scaledobjects/chat")
    check_not_paused({"metadata": {"annotations": {key: "false"}}}, "scaledobjects/chat")
    check_not_paused({"metadata": {}}, "scaledobjects/chat")


# --- Argo Rollouts ------------------------------------------------------------------------------------


@pytest.fixture
def rollout(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """A Rollout with a stable and a new ReplicaSet, as its controller leaves them in the middle of a canary."""
    names = {"plural": "rollouts", "singular": "rollout", "kind": "Rollout"}
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": anything, "subresources": {"status": {}}}
    crd = {
        "metadata": {"name": "rollouts.argoproj.io"},
        "spec": {"group": "argoproj.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if cluster.http.get(f"{definitions}/rollouts.argoproj.io").status_code == 404:
        cluster.create(definitions, crd)
    until(lambda: cluster.http.get(ROLLOUTS).is_success, "the API server knows Rollouts")
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "chat"}}, "template": template("vllm:bad")}
    meta = {"name": "chat", "annotations": {"rollout.argoproj.io/revision": "2"}}
    created = cluster.create(
        ROLLOUTS, {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": meta, "spec": spec}
    )
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "chat", "controller": True}
    for revision, (image, digest) in enumerate((("vllm:good", "aaa"), ("vllm:bad", "bbb")), start=1):
        labels = {"app": "chat", "rollouts-pod-template-hash": digest}
        pods = template(image)
        pods["metadata"]["labels"] |= labels
        replica_set = {
            "metadata": {
                "name": f"chat-{digest}",
                "labels": labels,
                "annotations": {"rollout.argoproj.io/revision": str(revision)},
                "ownerReferences": [{**owner, "uid": created["metadata"]["uid"]}],
            },
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pods},
        }
        cluster.create(f"/apis/apps/v1/namespaces/{SPACE}/replicasets", replica_set)
    status = {"status": {"stableRS": "aaa", "currentPodHash": "bbb", "abort": True}}
    cluster.patch(f"{ROLLOUTS}/chat/status", status, by="rollouts-controller")
    yield created
    cluster.delete(f"{ROLLOUTS}/chat")


def on_rollout(kind: ActionKind, **more: Any) -> Any:
    return an_action(kind, service_ref("chat-70b"), workloads=["Rollout/chat"], **more)


def test_a_rollout_returns_to_its_stable_template(
    cluster: Cluster, actuator: KubernetesActuator, rollout: dict[str, Any]
) -> None:
    outcome = actuator.perform(on_rollout(ActionKind.ROLLBACK))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "Rollout chat is rolled back to revision 1")
    restored = cluster.get(f"{ROLLOUTS}/chat")["spec"]["template"]
    assert restored["spec"]["containers"][0]["image"] == "vllm:good"
    assert "rollouts-pod-template-hash" not in restored["metadata"]["labels"]


def test_a_rollout_that_takes_its_template_elsewhere_is_refused_by_name(
    cluster: Cluster, actuator: KubernetesActuator, rollout: dict[str, Any]
) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-template"}
    cluster.patch(f"{ROLLOUTS}/chat", {"spec": {"template": None, "workloadRef": reference}})
    with pytest.raises(ActuationError, match="takes its template from Deployment chat-template"):
        actuator.perform(on_rollout(ActionKind.ROLLBACK))


def test_a_rollout_is_paused_and_resumed_but_not_that_of_an_operator(
    cluster: Cluster, actuator: KubernetesActuator, rollout: dict[str, Any]
) -> None:
    assert actuator.perform(on_rollout(ActionKind.PAUSE_ROLLOUT)).status is OutcomeStatus.DONE
    assert cluster.get(f"{ROLLOUTS}/chat")["spec"]["paused"] is True
    assert actuator.perform(on_rollout(ActionKind.RESUME_ROLLOUT)).status is OutcomeStatus.DONE
    cluster.patch(f"{ROLLOUTS}/chat", {"spec": {"paused": True}})
    with pytest.raises(ActuationError, match="is paused"):
        actuator.perform(on_rollout(ActionKind.ROLLBACK))
    assert "stays paused by someone else" in actuator.perform(on_rollout(ActionKind.RESUME_ROLLOUT)).detail
    assert cluster.get(f"{ROLLOUTS}/chat")["spec"]["paused"] is True


def test_a_second_rollback_of_a_completed_rollout_is_refused(
    cluster: Cluster, actuator: KubernetesActuator, rollout: dict[str, Any]
) -> None:
    assert actuator.perform(on_rollout(ActionKind.ROLLBACK)).status is OutcomeStatus.DONE
    numbered = {"metadata": {"annotations": {"rollout.argoproj.io/revision": "3"}}}
    cluster.patch(f"/apis/apps/v1/namespaces/{SPACE}/replicasets/chat-aaa", numbered, by="rollouts-controller")
    cluster.patch(f"{ROLLOUTS}/chat", numbered, by="rollouts-controller")
    status = {"status": {"stableRS": "aaa", "currentPodHash": "aaa", "abort": None}}
    cluster.patch(f"{ROLLOUTS}/chat/status", status, by="rollouts-controller")
    with pytest.raises(ActuationError, match="was rolled back already by session ses-1"):
        actuator.perform(on_rollout(ActionKind.ROLLBACK, session="ses-2"))
    restored = cluster.get(f"{ROLLOUTS}/chat")["spec"]["template"]
    assert restored["spec"]["containers"][0]["image"] == "vllm:good"
