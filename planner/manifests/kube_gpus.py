"""Accelerators in Kubernetes: the resource that pods request, and the taints and labels of their nodes.

Resource names are those of the vendors' device plug-ins. Labels are those of NVIDIA's gpu-feature-discovery, AMD's node
labeler, Huawei's device plug-in and, without any of them, of Google's clusters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from outrider.errors import UsageError

NVIDIA, AMD, HUAWEI = "nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910"
_NAMES = {
    HUAWEI: re.compile(r"ascend|huawei|\bnpu|\b910[abc]?\b", re.IGNORECASE),
    AMD: re.compile(r"\bamd\b|instinct|radeon|\bmi[ -]?\d{2,3}", re.IGNORECASE),
}
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_RESOURCE = re.compile(rf"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/{_PART}")
_LABEL = re.compile(rf"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_PART}=(?:{_PART})?")
_LABELS: dict[str, tuple[dict[str, Any], ...]] = {
    "nvidia.com": (
        {"key": "nvidia.com/gpu.present", "operator": "Exists"},
        {"key": "nvidia.com/gpu.product", "operator": "Exists"},
        {"key": "cloud.google.com/gke-accelerator", "operator": "Exists"},
    ),
    "amd.com": (
        {"key": "amd.com/gpu.product-name", "operator": "Exists"},
        {"key": "amd.com/gpu.device-id", "operator": "Exists"},
    ),
    "huawei.com": (
        {"key": "node.kubernetes.io/npu.chip.name", "operator": "Exists"},
        {"key": "accelerator", "operator": "In", "values": ["huawei-Ascend910"]},
    ),
}


def resource_of(gpu_type: str) -> str:
    """Returns the resource requested by pods for a GPU type; NVIDIA's unless the name has another vendor."""
    return next((resource for resource, name in _NAMES.items() if name.search(gpu_type)), NVIDIA)


def checked_resource(name: str) -> str:
    """Returns the name of an extended resource. Raises UsageError for an invalid one."""
    if not _RESOURCE.fullmatch(name):
        raise UsageError(f"--gpu-resource {name!r} is not a resource name", hint=f"such as {NVIDIA} or huawei.com/npu")
    return name


def selector_of(texts: Sequence[str]) -> dict[str, str]:
    """Parses labels from texts ``KEY=VALUE``. Raises UsageError for an invalid label, and for a key with two values."""
    labels: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        hint = "write KEY=VALUE as on the nodes, such as nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3"
        if not _LABEL.fullmatch(text):
            raise UsageError(f"--node-selector {text!r} is not a label with a value", hint=hint)
        if labels.setdefault(key, value) != value:
            raise UsageError(f"--node-selector gives {key} two values", hint="a node has one value: give one of them")
    return labels


def taints_of(resource: str) -> tuple[str, ...]:
    """Keys of the usual taints of nodes: that of the resource; for a slice also that of whole devices."""
    whole = next(
        (resource_name for resource_name in (NVIDIA, AMD, HUAWEI) if _vendor(resource_name) == _vendor(resource)),
        resource,
    )
    return tuple(dict.fromkeys((resource, whole)))


def labels_of(resource: str) -> tuple[str, ...]:
    """Labels of nodes with such a resource, any of which is enough; empty for an unknown vendor."""
    return tuple(str(resource_name["key"]) for resource_name in _LABELS.get(_vendor(resource), ()))


def affinity_to(resource: str) -> dict[str, Any]:
    """Node affinity for pods that request no accelerator but belong on its nodes.

    Raises UsageError for a resource of a vendor without known labels.
    """
    labels = _LABELS.get(_vendor(resource))
    if labels is None:
        message = f"no node label is known for {resource}"
        raise UsageError(message, hint="give one with --node-selector KEY=VALUE, or the nodes with --node")
    terms = [{"matchExpressions": [dict(label)]} for label in labels]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _vendor(resource: str) -> str:
    return resource.partition("/")[0]
