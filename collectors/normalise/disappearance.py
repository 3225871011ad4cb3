"""Entities that left a target's page, and for devices the topology above them.

Most entities leave a page on purpose and are dropped after a while; tenants at once. A device does not leave: it stays
lost, with its edges in the topology, until it is back or another one replaces it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from collectors.mapping.entity_binding import Binding
from outrider.model import EntityKind, EntityRef
from outrider.topology import Edge

REMEMBER_SECONDS = 15 * 60.0
DOUBT_SECONDS = 2 * 60.0  # absence for longer is intended, except of devices
LOST = "lost"  # label of a device that is missing from its page


@dataclass(slots=True)
class DisappearedEntities:
    """Entities of earlier pages of a target. ``stays`` are the kinds that do not leave on purpose."""

    stays: Collection[EntityKind] = ()
    since: dict[EntityKind, dict[EntityRef, float]] = field(default_factory=dict)
    edges: dict[EntityRef, tuple[Edge, ...]] = field(default_factory=dict)
    labels: dict[EntityRef, Mapping[str, str]] = field(default_factory=dict)

    def of(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Lost entities of a kind, in the order they left."""
        return tuple(self.since.get(kind, ()))

    def any(self) -> bool:
        """True if something is missing."""
        return any(self.since.values())

    def in_doubt(self, at: float) -> bool:
        """True if a device is missing, or something else left so recently that the page may be truncated."""
        return any(
            kind in self.stays or any(at - left <= DOUBT_SECONDS for left in lost.values())
            for kind, lost in self.since.items()
            if lost
        )

    def compare(self, before: Binding | None, now: Binding, at: float) -> None:
        """Records the entities that left or came back between two bindings; ``at`` is the time of the former."""
        for kind in {*now.entities, *(before.entities if before else ())} - {EntityKind.TENANT}:
            here = set(now.entities.get(kind, ()))
            were = before.entities.get(kind, ()) if before else ()
            lost = self.since.setdefault(kind, {})
            new = here - set(were) - lost.keys()
            for entity in were:
                if entity not in here and before is not None and not self._part_of(kind, entity, before):
                    lost[entity] = at
                    self._keep(kind, entity, before)
            for entity in here & lost.keys():
                self._drop(kind, entity)
            if kind in self.stays:
                for entity in list(lost)[: len(new) if before else 0]:  # replaced: one new device for each lost one
                    self._drop(kind, entity)

    def forget_old(self, at: float) -> None:
        """Drops entities that left long ago, except devices."""
        for kind, lost in self.since.items():
            if kind not in self.stays:
                for entity in [entity for entity, left in lost.items() if at - left > REMEMBER_SECONDS]:
                    self._drop(kind, entity)

    def _part_of(self, kind: EntityKind, entity: EntityRef, before: Binding) -> bool:
        """True for a part of a device, which changes by configuration."""
        return kind in self.stays and bool(before.labels.get(entity, {}).get("part_of"))

    def _keep(self, kind: EntityKind, entity: EntityRef, before: Binding) -> None:
        if kind in self.stays:
            self.edges[entity] = tuple(edge for edge in before.edges if entity in edge)
            self.labels[entity] = {**before.labels.get(entity, {}), LOST: "true"}

    def _drop(self, kind: EntityKind, entity: EntityRef) -> None:
        del self.since[kind][entity]
        self.edges.pop(entity, None)
        self.labels.pop(entity, None)
