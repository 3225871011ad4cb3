"""Accelerators of pods and nodes, from the Kubernetes API. Pure.

Whole devices, MIG instances and shares of a device (time slices, MPS) differ: a share leaves the device to others
too, so that several pods rest on one GPU. The devices of a pod are known if a device plugin or scheduler records
them; otherwise from the pod labels of the device exporter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from collectors.kubernetes.api import Json, items, mapping, text
from collectors.kubernetes.objects import labels_of
from collectors.kubernetes.peers import node_owners
from collectors.mapping.entity_binding import first_label

CLIQUE = "nvidia.com/gpu.clique"
# Annotations of device plugins: HAMi (GPU-..,NVIDIA,MiB,cores:;), our own for manual set-ups.
_DEVICE_ANNOTATIONS = ("hami.io/vgpu-devices-allocated", "outrider.io/gpus")
_NPUS = "huawei.com/AscendReal"  # names such as Ascend910-3, without the node
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_NPU = re.compile(r"\bAscend\w*-\d+\b")
_SHARED = re.compile(r"nvidia\.com/(gpu|mig-[\w.]+)\.shared|huawei\.com/Ascend\w+-\d+c.*")  # including parts of an NPU
_MIG = re.compile(r"nvidia\.com/mig-[\w.]+")
# labels of NVIDIA's gpu-feature-discovery and of clouds
_NODE_FACTS = {
    "nvlink_domain": (CLIQUE,),
    "gpu_count": ("nvidia.com/gpu.count",),
    "gpu_memory_mib": ("nvidia.com/gpu.memory",),
    "gpu_replicas": ("nvidia.com/gpu.replicas",),
    "gpu_sharing": ("nvidia.com/gpu.sharing-strategy",),
    "mig_strategy": ("nvidia.com/mig.strategy",),
    "numa": ("feature.node.kubernetes.io/memory-numa",),
    "gpu_type": ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "node.kubernetes.io/npu.chip.name",
                 "accelerator"),
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    "instance_type": ("node.kubernetes.io/instance-type",),
    "pool": (
        "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "agentpool",
    ),
}  # fmt: skip
_DRIVER = ("nvidia.com/cuda.driver-version.full",)
_CUDA = ("nvidia.com/cuda.runtime-version.full",)


def devices_of(notes: Mapping[str, str]) -> tuple[str, ...]:
    """The devices of a pod by name, if its annotations record them."""
    names = [uuid for name in _DEVICE_ANNOTATIONS for uuid in _UUID.findall(notes.get(name, ""))]
    names += _NPU.findall(notes.get(_NPUS, ""))
    return tuple(dict.fromkeys(names))


def kind_of(accelerators: Mapping[str, float], notes: Mapping[str, str]) -> str:
    """Kind of a pod's devices: whole, mig or shared, "" for none; ``accelerators`` by resource name."""
    if any(_SHARED.fullmatch(name) for name in accelerators):
        return "shared"
    if any(_MIG.fullmatch(name) for name in accelerators):
        return "mig"
    if not accelerators:
        return ""
    return "shared" if notes.get(_DEVICE_ANNOTATIONS[0]) else "whole"  # HAMi allocates shares under the plain name


def gpu_type_of(labels: Mapping[str, str]) -> str:
    """Product name of a node's accelerators, empty if its labels lack it."""
    return (first_label(labels, _NODE_FACTS["gpu_type"]) or "").removesuffix("-SHARED")


def driver_of(labels: Mapping[str, str]) -> str:
    """NVIDIA driver version from a node's labels."""
    return first_label(labels, _DRIVER) or _dotted(labels, "nvidia.com/cuda.driver", ("major", "minor", "rev"))


def cuda_of(labels: Mapping[str, str]) -> str:
    """CUDA version supported by a node's driver."""
    older = _dotted(labels, "nvidia.com/cuda.runtime", ("major", "minor"))
    return first_label(labels, _CUDA) or _dotted(labels, "nvidia.com/cuda.runtime-version", ("major", "minor")) or older


def node_facts(node: Json) -> dict[str, str]:
    """Facts of a node: its hardware, its NVLink, NUMA and failure domain, and other programs that manage it."""
    labels, about = labels_of(node), mapping(mapping(node.get("status")).get("nodeInfo"))
    facts = {name: first_label(labels, spellings) or "" for name, spellings in _NODE_FACTS.items()}
    if facts["gpu_sharing"] == "none":
        facts |= {"gpu_sharing": "", "gpu_replicas": ""}
    taints = [text(taint.get("key")) for taint in items(mapping(node.get("spec")).get("taints"))]
    facts |= {
        "gpu_type": gpu_type_of(labels),
        "driver": driver_of(labels),
        "cuda": cuda_of(labels),
        "kubelet": text(about.get("kubeletVersion")),
        "since": text(mapping(node.get("metadata")).get("creationTimestamp")),
        "taints": ",".join(sorted(filter(None, taints))),
        **node_owners(node),
    }
    return {name: value for name, value in facts.items() if value}


def _dotted(labels: Mapping[str, str], prefix: str, parts: tuple[str, ...]) -> str:
    """``535.161`` from ``PREFIX.major`` and ``PREFIX.minor``, as far as they are set."""
    numbers = [labels[f"{prefix}.{part}"] for part in parts if labels.get(f"{prefix}.{part}")]
    return ".".join(numbers)
