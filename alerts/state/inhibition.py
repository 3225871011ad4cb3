"""Alerts that a fault elsewhere explains, or that are below something in maintenance, page nobody. Pure.

The fault vocabulary lists the consequences of a fault (``inhibits``); the topology gives the entities where they show.
A service counts as below only if all of its replicas are: one dead node is no reason to mute the SLO of a service. An
alert that is more urgent than those about the cause pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from alerts.state.alert_labels import entity_labels, labels_of
from outrider.model import Alert, AlertState, EntityKind, EntityRef, Priority
from outrider.records.silences import Silence
from outrider.topology import Topology
from outrider.vocabulary.faults import ALL, SYMPTOMS, Consequences, faults

_WHOLE = (EntityKind.SERVICE, EntityKind.WORKLOAD)
_SERVING = (*_WHOLE, EntityKind.REPLICA, EntityKind.POD)  # a symptom of a node or GPU has a cause of its own


@dataclass(frozen=True, slots=True)
class Inhibitor:
    """Incidents of the alerts about one fault of one entity, the highest priority among them, and what they explain."""

    incidents: frozenset[str | None]
    priority: Priority
    explains: Consequences

    @staticmethod
    def of(alerts: Sequence[Alert], explains: Consequences) -> Inhibitor:
        """Joins the alerts, at least one."""
        most_urgent = min((alert.priority for alert in alerts), key=lambda priority: priority.rank)
        return Inhibitor(frozenset(alert.incident for alert in alerts), most_urgent, explains)

    def inhibits_dependent(self, alert: Alert) -> bool:
        """True for an explained alert on a dependent, of another incident and not more urgent."""
        return _lists(self.explains.dependents, alert) and self._is_cause_of(alert)

    def inhibits_dependency(self, alert: Alert) -> bool:
        """The same for an alert on a dependency."""
        return _lists(self.explains.dependencies, alert) and self._is_cause_of(alert)

    def _is_cause_of(self, alert: Alert) -> bool:
        return alert.incident not in self.incidents and alert.priority.rank >= self.priority.rank


@dataclass(slots=True)
class Inhibition:
    """What inhibits in one cycle: faults of entities, and maintenance. ``behind``: services with such dependencies."""

    topology: Topology
    inhibitors: Mapping[EntityRef, Sequence[Inhibitor]]
    behind: frozenset[EntityRef]
    maintenance: Sequence[Silence]
    _down: dict[EntityRef, frozenset[EntityRef]] = field(default_factory=dict)

    @staticmethod
    def of(alerts: Iterable[Alert], silences: Iterable[Silence], topology: Topology) -> Inhibition:
        """Collects firing alerts on faults with consequences, and the silences in force that include dependents."""
        about: dict[tuple[EntityRef, str], list[Alert]] = {}
        for alert in alerts:
            if alert.state is AlertState.FIRING and alert.fault is not None and _consequences(alert.fault):
                about.setdefault((alert.entity, alert.fault), []).append(alert)
        inhibitors: dict[EntityRef, list[Inhibitor]] = {}
        for (entity, fault), members in about.items():
            inhibitors.setdefault(entity, []).append(Inhibitor.of(members, _consequences(fault)))
        behind = frozenset(entity for entity, fault in about if _consequences(fault).dependencies)
        return Inhibition(topology, inhibitors, behind, tuple(silence for silence in silences if silence.dependents))

    def inhibits(self, alert: Alert) -> bool:
        """True if a fault explains the alert, or if it is about something that rests on an entity in maintenance.

        An alert in the incident of the cause is folded there, not inhibited.
        """
        if not self.inhibitors and not self.maintenance:
            return False
        entity = alert.entity
        if entity.kind in _WHOLE:
            replicas = self.topology.below(entity, EntityKind.REPLICA)
            if replicas:
                return all(self._is_below(replica, alert) for replica in replicas)
            return self._covers(_cluster_of(entity), alert)
        return self._is_below(entity, alert) or self._is_behind(entity, alert)

    def _is_below(self, entity: EntityRef, alert: Alert) -> bool:
        return any(self._covers(under, alert) for under in self._below(entity) if under != alert.entity)

    def _covers(self, under: EntityRef, alert: Alert) -> bool:
        """True if a fault of an entity below the alert's explains it, or if that entity is in maintenance."""
        explained = self._any(under, lambda inhibitor: inhibitor.inhibits_dependent(alert))
        return explained or self._in_maintenance(under, alert)

    def _is_behind(self, entity: EntityRef, alert: Alert) -> bool:
        """True if a fault of every service above the entity explains the alert."""
        if not self.behind:
            return False
        services = self.topology.above(entity, EntityKind.SERVICE)
        return bool(services) and all(
            service in self.behind and self._any(service, lambda inhibitor: inhibitor.inhibits_dependency(alert))
            for service in services
        )

    def _any(self, entity: EntityRef, explains: Callable[[Inhibitor], bool]) -> bool:
        return any(explains(inhibitor) for inhibitor in self.inhibitors.get(entity, ()))

    def _below(self, entity: EntityRef) -> frozenset[EntityRef]:
        found = self._down.get(entity)
        if found is None:
            found = self._down[entity] = self.topology.causes_of(entity) | {_cluster_of(entity)}
        return found

    def _in_maintenance(self, entity: EntityRef, alert: Alert) -> bool:
        """True if a silence selects the entity and does not exclude the alert above it."""
        labels = entity_labels(entity)
        return any(
            silence.rule is None and silence.selects("", entity, labels) and not _excludes(silence, alert)
            for silence in self.maintenance
        )


def _excludes(silence: Silence, alert: Alert) -> bool:
    """True if a negative condition does not hold for the alert: what is below may lack the label that it names."""
    negative = [matcher for matcher in silence.matchers if matcher.operator.is_negative]
    if not negative:
        return False
    labels = labels_of(alert)
    return not all(matcher.holds(labels) for matcher in negative)


def _lists(names: frozenset[str], alert: Alert) -> bool:
    """True if the names include the alert."""
    if not names:
        return False
    return ALL in names or (alert.fault or alert.rule) in names or (SYMPTOMS in names and _is_symptom(alert))


def _is_symptom(alert: Alert) -> bool:
    return alert.fault is None and alert.entity.kind in _SERVING and not alert.is_received


def _consequences(fault: str) -> Consequences:
    known = faults().get(fault)
    return known.inhibits if known is not None else Consequences()


def _cluster_of(entity: EntityRef) -> EntityRef:
    return EntityRef(entity.cluster, EntityKind.CLUSTER, None, entity.cluster)
