"""Scope of a fault: the parts of the fleet that belong to an entity, and the entities that a seed may choose.

The scope of an entity is the entity itself, what it runs on and what runs on it:

- gpu: itself, its node, the slot (replica and pod) that uses it now;
- node: itself, its GPUs, the slots on them;
- pod, replica: its slot, its current GPUs, their node;
- service: its existing slots, their GPUs and nodes;
- pool, switch, storage: their nodes and everything on them;
- cluster: everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outrider.model import EntityKind, EntityRef

if TYPE_CHECKING:
    from simulator.fleet import Fleet

NOTHING = np.zeros(0, dtype=np.int64)
_OF_NODES = (EntityKind.NODE, EntityKind.POOL, EntityKind.SWITCH, EntityKind.STORAGE)
_OF_PODS = (EntityKind.POD, EntityKind.REPLICA)


@dataclass(frozen=True, slots=True)
class Scope:
    """Index arrays into the fleet's devices, hosts, slots and services."""

    gpus: np.ndarray
    nodes: np.ndarray
    slots: np.ndarray
    services: np.ndarray

    def of(self, group: str) -> np.ndarray:
        """Returns the indices for an effect group; the cluster has one."""
        result: np.ndarray = np.zeros(1, dtype=np.int64) if group == "cluster" else getattr(self, group)
        return result


@dataclass(frozen=True, slots=True)
class FleetEntity:
    """An entity of a fleet. ``number`` are its fixed indices: device, nodes, slot or service."""

    kind: EntityKind
    number: np.ndarray

    def scope(self, fleet: Fleet) -> Scope:
        """Returns the current scope of the entity."""
        owner, on = fleet.pods.owner, fleet.gpus.node
        if self.kind is EntityKind.CLUSTER:
            return Scope(
                np.arange(fleet.gpus.size),
                np.arange(fleet.nodes.size),
                np.flatnonzero(fleet.pods.existing),
                np.arange(len(fleet.spec.services)),
            )
        if self.kind is EntityKind.GPU:
            return _upwards(fleet, self.number, on[self.number])
        if self.kind in _OF_NODES:
            return _upwards(fleet, np.flatnonzero(np.isin(on, self.number)), self.number)
        by_service, existing = fleet.pods.service_of_slot, fleet.pods.existing
        if self.kind in _OF_PODS:
            slots, services = self.number[existing[self.number]], by_service[self.number]
        else:
            slots, services = np.flatnonzero((by_service == self.number[0]) & existing), self.number
        gpus = np.flatnonzero(np.isin(owner, slots))
        return Scope(gpus, np.unique(on[gpus]), slots, services)


def _upwards(fleet: Fleet, gpus: np.ndarray, nodes: np.ndarray) -> Scope:
    owners = fleet.pods.owner[gpus]
    slots = np.unique(owners[owners >= 0])
    return Scope(gpus, nodes, slots, np.unique(fleet.pods.service_of_slot[slots]))


def fleet_entities(fleet: Fleet, kind: EntityKind) -> dict[EntityRef, FleetEntity]:
    """Returns every entity of a kind that exists now. Kinds that no fault affects have none."""
    result: dict[EntityRef, list[int]]
    if kind is EntityKind.GPU:
        result = {fleet.entity(kind, fleet.gpu_uuid(gpu)): [gpu] for gpu in range(fleet.gpus.size)}
    elif kind in _OF_NODES:
        labels = np.array(node_labels(fleet, kind))
        result = {
            fleet.entity(kind, str(name)): np.flatnonzero(labels == name).tolist() for name in dict.fromkeys(labels)
        }
    elif kind in _OF_PODS:
        pods = [pod for pod in fleet.pods.pods if pod.exists]
        result = {fleet.entity(kind, pod.name, pod.service.namespace): [pod.slot] for pod in pods}
    elif kind is EntityKind.SERVICE:
        services = enumerate(fleet.spec.services)
        result = {fleet.entity(kind, service.name, service.namespace): [number] for number, service in services}
    else:
        result = {fleet.entity(kind, fleet.spec.cluster): [0]} if kind is EntityKind.CLUSTER else {}
    return {ref: FleetEntity(kind, np.asarray(numbers, dtype=np.int64)) for ref, numbers in result.items()}


def scope_of(fleet: Fleet, entity: EntityRef) -> Scope:
    """Returns the current scope of an entity. Raises KeyError if the fleet has no such entity."""
    return fleet_entities(fleet, entity.kind)[entity].scope(fleet)


def node_labels(fleet: Fleet, kind: EntityKind) -> Sequence[str]:
    """Returns the name of each host's node, pool, switch or storage, in order of hosts."""
    nodes = fleet.nodes
    if kind is EntityKind.NODE:
        return nodes.names
    if kind is EntityKind.POOL:
        return nodes.pool
    return nodes.switch if kind is EntityKind.SWITCH else nodes.storage


def _anything(fleet: Fleet, here: Scope) -> bool:
    """Accepts every entity."""
    del fleet, here
    return True


def _serving(fleet: Fleet, here: Scope) -> bool:
    """Accepts an entity with a ready slot that gets requests."""
    return bool((fleet.pods.ready[here.slots] & (fleet.requests_per_second[here.slots] > 0)).any())


def _ready(fleet: Fleet, here: Scope) -> bool:
    """Accepts an entity with a ready slot."""
    return bool(fleet.pods.ready[here.slots].any())


def _grouped(fleet: Fleet, here: Scope) -> bool:
    """Accepts an entity with a serving group of two or more devices."""
    return bool((fleet.pods.ready[here.slots] & (fleet.pods.group[here.slots] > 1)).any())


def _shared(fleet: Fleet, here: Scope) -> bool:
    """Accepts an entity with two or more ready pods."""
    return bool(fleet.pods.ready[here.slots].sum() > 1)


def _spare(fleet: Fleet, here: Scope) -> bool:
    """Accepts an entity with serving pods and free devices."""
    free = (fleet.pods.owner[here.gpus] < 0) & fleet.pods.healthy[here.gpus]
    return bool(free.any()) and _serving(fleet, here)


LIKELY: dict[str, Callable[[Fleet, Scope], bool]] = {
    "any": _anything,
    "serving": _serving,
    "grouped": _grouped,
    "shared": _shared,
    "spare": _spare,
}


def choose(fleet: Fleet, kind: EntityKind, word: str, random: np.random.Generator) -> EntityRef | None:
    """Returns one of the entities that ``word`` of ``LIKELY`` allows, all equally likely; None if there is none.

    Without any requests, entities that would get them count as serving.
    """
    known = fleet_entities(fleet, kind)
    names: list[EntityRef] = list(known)
    order = [names[int(place)] for place in random.permutation(len(names))]
    for fits in (LIKELY[word], _ready) if LIKELY[word] is _serving else (LIKELY[word],):
        for name in order:
            if fits(fleet, known[name].scope(fleet)):
                return name
    return None
