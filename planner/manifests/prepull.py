"""Pre-pulls an engine image to nodes before its pods: by Jobs that end, or by a DaemonSet that stays.

Jobs suit one rollout: the nodes are known, each pulls once, and nothing remains. A DaemonSet suits changing nodes: a
new one pulls at once, at the cost of a small permanent pod per node. Neither requests a GPU. Documents are Kubernetes
objects as plain values (Kubernetes 1.29 or newer); this module sends nothing.
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
"""Below balloons, and below -10: from there the cluster autoscaler by default starts no node for a pod."""
PRIORITY_CLASS = "outrider-pre-pull"
LASTS_SECONDS, KEPT_SECONDS = 3600, 3600
"""Deadline of a pull, and time that a finished Job is kept for inspection before the cluster removes it."""
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
_PULL, _IMAGE, _NODE = "outrider.io/pull", "outrider.io/image", "outrider.io/node"
_MOST_NAME = 20  # with "-pull-", two digests and the index of a pod within 63
_HOLD_SECONDS = 30  # a finished pod does not keep others off its node: stay until the rest are placed
_TRIES = 3


class PrePullReason(StrEnum):
    """Reasons for the method of a pre-pull."""

    REQUESTED = "asked"
    NODES_KNOWN = "nodes_known"
    NO_NODE_KNOWN = "no_node_known"  # Jobs need node names: a DaemonSet finds the nodes by itself


@dataclass(frozen=True, slots=True)
class PrePull:
    """Method of a pre-pull. Jobs are for ``nodes``, one each, or for any ``count`` nodes if no name is known.

    ``secret`` is an image pull secret of the namespace; ``taints`` are keys of further tolerated taints.
    """

    kind: Kind
    reason: PrePullReason
    nodes: tuple[str, ...] = ()
    count: int = 0
    secret: str | None = None
    taints: tuple[str, ...] = ()


TO_COME = PrePull("daemonset", PrePullReason.NO_NODE_KNOWN)
"""Used if nothing is known about nodes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The image, its service, and the nodes with ``gpu_resource``, whose taints are tolerated.

    ``node_selector`` are the labels of these nodes; by default those set by the vendor's software.
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
    """Chooses Jobs if nodes or their number are known, otherwise a DaemonSet.

    Raises UsageError for Jobs without either.
    """
    known = bool(nodes) or count > 0
    if kind == "job" and not known:
        raise UsageError(
            "pre-pull Jobs need nodes, but none is known",
            hint="name them with --node, give their number with --nodes, or use --pre-pull daemonset",
        )
    reason = PrePullReason.NODES_KNOWN if known else PrePullReason.NO_NODE_KNOWN
    if kind is not None:
        reason = PrePullReason.REQUESTED
    method = kind or ("job" if known else "daemonset")
    jobs = method == "job"
    unique = tuple(dict.fromkeys(nodes)) if jobs else ()
    return PrePull(method, reason, unique, count if jobs and not unique else 0, secret, tuple(taints))


def pinned(image: str) -> bool:
    """True if the image is named by its digest: a tag may refer to another image later."""
    return "@sha256:" in image


def documents(subject: Subject, method: PrePull) -> tuple[Document, ...]:
    """Returns the priority class, then the Jobs or the DaemonSet.

    Names contain a digest of the image and the pod spec. So the same documents change nothing, and another image or
    toleration makes other Jobs (a Job's template cannot be changed) and rolls over the DaemonSet. Unnamed nodes are
    selected by their labels: no other node pulls. Raises UsageError without a selector for a resource without known
    labels.
    """
    if method.kind == "daemonset":
        return _priority(), _daemon_set(subject, method)
    if method.nodes:
        return _priority(), *(_job_of(subject, method, node) for node in method.nodes)
    return _priority(), _indexed_job(subject, method)


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
    """The image with a no-op command instead of its entry point, which would load a model."""
    return {
        "name": "pull",
        "image": subject.image,
        "command": ["sh", "-c", f"sleep {seconds}" if seconds else "true"],
        # the node's copy of a tag may be outdated
        "imagePullPolicy": "IfNotPresent" if pinned(subject.image) else "Always",
        # CUDA images request every GPU of the node from its runtime, even without a resource request
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _pod(subject: Subject, method: PrePull, **spec: Any) -> dict[str, Any]:
    """A pod for any GPU node that takes no GPU. Taints are tolerated whatever their effect."""
    keys = dict.fromkeys((*kube_gpus.taints_of(subject.gpu_resource), *method.taints))
    return {
        "priorityClassName": PRIORITY_CLASS,
        "tolerations": [{"key": key, "operator": "Exists"} for key in keys],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 65534, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **({"nodeSelector": dict(subject.node_selector)} if subject.node_selector else {}),
        **({"imagePullSecrets": [{"name": method.secret}]} if method.secret else {}),
        **spec,
    }


def _nodes_of(subject: Subject) -> dict[str, Any]:
    """Affinity to nodes with GPUs: a pod that requests none would go to any node. A selector replaces it."""
    return {} if subject.node_selector else {"nodeAffinity": kube_gpus.affinity_to(subject.gpu_resource)}


def _labels(subject: Subject) -> dict[str, str]:
    return {LABEL: "pre-pull", PART_OF: name_of(subject.service)}


def _key(subject: Subject, spec: Mapping[str, Any]) -> str:
    return short(json.dumps([subject.image, spec], sort_keys=True), 10)


def _job_of(subject: Subject, method: PrePull, node: str) -> Document:
    """Bound to its node by the scheduler: it waits for a node that takes no pods until the deadline."""
    spec = _pod(subject, method, restartPolicy="Never", containers=[_container(subject)])
    key = _key(subject, spec)  # without the node: all Jobs of one pull share it
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [field]}}
    placed = {**spec, "affinity": {"nodeAffinity": wanted}}
    return _job(subject, key, f"-{short(node, 10)}", {_NODE: node}, placed, {"backoffLimit": _TRIES})


def _indexed_job(subject: Subject, method: PrePull) -> Document:
    """One pod on each of ``count`` unnamed nodes: all at once, each keeping the others off its node."""
    nodes = _nodes_of(subject)
    spec = _pod(subject, method, restartPolicy="Never", containers=[_container(subject, _HOLD_SECONDS)])
    key = _key(subject, {**spec, "affinity": nodes})
    term = {"labelSelector": {"matchLabels": {_PULL: key}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {**nodes, "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    each = {
        "completionMode": "Indexed",
        "completions": method.count,
        "parallelism": method.count,
        "backoffLimitPerIndex": _TRIES,  # a node that cannot pull does not stop others
    }
    return _job(subject, key, f"-n{method.count}", {}, {**spec, "affinity": apart}, each)


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


def _daemon_set(subject: Subject, method: PrePull) -> Document:
    keep = {
        "name": "keep",
        "image": PAUSE_IMAGE,
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    nodes = _nodes_of(subject)
    spec = _pod(
        subject,
        method,
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
            # these pods serve nobody: every node may pull a new image at once
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": dict(labels)}, "spec": spec},
        },
    }
