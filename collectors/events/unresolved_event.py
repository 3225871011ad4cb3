"""Events before entity resolution, and their resolution with the topology.

Kernel logs name PCI addresses and cgroups, container logs a pod, deployments themselves.
Detectors need the GPU, the replica and the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.topology import Topology

# Look-back of the first reading of a source: the period in which detection searches for causes. Events stored
# before a restart are recognized by their key and not stored twice.
FIRST_LOOK = timedelta(minutes=45)
MOST_TEXT = 1_000


@dataclass(frozen=True, slots=True)
class UnresolvedEvent:
    """One event before its entity is resolved. ``entity`` is the one that the source names.

    ``pci`` or ``pod_uid`` name a device or pod on the node in ``entity``. ``aim`` REPLICA requests the replica of a
    pod, SERVICE the service of a workload; ``service`` is then the name in its labels.
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
    """Resolves PCI addresses, pod UIDs and workload names to entities.

    Built once per topology, because it reads every label.
    """

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
        below = {entity.name for entity in self.topology.rests_on(gpu) if entity.kind is EntityKind.NODE}
        return below | ({facts["node"]} if facts.get("node") else set())

    def entity(self, event: UnresolvedEvent) -> EntityRef:
        """Returns the affected entity; the one that the source named if nothing better is known."""
        if event.pci:
            return self._devices.get((event.entity.name, pci_of(event.pci)), event.entity)
        if event.pod_uid:
            return self._pods.get(event.pod_uid, event.entity)
        if event.aim is EntityKind.REPLICA:
            replicas = [entity for entity in self.topology.holds_up(event.entity) if entity.kind is EntityKind.REPLICA]
            named = EntityRef(event.entity.cluster, EntityKind.REPLICA, event.entity.namespace, event.entity.name)
            return replicas[0] if len(replicas) == 1 else named
        if event.aim is EntityKind.SERVICE:
            service = self._services.get((event.entity.namespace, event.entity.name))
            if service is None and event.service:
                return EntityRef(event.entity.cluster, EntityKind.SERVICE, event.entity.namespace, event.service)
            return service or event.entity
        return event.entity

    def events(self, readings: Iterable[UnresolvedEvent]) -> tuple[Event, ...]:
        """Resolves readings to events."""
        return tuple(
            Event(
                id=reading.key,
                kind=reading.kind,
                entity=self.entity(reading),
                at=reading.at,
                source=reading.source,
                code=reading.code,
                attributes=reading.attributes,
                dedup_key=reading.key,
            )
            for reading in readings
        )


def pci_of(text: str) -> str:
    """Normalises a PCI address: ``0000:3b:00`` and ``00000000:3B:00.0`` both become ``0:3b:0``."""
    parts = text.lower().split(".", 1)[0].split(":")
    try:
        return ":".join(f"{int(part, 16):x}" for part in parts[-3:])
    except ValueError:
        return text.lower()
