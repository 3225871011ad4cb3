"""Marks of other programs on nodes, pods and workloads, and conditions that they report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from collectors.events import node_problems
from collectors.kubernetes.nodes import node_changes
from collectors.kubernetes.objects import AUTOSCALERS, DEPLOYMENTS, NODES, PODS, ObjectChange, Objects
from collectors.kubernetes.peers import node_owners, replicas_owners, template_owner
from collectors.kubernetes.pods import pod_facts
from collectors.kubernetes.topology import graph
from outrider.clock import rfc3339
from outrider.model import EntityKind, EntityRef, EventKind
from tests.support.kube_replicas import replicas_of

AT = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def node(annotations=None, taints=(), labels=None, conditions=(), **meta):
    return {
        "metadata": {"name": "n", "uid": "n", "labels": labels or {}, "annotations": annotations or {}, **meta},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"conditions": list(conditions)},
    }


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (node(), {}),
        (node(taints=["DeletionCandidateOfClusterAutoscaler"]), {}),  # a candidate may still stay
        (node(taints=["ToBeDeletedByClusterAutoscaler"]), {"removed_by": "cluster-autoscaler"}),
        (node(taints=["karpenter.sh/disrupted"]), {"removed_by": "Karpenter"}),
        (node(deletionTimestamp="2026-11-23T12:00:00Z"), {"removed_by": "its deletion"}),
        (node({"quarantineHealthEventIsCordoned": "True"}), {"quarantined_by": "NVSentinel"}),
        (node(labels={"k8s.nvidia.com/cordon-by": "NVSentinel"}), {"quarantined_by": "NVSentinel"}),
        (node({"karpenter.sh/do-not-disrupt": "true"}), {"protected_by": "karpenter.sh/do-not-disrupt=true"}),
        (
            node({"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}),
            {"protected_by": "cluster-autoscaler.kubernetes.io/scale-down-disabled=true"},
        ),
        (node({"karpenter.sh/do-not-disrupt": "false"}), {}),
    ],
)
def test_owners_of_nodes(document, expected):
    assert node_owners(document) == expected


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, ""),
        (
            {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            "cluster-autoscaler.kubernetes.io/safe-to-evict=false",
        ),
        ({"karpenter.sh/do-not-disrupt": "30m"}, "karpenter.sh/do-not-disrupt=30m"),
    ],
)
def test_protected_pods(notes, expected):
    facts = pod_facts({"metadata": {"name": "p", "namespace": "s", "annotations": notes}})
    assert facts.protected_by == expected
    assert facts.facts().get("protected_by", "") == expected


def test_owners_of_templates():
    def owner(**meta):
        return template_owner({"metadata": {"name": "chat", **meta}})

    assert owner() == ""
    tracked = {"argocd.argoproj.io/tracking-id": "serving:apps/Deployment:s/chat"}
    assert owner(annotations=tracked) == "Argo CD application serving"
    assert owner(labels={"kustomize.toolkit.fluxcd.io/name": "apps"}) == "Flux Kustomization apps"
    assert owner(ownerReferences=[{"kind": "InferenceService", "name": "m"}]) == "InferenceService m"
    assert template_owner({"metadata": {}, "managers": {"argocd-controller|Apply|": ""}}) == "argocd-controller"


def test_the_owner_of_replicas_is_the_scaled_object_behind_its_autoscaler():
    target = {"scaleTargetRef": {"kind": "Deployment", "name": "chat"}}
    plain = {"metadata": {"namespace": "s", "name": "chat"}, "spec": target}
    assert replicas_owners([plain]) == {("s", "Deployment", "chat"): "HorizontalPodAutoscaler chat"}
    owner = [{"kind": "ScaledObject", "name": "chat-so", "controller": True}]
    of_keda = {"metadata": {**plain["metadata"], "ownerReferences": owner}, "spec": target}
    assert replicas_owners([of_keda]) == {("s", "Deployment", "chat"): "ScaledObject chat-so"}


def test_owners_of_a_workload_are_labels_of_its_replicas():
    pod = {
        "metadata": {
            "name": "chat-abc-1",
            "namespace": "s",
            "uid": "u",
            "labels": {"pod-template-hash": "abc", "app.kubernetes.io/name": "chat"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-abc", "controller": True}],
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
    tracked = {"argocd.argoproj.io/tracking-id": "serving:apps/Deployment:s/chat"}
    workload = {"metadata": {"name": "chat", "namespace": "s", "uid": "d", "annotations": tracked}}
    scaler = {
        "metadata": {"name": "chat", "namespace": "s", "uid": "h"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "chat"}},
    }
    objects = Objects.of([(NODES, node()), (PODS, pod), (DEPLOYMENTS, workload), (AUTOSCALERS, scaler)])
    labels = graph(objects, replicas_of(objects), "c").labels[EntityRef("c", EntityKind.REPLICA, "s", "chat-abc-1")]
    assert labels["template_owner"] == "Argo CD application serving"
    assert labels["replicas_owner"] == "HorizontalPodAutoscaler chat"


def test_a_pod_of_an_argo_rollout_belongs_to_it():
    owner = [{"kind": "ReplicaSet", "name": "chat-5d9", "controller": True}]
    labels = {"rollouts-pod-template-hash": "5d9"}
    facts = pod_facts({"metadata": {"name": "p", "namespace": "s", "labels": labels, "ownerReferences": owner}})
    assert (facts.owner_kind, facts.workload) == ("Rollout", "chat")


def condition(kind, status="True", message="", ago=timedelta(seconds=5), reason="Bad"):
    since = rfc3339(AT - ago)
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def events(before, after):
    return node_changes([ObjectChange(before, after)], "c", AT)


def test_a_condition_of_an_agent_that_becomes_true_is_an_event_once():
    quiet = node(conditions=[condition("Ready"), condition("KernelDeadlock", "False")])
    bad = node(conditions=[condition("Ready"), condition("KernelDeadlock", message="task hung", reason="DockerHung")])
    (event,) = events(quiet, bad)
    assert (event.kind, event.code, event.entity.name) == (EventKind.KUBERNETES, "KernelDeadlock", "n")
    assert event.attributes == {"text": "task hung", "type": "Warning", "condition": "DockerHung"}
    assert events(bad, bad) == []
    assert events(bad, quiet) == [], "recovery is not a problem"
    assert [event.code for event in events({}, bad)] == ["KernelDeadlock"]
    old = node(conditions=[condition("KernelDeadlock", ago=timedelta(days=2))])
    assert events({}, old) == [], "an old condition was reported when it was new"
    pressure = node(conditions=[condition("MemoryPressure"), condition("Ready", "False")])
    assert events(quiet, pressure) == [], "the kubelet's own conditions are signals"


def test_an_xid_condition_of_nvsentinel_is_that_xid():
    message = "ErrorCode:79 PCI:0000:17:00.0 GPU has fallen off the bus Recommended Action=RESTART_BM;"
    (event,) = events(node(), node(conditions=[condition("SysLogsXIDError", message=message)]))
    read = node_problems.read(event)
    assert (read.kind, read.code, read.pci) == (EventKind.XID, "79", "0000:17:00.0")
    switch = "ErrorCode:28002 Therm Warn Deactivated Recommended Action=NONE;"
    (event,) = events(node(), node(conditions=[condition("SysLogsSXIDError", message=switch)]))
    assert node_problems.read(event).kind is EventKind.KUBERNETES
