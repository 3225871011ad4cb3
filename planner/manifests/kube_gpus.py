"""What Kubernetes calls accelerators: the resource that pods ask for, the taints and the labels of nodes with them.

Resource names are those of the vendors' device plug-ins; labels those of NVIDIA's gpu-feature-discovery, AMD's node
labeller, Huawei's device plug-in and, where nothing is installed, of Google's clusters.
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
    """The resource that pods ask for by the name of a GPU type; NVIDIA's where the name tells no other vendor."""
    return next((resource for resource, name in _NAMES.items() if name.search(gpu_type)), NVIDIA)


def checked_resource(name: str) -> str:
    """The name of an extended resource. Raises UsageError for what no pod can ask for."""
    if not _RESOURCE.fullmatch(name):
        raise UsageError(f"--gpu-resource {name!r} is no resource", hint=f"such as {NVIDIA} or huawei.com/npu")
    return name


def selector_of(given: Sequence[str]) -> dict[str, str]:
    """Labels from texts ``KEY=VALUE``. Raises UsageError for what no label can be, and for a key with two values."""
    found: dict[str, str] = {}
    for text in given:
        key, _, value = text.partition("=")
        hint = "write KEY=VALUE as nodes bear it, such as nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3"
        if not _LABEL.fullmatch(text):
            raise UsageError(f"--node-selector {text!r} is no label with its value", hint=hint)
        if found.setdefault(key, value) != value:
            raise UsageError(f"--node-selector gives {key} two values", hint="a node has one: give one of them")
    return found


def taints_of(resource: str) -> tuple[str, ...]:
    """Keys of the taints that nodes usually bear: that of the resource; of a slice also that of whole devices."""
    whole = next((one for one in (NVIDIA, AMD, HUAWEI) if _vendor(one) == _vendor(resource)), resource)
    return tuple(dict.fromkeys((resource, whole)))


def labels_of(resource: str) -> tuple[str, ...]:
    """Labels of nodes with such a resource, one of which is enough; empty for a vendor that is not known."""
    return tuple(str(one["key"]) for one in _LABELS.get(_vendor(resource), ()))


def affinity_to(resource: str) -> dict[str, Any]:
    """Node affinity for pods that ask for no accelerator and yet belong on its nodes.

    Raises UsageError for the resource of a vendor whose labels are not known.
    """
    labels = _LABELS.get(_vendor(resource))
    if labels is None:
        said = f"no label of nodes with {resource} is known"
        raise UsageError(said, hint="name one with --node-selector KEY=VALUE, or the nodes with --node")
    terms = [{"matchExpressions": [dict(one)]} for one in labels]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _vendor(resource: str) -> str:
    return resource.partition("/")[0]
