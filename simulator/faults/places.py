"""Where a fault acts: what an entity stands for in the topology, and which entities a seed may choose.

An entity stands for itself, for what it is on and for what is on it:

- gpu: itself, its node, the slot (replica and pod) that uses it now;
- node: itself, its GPUs, the slots on them;
- pod, replica: its slot, the GPUs it has now, their node;
- service: its slots that exist, their GPUs and nodes;
- pool, switch, storage: their nodes, and what is on them;
- cluster: everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from outrider.model import EntityKind, EntityRef

if TYPE_CHECKING:
    from simulator.fleet import Fleet

NODES_PER_RACK = 4
NOTHING = np.zeros(0, dtype=np.int64)
_OF_NODES = (EntityKind.NODE, EntityKind.POOL, EntityKind.SWITCH, EntityKind.STORAGE)
_OF_PODS = (EntityKind.POD, EntityKind.REPLICA)


@dataclass(frozen=True, slots=True)
class Places:
    """Index arrays into the fleet's devices, hosts, slots and services."""

    gpus: np.ndarray
    nodes: np.ndarray
    slots: np.ndarray
    services: np.ndarray

    def of(self, group: str) -> np.ndarray:
        """The indices for a lever group; the cluster has one."""
        found: np.ndarray = np.zeros(1, dtype=np.int64) if group == "cluster" else getattr(self, group)
        return found


@dataclass(frozen=True, slots=True)
class Spot:
    """An entity found in a fleet. ``number`` are the fixed indices: of the device, hosts, slot or service."""

    kind: EntityKind
    number: np.ndarray

    def places(self, fleet: Fleet) -> Places:
        """What it stands for now."""
        owner, on = fleet.pods.owner, fleet.gpus.node
        if self.kind is EntityKind.CLUSTER:
            return Places(
                np.arange(fleet.gpus.size),
                np.arange(fleet.nodes.size),
                existing_slots(fleet, np.arange(fleet.bank.size)),
                np.arange(len(fleet.spec.services)),
            )
        if self.kind is EntityKind.GPU:
            return _upwards(fleet, self.number, on[self.number])
        if self.kind in _OF_NODES:
            return _upwards(fleet, np.flatnonzero(np.isin(on, self.number)), self.number)
        by_service = service_of_slots(fleet)
        if self.kind in _OF_PODS:
            slots, services = existing_slots(fleet, self.number), by_service[self.number]
        else:
            slots, services = existing_slots(fleet, np.flatnonzero(by_service == self.number[0])), self.number
        gpus = np.flatnonzero(np.isin(owner, slots))
        return Places(gpus, np.unique(on[gpus]), slots, services)


def _upwards(fleet: Fleet, gpus: np.ndarray, nodes: np.ndarray) -> Places:
    owners = fleet.pods.owner[gpus]
    slots = np.unique(owners[owners >= 0])
    return Places(gpus, nodes, slots, np.unique(service_of_slots(fleet)[slots]))


_SERVICES: WeakKeyDictionary[Fleet, np.ndarray] = WeakKeyDictionary()


def service_of_slots(fleet: Fleet) -> np.ndarray:
    """The index of each slot's service, shape (slots,): fixed for the life of a fleet."""
    if fleet not in _SERVICES:
        number = {service.name: index for index, service in enumerate(fleet.spec.services)}
        _SERVICES[fleet] = np.array([number[pod.service.name] for pod in fleet.pods.pods], dtype=np.int64)
    return _SERVICES[fleet]


def existing_slots(fleet: Fleet, slots: np.ndarray) -> np.ndarray:
    """Those of ``slots`` whose pod Kubernetes knows."""
    pods = fleet.pods.pods
    return np.array([slot for slot in slots.tolist() if pods[slot].exists], dtype=np.int64)


def ready_slots(fleet: Fleet) -> np.ndarray:
    """Whether each slot serves, shape (slots,)."""
    return np.fromiter((pod.ready for pod in fleet.pods.pods), dtype=bool, count=fleet.bank.size)


def spots(fleet: Fleet, kind: EntityKind) -> dict[EntityRef, Spot]:
    """Every entity of a kind that exists now, with its place. Kinds that no fault can strike have none."""
    found: dict[EntityRef, list[int]]
    if kind is EntityKind.GPU:
        found = {fleet.entity(kind, fleet.gpu_uuid(gpu)): [gpu] for gpu in range(fleet.gpus.size)}
    elif kind in _OF_NODES:
        labels = np.array(node_labels(fleet, kind))
        found = {
            fleet.entity(kind, str(name)): np.flatnonzero(labels == name).tolist() for name in dict.fromkeys(labels)
        }
    elif kind in _OF_PODS:
        pods = [pod for pod in fleet.pods.pods if pod.exists]
        found = {fleet.entity(kind, pod.name, pod.service.namespace): [pod.slot] for pod in pods}
    elif kind is EntityKind.SERVICE:
        services = enumerate(fleet.spec.services)
        found = {fleet.entity(kind, service.name, service.namespace): [number] for number, service in services}
    else:
        found = {fleet.entity(kind, fleet.spec.cluster): [0]} if kind is EntityKind.CLUSTER else {}
    return {ref: Spot(kind, np.asarray(numbers, dtype=np.int64)) for ref, numbers in found.items()}


def places(fleet: Fleet, entity: EntityRef) -> Places:
    """What an entity stands for now. Raises KeyError when the fleet has no such entity."""
    return spots(fleet, entity.kind)[entity].places(fleet)


def node_labels(fleet: Fleet, kind: EntityKind) -> Sequence[str]:
    """The name of each host's node, pool, switch or storage, in order of hosts."""
    nodes = fleet.nodes
    if kind is EntityKind.NODE:
        return nodes.names
    if kind is EntityKind.POOL:
        return nodes.pool
    if kind is EntityKind.SWITCH:
        racks: Sequence[str] = getattr(
            nodes, "switch", [f"rack-{node // NODES_PER_RACK}" for node in range(nodes.size)]
        )
        return racks
    shared: Sequence[str] = getattr(nodes, "storage", ["models-0"] * nodes.size)
    return shared


def _anything(fleet: Fleet, here: Places) -> bool:
    """No matter what is on it."""
    del fleet, here
    return True


def _serving(fleet: Fleet, here: Places) -> bool:
    """Something on it is ready and gets requests."""
    pods = fleet.pods.pods
    return any(pods[slot].ready and bool(fleet.requests_per_second[slot] > 0) for slot in here.slots.tolist())


def _grouped(fleet: Fleet, here: Places) -> bool:
    """A serving group of two or more devices is on it."""
    pods = fleet.pods.pods
    return any(pods[slot].ready and len(pods[slot].gpus) > 1 for slot in here.slots.tolist())


def _shared(fleet: Fleet, here: Places) -> bool:
    """Two or more ready pods are on it."""
    return len([slot for slot in here.slots.tolist() if fleet.pods.pods[slot].ready]) > 1


LIKELY: dict[str, Callable[[Fleet, Places], bool]] = {
    "any": _anything,
    "serving": _serving,
    "grouped": _grouped,
    "shared": _shared,
}


def choose(fleet: Fleet, kind: EntityKind, word: str, random: np.random.Generator) -> EntityRef | None:
    """One of the entities that ``word`` of ``LIKELY`` allows, each as likely as the others; None when there is none."""
    fits, known = LIKELY[word], spots(fleet, kind)
    names: list[EntityRef] = list(known)
    for number in random.permutation(len(names)).tolist():
        if fits(fleet, known[names[number]].places(fleet)):
            return names[number]
    return None
