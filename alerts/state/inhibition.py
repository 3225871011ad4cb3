"""Alerts below a dead node, or below something in maintenance, page nobody. Pure.

A service counts as below only if all of its replicas are: one dead node is no reason to mute the SLO of a service. An
alert that is more urgent than those about the dead node pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from alerts.state.alert_labels import entity_labels
from outrider.model import Alert, AlertState, EntityKind, EntityRef, Priority
from outrider.records.silences import Silence
from outrider.topology import Topology

DEAD = frozenset({"node-lost"})
"""Faults of an entity that is gone: whatever rests on it cannot work."""
_WHOLE = (EntityKind.SERVICE, EntityKind.WORKLOAD)


@dataclass(frozen=True, slots=True)
class DeadEntity:
    """Incidents of the alerts about a dead entity, and the highest priority among them."""

    incidents: frozenset[str | None]
    priority: Priority

    @staticmethod
    def of(alerts: Sequence[Alert]) -> DeadEntity:
        """Joins the alerts, at least one."""
        most_urgent = min((alert.priority for alert in alerts), key=lambda priority: priority.rank)
        return DeadEntity(frozenset(alert.incident for alert in alerts), most_urgent)

    def inhibits(self, alert: Alert) -> bool:
        """True for an alert of another incident that is not more urgent."""
        return alert.incident not in self.incidents and alert.priority.rank >= self.priority.rank


@dataclass(slots=True)
class Inhibition:
    """What inhibits in one cycle: entities that are dead, and maintenance."""

    topology: Topology
    dead: Mapping[EntityRef, DeadEntity]
    maintenance: Sequence[Silence]
    _down: dict[EntityRef, frozenset[EntityRef]] = field(default_factory=dict)

    @staticmethod
    def of(alerts: Iterable[Alert], silences: Iterable[Silence], topology: Topology) -> Inhibition:
        """Collects firing alerts about dead entities, and the silences in force that include dependents."""
        about: dict[EntityRef, list[Alert]] = {}
        for alert in alerts:
            if alert.state is AlertState.FIRING and alert.fault in DEAD:
                about.setdefault(alert.entity, []).append(alert)
        dead = {entity: DeadEntity.of(members) for entity, members in about.items()}
        return Inhibition(topology, dead, tuple(silence for silence in silences if silence.dependents))

    def inhibits(self, alert: Alert) -> bool:
        """True if the alert is about something that rests on a dead entity or on one in maintenance.

        An alert in the incident of the dead entity is folded there, not inhibited.
        """
        if not self.dead and not self.maintenance:
            return False
        entity = alert.entity
        if entity.kind in _WHOLE:
            replicas = self.topology.below(entity, EntityKind.REPLICA)
            return bool(replicas) and all(self._is_below(replica, alert) for replica in replicas)
        return self._is_below(entity, alert)

    def _is_below(self, entity: EntityRef, alert: Alert) -> bool:
        return any(
            (under in self.dead and self.dead[under].inhibits(alert)) or self._in_maintenance(under)
            for under in self._below(entity)
            if under != alert.entity
        )

    def _below(self, entity: EntityRef) -> frozenset[EntityRef]:
        found = self._down.get(entity)
        if found is None:
            cluster = EntityRef(entity.cluster, EntityKind.CLUSTER, None, entity.cluster)
            found = self._down[entity] = self.topology.causes_of(entity) | {cluster}
        return found

    def _in_maintenance(self, entity: EntityRef) -> bool:
        labels = entity_labels(entity)
        return any(silence.rule is None and silence.selects("", entity, labels) for silence in self.maintenance)
