"""An engine's image on nodes before its pods are: as Jobs that end, or as a DaemonSet that stays.

Jobs suit one rollout: the nodes are known, each pulls once, and nothing is left behind. A DaemonSet suits nodes that
come and go: one that joins pulls at once, for a small pod on each node for good. Neither asks for a GPU. Documents
are Kubernetes objects as plain values (Kubernetes 1.29 or newer); nothing is sent from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from outrider.errors import UsageError
from planner.manifests import kube_gpus
from planner.manifests.kube_names import LABEL, PART_OF, name_of, short

Document = Mapping[str, Any]
Kind = Literal["job", "daemonset"]

PRIORITY = -20
"""Below balloons, and below -10, from which the cluster autoscaler by default starts no node for a pod."""
PRIORITY_CLASS = "outrider-pre-pull"
LASTS_SECONDS, KEPT_SECONDS = 3600, 3600
"""A pull that takes longer is given up; an ended Job is kept so long to be looked at, then removed by the cluster."""
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
_PULL, _IMAGE, _NODE = "outrider.io/pull", "outrider.io/image", "outrider.io/node"
_MOST_NAME = 20  # with "-pull-", two digests and the index of a pod within 63
_HOLD_SECONDS = 30  # a pod that has ended keeps no other off its node: stay until the rest are placed
_TRIES = 3


class PrePullReason(StrEnum):
    """Why an image is pulled ahead by what it is."""

    ASKED = "asked"
    NODES_KNOWN = "nodes_known"
    NO_NODE_KNOWN = "no_node_known"  # Jobs need to know where: a DaemonSet finds the nodes by itself


@dataclass(frozen=True, slots=True)
class PrePull:
    """How an image is pulled. Jobs are for ``nodes``, one each, or one for any ``count`` nodes where no name is known.

    ``secret`` is an image pull secret of the namespace; ``taints`` are keys of further taints to tolerate.
    """

    kind: Kind
    reason: PrePullReason
    nodes: tuple[str, ...] = ()
    count: int = 0
    secret: str | None = None
    taints: tuple[str, ...] = ()


TO_COME = PrePull("daemonset", PrePullReason.NO_NODE_KNOWN)
"""Where nothing is known of nodes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is pulled, for whom, onto nodes with ``gpu_resource``, whose taints are tolerated.

    ``node_selector`` are the labels of these nodes; without it those that the vendor's programs give them.
    """

    service: str
    namespace: str
    image: str
    gpu_resource: str = kube_gpus.NVIDIA
    node_selector: Mapping[str, str] | None = None


def choose(
    kind: Kind | None,
    nodes: Sequence[str] = (),
    count: int = 0,
    *,
    secret: str | None = None,
    taints: Sequence[str] = (),
) -> PrePull:
    """Jobs where nodes or their number are known, else a DaemonSet. Raises UsageError for Jobs without either."""
    known = bool(nodes) or count > 0
    if kind == "job" and not known:
        raise UsageError(
            "pre-pull Jobs need nodes, and none is known",
            hint="name them with --node, say how many with --nodes, or take --pre-pull daemonset",
        )
    reason = PrePullReason.NODES_KNOWN if known else PrePullReason.NO_NODE_KNOWN
    if kind is not None:
        reason = PrePullReason.ASKED
    chosen = kind or ("job" if known else "daemonset")
    jobs = chosen == "job"
    unique = tuple(dict.fromkeys(nodes)) if jobs else ()
    return PrePull(chosen, reason, unique, count if jobs and not unique else 0, secret, tuple(taints))


def pinned(image: str) -> bool:
    """True where the image is named by its digest: a tag may mean another image tomorrow."""
    return "@sha256:" in image


def documents(subject: Subject, how: PrePull) -> tuple[Document, ...]:
    """The priority class, then the Jobs or the DaemonSet.

    Names hold a digest of all that is pulled and how: the same documents once more change nothing, another image or
    another toleration makes other Jobs (a Job's template cannot be changed), and the DaemonSet rolls over to it.
    Nodes that nobody named are chosen by their labels: no other node pulls. Raises UsageError without a selector for
    a resource whose labels are not known.
    """
    if how.kind == "daemonset":
        return _priority(), _daemon_set(subject, how)
    if how.nodes:
        return _priority(), *(_job_of(subject, how, node) for node in how.nodes)
    return _priority(), _indexed_job(subject, how)


def _priority() -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY_CLASS},
        "value": PRIORITY,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": "Pulls images ahead: pushes nothing out, and starts no node.",
    }


def _container(subject: Subject, seconds: int = 0) -> dict[str, Any]:
    """The image with a shell's nothing in place of its own entry point, which would load a model."""
    return {
        "name": "pull",
        "image": subject.image,
        "command": ["sh", "-c", f"sleep {seconds}" if seconds else "true"],
        # of a tag the node's copy may be old
        "imagePullPolicy": "IfNotPresent" if pinned(subject.image) else "Always",
        # images built on CUDA ask the runtime for every GPU of the node, which needs no request where it is the default
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _pod(subject: Subject, how: PrePull, **spec: Any) -> dict[str, Any]:
    """A pod that any GPU node takes, and that takes nothing of it. Taints are met whatever their effect."""
    keys = dict.fromkeys((*kube_gpus.taints_of(subject.gpu_resource), *how.taints))
    return {
        "priorityClassName": PRIORITY_CLASS,
        "tolerations": [{"key": key, "operator": "Exists"} for key in keys],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 65534, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **({"nodeSelector": dict(subject.node_selector)} if subject.node_selector else {}),
        **({"imagePullSecrets": [{"name": how.secret}]} if how.secret else {}),
        **spec,
    }


def _nodes_of(subject: Subject) -> dict[str, Any]:
    """Affinity to nodes with GPUs: a pod that asks for none would go to any node. A selector stands in for it."""
    return {} if subject.node_selector else {"nodeAffinity": kube_gpus.affinity_to(subject.gpu_resource)}


def _labels(subject: Subject) -> dict[str, str]:
    return {LABEL: "pre-pull", PART_OF: name_of(subject.service)}


def _key(subject: Subject, spec: Mapping[str, Any]) -> str:
    return short(json.dumps([subject.image, spec], sort_keys=True), 10)


def _job_of(subject: Subject, how: PrePull, node: str) -> Document:
    """Bound to its node by the scheduler, so that a node that takes no pods is waited for until time is up."""
    spec = _pod(subject, how, restartPolicy="Never", containers=[_container(subject)])
    key = _key(subject, spec)  # without the node: all Jobs of one pull bear the same
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [field]}}
    placed = {**spec, "affinity": {"nodeAffinity": wanted}}
    return _job(subject, key, f"-{short(node, 10)}", {_NODE: node}, placed, {"backoffLimit": _TRIES})


