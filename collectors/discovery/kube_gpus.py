"""Which accelerators a pod holds and what a node says of its own, from the Kubernetes API. Pure.

Whole devices, MIG instances and shares of a device (time slices, MPS) are three things: a share leaves the
device to others, too, so that several pods rest on one GPU. Which devices a pod got is known where a device
plugin or scheduler writes it down; else the device exporter's own pod labels tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collectors.kube_api import Json, items, mapping, text

# Where device plugins write down what they gave: HAMi (GPU-..,NVIDIA,MiB,cores:;), ours for hand-made set-ups.
_WRITTEN = ("hami.io/vgpu-devices-allocated", "outrider.io/gpus")
_NPUS = "huawei.com/AscendReal"  # names such as Ascend910-3, without the node
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_NPU = re.compile(r"\bAscend\w*-\d+\b")
_WHOLE = re.compile(r"(nvidia|amd)\.com/gpu|huawei\.com/(Ascend\w+|npu)|habana\.ai/gaudi")
_SHARED = re.compile(r"nvidia\.com/(gpu|mig-[\w.]+)\.shared")
_MIG = re.compile(r"nvidia\.com/mig-[\w.]+")
_NODE_FACTS = {
    "nvlink_domain": ("nvidia.com/gpu.clique",),
    "gpus": ("nvidia.com/gpu.count",),
    "gpu_replicas": ("nvidia.com/gpu.replicas",),
    "gpu_sharing": ("nvidia.com/gpu.sharing-strategy",),
    "mig_strategy": ("nvidia.com/mig.strategy",),
    "numa": ("feature.node.kubernetes.io/memory-numa",),
    "gpu_type": ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "node.kubernetes.io/npu.chip.name"),
    "zone": ("topology.kubernetes.io/zone",),
    "instance_type": ("node.kubernetes.io/instance-type",),
    "pool": (
        "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "agentpool",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """The accelerators of a pod. ``kind`` is whole, mig or shared, "" for none; ``devices`` are those known by name."""

    count: int = 0
    kind: str = ""
    devices: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, str]:
        """Labels of the pod."""
        found = {"gpus": str(self.count), "gpu_kind": self.kind} if self.count else {}
        return found | ({"devices": ",".join(self.devices)} if self.devices else {})


def held_by(pod: Json) -> Held:
    """What a pod asked for and, where it is written down, which ones it got."""
    counts = {"whole": 0, "mig": 0, "shared": 0}
    for container in items(mapping(pod.get("spec")).get("containers")):
        resources = mapping(container.get("resources"))
        asked = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
        for name, quantity in asked.items():
            kind = _kind(name)
            if kind:
                counts[kind] += _whole(quantity)
    notes = mapping(mapping(pod.get("metadata")).get("annotations"))
    devices = [one for name in _WRITTEN for one in _UUID.findall(text(notes.get(name)))]
    devices += _NPU.findall(text(notes.get(_NPUS)))
    if text(notes.get(_WRITTEN[0])) and counts["whole"]:
        counts["shared"], counts["whole"] = counts["whole"], 0  # HAMi hands out shares under the plain name
    kind = next((kind for kind in ("mig", "shared", "whole") if counts[kind]), "")
    return Held(sum(counts.values()), kind, tuple(dict.fromkeys(devices)))


def _kind(resource: str) -> str:
    if _SHARED.fullmatch(resource):
        return "shared"
    if _MIG.fullmatch(resource):
        return "mig"
    return "whole" if _WHOLE.fullmatch(resource) else ""


def _whole(quantity: object) -> int:
    try:
        return max(0, min(int(text(quantity)), 1024))
    except ValueError:
        return 0


def node_facts(node: Json) -> dict[str, str]:
    """Labels of a node that say what it is made of and which NVLink, NUMA and failure domain it is in."""
    labels = mapping(mapping(node.get("metadata")).get("labels"))
    found = {fact: value for fact, names in _NODE_FACTS.items() if (value := _first(labels, names))}
    if found.get("gpu_sharing") == "none":
        del found["gpu_sharing"]
        found.pop("gpu_replicas", None)
    if "gpu_type" in found:
        found["gpu_type"] = found["gpu_type"].removesuffix("-SHARED")
    return found


def _first(labels: Mapping[str, object], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := text(labels.get(name)))), "")
