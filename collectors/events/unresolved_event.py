"""What a source of events saw, and which component that is about once the topology is known.

A kernel speaks of PCI addresses and cgroups, a container log of its pod, a deployment of itself; what
detectors want to know is the GPU, the replica and the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.topology import Topology

# How far back a source is read when it is first seen: as long as detection looks back for causes. What was
# stored before a restart of ours is recognised by its key and not stored twice.
FIRST_LOOK = timedelta(minutes=45)
MOST_TEXT = 1_000


@dataclass(frozen=True, slots=True)
class UnresolvedEvent:
    """One event before its component is known. ``entity`` is the one the source itself names.

    ``pci`` or ``pod_uid`` stand with a node and name a device or pod on it. ``aim`` REPLICA wants the
    replica of a pod, SERVICE the service of a workload; ``service`` is then the name its labels give.
    """

    kind: EventKind
    code: str
    at: datetime
    source: str
    key: str
    entity: EntityRef
    attributes: Mapping[str, str] = field(default_factory=dict)
    pci: str = ""
    pod_uid: str = ""
    aim: EntityKind | None = None
    service: str = ""


class EntityResolver:
    """Where addresses of kernels and names of the API lead. Built once a topology, because it reads every label."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.topology = topology or Topology()
        self._devices: dict[tuple[str, str], EntityRef] = {}
        self._pods: dict[str, EntityRef] = {}
        self._services: dict[tuple[str | None, str], EntityRef] = {}
        for entity, facts in self.topology.labels.items():
            if entity.kind is EntityKind.GPU and facts.get("pci"):
                for node in self._nodes_of(entity, facts):
                    self._devices[node, pci_of(facts["pci"])] = entity
            elif entity.kind is EntityKind.POD and facts.get("uid"):
                self._pods[facts["uid"]] = entity
            elif entity.kind is EntityKind.REPLICA and facts.get("workload"):
                for service in self.topology.above(entity, EntityKind.SERVICE)[:1]:
                    self._services.setdefault((entity.namespace, facts["workload"]), service)

    def _nodes_of(self, gpu: EntityRef, facts: Mapping[str, str]) -> set[str]:
        below = {one.name for one in self.topology.rests_on(gpu) if one.kind is EntityKind.NODE}
        return below | ({facts["node"]} if facts.get("node") else set())

    def entity(self, seen: UnresolvedEvent) -> EntityRef:
        """The component; the one the source named when nothing better is known."""
        if seen.pci:
            return self._devices.get((seen.entity.name, pci_of(seen.pci)), seen.entity)
        if seen.pod_uid:
            return self._pods.get(seen.pod_uid, seen.entity)
        if seen.aim is EntityKind.REPLICA:
            found = [one for one in self.topology.holds_up(seen.entity) if one.kind is EntityKind.REPLICA]
            named = EntityRef(seen.entity.cluster, EntityKind.REPLICA, seen.entity.namespace, seen.entity.name)
            return found[0] if len(found) == 1 else named
        if seen.aim is EntityKind.SERVICE:
            known = self._services.get((seen.entity.namespace, seen.entity.name))
            if known is None and seen.service:
                return EntityRef(seen.entity.cluster, EntityKind.SERVICE, seen.entity.namespace, seen.service)
            return known or seen.entity
        return seen.entity

    def events(self, sightings: Iterable[UnresolvedEvent]) -> tuple[Event, ...]:
        """Sightings as events."""
        return tuple(
            Event(
                id=seen.key,
                kind=seen.kind,
                entity=self.entity(seen),
                at=seen.at,
                source=seen.source,
                code=seen.code,
                attributes=seen.attributes,
                dedup_key=seen.key,
            )
            for seen in sightings
        )


def pci_of(text: str) -> str:
    """One spelling of a PCI address: ``0000:3b:00`` and ``00000000:3B:00.0`` are both ``0:3b:0``."""
    parts = text.lower().split(".", 1)[0].split(":")
    try:
        return ":".join(f"{int(part, 16):x}" for part in parts[-3:])
    except ValueError:
        return text.lower()