def _indexed_job(subject: Subject, how: PrePull) -> Document:
    """One pod on each of ``count`` nodes that nobody named: all at once, each keeping the others off its node."""
    nodes = _nodes_of(subject)
    spec = _pod(subject, how, restartPolicy="Never", containers=[_container(subject, _HOLD_SECONDS)])
    key = _key(subject, {**spec, "affinity": nodes})
    term = {"labelSelector": {"matchLabels": {_PULL: key}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {**nodes, "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    each = {
        "completionMode": "Indexed",
        "completions": how.count,
        "parallelism": how.count,
        "backoffLimitPerIndex": _TRIES,  # a node that cannot pull stops no other
    }
    return _job(subject, key, f"-n{how.count}", {}, {**spec, "affinity": apart}, each)


def _job(
    subject: Subject, key: str, suffix: str, notes: dict[str, str], pod: Mapping[str, Any], more: Mapping[str, Any]
) -> Document:
    labels = {**_labels(subject), _PULL: key}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{name_of(subject.service, _MOST_NAME)}-pull-{key}{suffix}",
            "namespace": subject.namespace,
            "labels": labels,
            "annotations": {_IMAGE: subject.image, **notes},
        },
        "spec": {
            **more,
            "activeDeadlineSeconds": LASTS_SECONDS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": dict(labels)}, "spec": dict(pod)},
        },
    }


def _daemon_set(subject: Subject, how: PrePull) -> Document:
    keep = {
        "name": "keep",
        "image": PAUSE_IMAGE,
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    nodes = _nodes_of(subject)
    spec = _pod(
        subject,
        how,
        initContainers=[_container(subject)],
        containers=[keep],
        **({"affinity": nodes} if nodes else {}),
    )
    labels = _labels(subject)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": f"{name_of(subject.service)}-pre-pull",
            "namespace": subject.namespace,
            "labels": labels,
            "annotations": {_IMAGE: subject.image},
        },
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            # nobody is served by these pods: let every node pull a new image at once
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": dict(labels)}, "spec": spec},
        },
    }
