"""The entities of the sample fleet: 2 services, 8 nodes, 64 GPUs, 16 replicas of 4 GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from outrider.model import EntityKind, EntityRef, Floats
from outrider.topology import Edge, Topology

NOW = datetime(2026, 5, 4, 13, 7, 30, tzinfo=UTC)
CLUSTER = "lab"
SERVICES = ("chat", "code")
NODES, GPUS_PER_NODE, REPLICAS_PER_NODE = 8, 8, 2


def ref(kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
    """An entity of the sample cluster."""
    return EntityRef(CLUSTER, kind, namespace, name)


SERVICE = {name: ref(EntityKind.SERVICE, name, "llm") for name in SERVICES}
NODE = tuple(ref(EntityKind.NODE, f"node-{index}") for index in range(NODES))
GPU = tuple(
    ref(EntityKind.GPU, f"GPU-{node:02d}{card:02d}7e1c-5b2a-4d0e-9c3f-{node * 8 + card:012d}")
    for node in range(NODES)
    for card in range(GPUS_PER_NODE)
)
REPLICA = tuple(
    ref(EntityKind.REPLICA, f"{SERVICES[index % 2]}-{index // 2}", "llm") for index in range(NODES * REPLICAS_PER_NODE)
)
POD = tuple(ref(EntityKind.POD, replica.name, "llm") for replica in REPLICA)
LOST_GPU = GPU[3 * GPUS_PER_NODE + 2]
LOST_NODE, LOST_REPLICA = NODE[3], REPLICA[6]


def load(at: datetime) -> Floats:
    """Requests per second of both services: a daily pattern with an afternoon peak."""
    hour = at.hour + at.minute / 60
    day = 0.5 - 0.5 * np.cos(2 * np.pi * (hour - 4) / 24)
    return np.array([14 + 48 * day**1.4, 6 + 17 * day])


def topology(at: datetime) -> Topology:
    """Node -> GPU and pod, GPU -> pod, pod -> replica -> service."""
    edges: list[Edge] = []
    for index, replica in enumerate(REPLICA):
        node = NODE[index // REPLICAS_PER_NODE]
        first = index * 4
        edges += [(node, POD[index]), (POD[index], replica), (replica, SERVICE[SERVICES[index % 2]])]
        edges += [(gpu, POD[index]) for gpu in GPU[first : first + 4]]
        edges += [(node, gpu) for gpu in GPU[first : first + 4]]
    labels: Mapping[EntityRef, Mapping[str, str]] = {
        gpu: {"gpu_type": "H100", "gpu": str(index % GPUS_PER_NODE)} for index, gpu in enumerate(GPU)
    }
    return Topology.build(edges, labels=labels, at=at)
