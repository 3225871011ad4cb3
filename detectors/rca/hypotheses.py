"""Fault hypotheses and the explains relation between them, shared by correlation and ranking.

A hypothesis is "this entity has this fault" or, without a fault, "this entity shows a symptom". One explains another
if the knowledge of its fault says so, the topology joins them, and the times fit. Pairs are found from each hypothesis
upwards in the topology, never by comparing all with all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum

from detectors.rca.fault_catalogue import FaultKnowledge, Knowledge
from outrider.model import Alert, AlertReason, EntityKind, EntityRef, Layer
from outrider.topology import Topology
from outrider.vocabulary.faults import faults
from outrider.vocabulary.tenants import service_of

WINDOW = timedelta(minutes=15)  # conditions that start within it may be one incident
PEER_LATENESS = timedelta(minutes=1)  # a lost replica is seen within two scrapes, and its peers queue after that
EXACT_LATENESS = timedelta(minutes=3)  # load is counted as it arrives, so earlier symptoms have another cause
WELL_BEFORE = timedelta(minutes=5)  # all late detections have happened by then
LATER = timedelta(seconds=30)  # minimum, or two scrapes if slower; a larger distance means a later start
INSTANT = timedelta(minutes=2)  # tolerance of "at the same time" for scrapes some seconds apart

# Distance from the user: a fault can show in everything further down in this list.
_DEPTH = {
    EntityKind.CLUSTER: 0,
    EntityKind.POOL: 1,
    EntityKind.SWITCH: 1,
    EntityKind.STORAGE: 1,
    EntityKind.NODE: 2,
    EntityKind.PORT: 3,
    EntityKind.GPU: 3,
    EntityKind.POD: 4,
    EntityKind.CONTAINER: 4,
    EntityKind.REPLICA: 5,
    EntityKind.WORKLOAD: 6,
    EntityKind.SERVICE: 7,
    EntityKind.TENANT: 8,
}


def depth_of(entity: EntityRef) -> int:
    """0 for a cluster, 7 for a service, 8 for a tenant of one."""
    return _DEPTH[entity.kind]


USER_FACING = (EntityKind.REPLICA, EntityKind.WORKLOAD, EntityKind.SERVICE, EntityKind.TENANT)


class TopologyRelation(IntEnum):
    """Topology relation of cause and symptom; smaller is closer."""

    CLUSTER = 0  # monitoring or the whole cluster is gone: nothing in it counts by itself
    PATH = 1
    BELOW = 2
    PEERS = 3


@dataclass(frozen=True, slots=True)
class FaultHypothesis:
    """One fault or symptom of an entity. ``strength`` is 0-1; ``firing`` means that an alert supports it.

    ``alerts`` are fingerprints. ``home`` is the id of the open incident that it belongs to. ``over`` is when its
    alert's condition was last true, while the alert waits for its clear time or, in its own incident, after that; None
    while it is true.
    """

    entity: EntityRef
    fault: str | None
    since: datetime
    strength: float = 0.8
    firing: bool = True
    alerts: tuple[str, ...] = ()
    home: str | None = None
    over: datetime | None = None

    @property
    def depth(self) -> int:
        """0 for a cluster, 7 for a service."""
        return depth_of(self.entity)

    @property
    def order(self) -> tuple[int, datetime, str, str]:
        """Deepest and earliest first; total, so that results do not depend on the input order."""
        return (self.depth, self.since, self.entity.key, self.fault or "")


@dataclass(frozen=True, slots=True)
class Pair:
    """Hypothesis number ``cause`` explains hypothesis number ``symptom``."""

    cause: int
    symptom: int
    tie: TopologyRelation


@dataclass(slots=True)
class Reach:
    """Entities that a fault can reach, cached for the duration of one call."""

    topology: Topology
    _up: dict[EntityRef, frozenset[EntityRef]] = field(default_factory=dict)
    _services: dict[EntityRef, tuple[EntityRef, ...]] = field(default_factory=dict)
    _nodes: dict[EntityRef, frozenset[EntityRef]] = field(default_factory=dict)

    def up(self, entity: EntityRef) -> frozenset[EntityRef]:
        """The entity and everything that rests on it.

        If no GPU of a node is mapped to pods, a GPU reaches everything that runs on its node.
        """
        entities = self._up.get(entity)
        if entities is None:
            entities = self.topology.affected_by(entity)
            if entity.kind is EntityKind.GPU and len(entities) == 1:
                entities |= self._beside(entity)
            self._up[entity] = entities
        return entities

    def _beside(self, card: EntityRef) -> frozenset[EntityRef]:
        reached: set[EntityRef] = set()
        for node in self.topology.below(card, EntityKind.NODE):
            beside = self.topology.affected_by(node)
            cards = [other for other in beside if other.kind is EntityKind.GPU]
            if not any(self.topology.holds_up(other) for other in cards):
                reached |= {other for other in beside if other.kind not in (EntityKind.GPU, EntityKind.NODE)}
        return frozenset(reached)

    def services(self, entity: EntityRef) -> tuple[EntityRef, ...]:
        """The services it can affect, sorted; all of them for a cluster."""
        entities = self._services.get(entity)
        if entities is None:
            if entity.kind is EntityKind.TENANT:
                entities = (service_of(entity),)
            elif entity.kind is EntityKind.CLUSTER:
                everything = self.topology.of_kind(EntityKind.SERVICE)
                entities = tuple(service for service in everything if service.cluster == entity.cluster)
            else:
                roots = (entity, *self._labeled(entity)) if entity.kind is EntityKind.POOL else (entity,)
                reached = {other for root in roots for other in self.up(root) if other.kind is EntityKind.SERVICE}
                entities = tuple(sorted(reached, key=lambda other: other.key))
            self._services[entity] = entities
        return entities

    def _labeled(self, pool: EntityRef) -> Iterator[EntityRef]:
        """Nodes that name a pool in their label, as not every topology source has the edge."""
        for node in self.topology.of_kind(EntityKind.NODE):
            if node.cluster == pool.cluster and self.topology.label(node, "pool") == pool.name:
                yield node

    def nodes(self, entity: EntityRef) -> frozenset[EntityRef]:
        """The nodes it rests on, itself if it is one."""
        entities = self._nodes.get(entity)
        if entities is None:
            entities = frozenset(self.topology.below(entity, EntityKind.NODE))
            self._nodes[entity] = entities
        return entities


def pairs(hypotheses: Sequence[FaultHypothesis], reach: Reach, knowledge: Knowledge) -> Iterator[Pair]:
    """Every (cause, symptom) among the hypotheses, each once. A hypothesis never explains itself."""
    at: dict[EntityRef, list[int]] = {}
    for number, hypothesis in enumerate(hypotheses):
        at.setdefault(hypothesis.entity, []).append(number)
    places = frozenset(at)
    seen: set[tuple[int, int]] = set()
    for result in (
        *_in_cluster(hypotheses, knowledge),
        *_on_paths(hypotheses, at, places, reach, knowledge),
        *_among_peers(hypotheses, reach, knowledge),
    ):
        if (result.cause, result.symptom) not in seen:
            seen.add((result.cause, result.symptom))
            yield result


def _in_cluster(hypotheses: Sequence[FaultHypothesis], knowledge: Knowledge) -> Iterator[Pair]:
    for number, cause in enumerate(hypotheses):
        known = _known(cause, knowledge)
        if known is None or not known.consequences("cluster"):
            continue
        wanted = known.consequences("cluster")
        for other, symptom in enumerate(hypotheses):
            if other == number or symptom.entity.cluster != cause.entity.cluster:
                continue
            fits = symptom.fault in wanted if symptom.fault else symptom.entity.kind in known.hurts
            if fits and not _is_new_fault(cause, symptom) and _same_instant(cause, symptom):
                yield Pair(number, other, TopologyRelation.CLUSTER)


def _on_paths(
    hypotheses: Sequence[FaultHypothesis],
    at: dict[EntityRef, list[int]],
    places: frozenset[EntityRef],
    reach: Reach,
    knowledge: Knowledge,
) -> Iterator[Pair]:
    for number, lower in enumerate(hypotheses):
        for place in reach.up(lower.entity) & places:
            for other in at[place]:
                if other == number:
                    continue
                upper = hypotheses[other]
                if _explains_path(lower, upper, knowledge) and _in_time(lower, upper, WINDOW):
                    yield Pair(number, other, TopologyRelation.PATH)
                if (
                    place != lower.entity
                    and not _is_new_fault(upper, lower)
                    and _explains_below(upper, lower, knowledge)
                    and _in_time(upper, lower, WINDOW)
                ):
                    yield Pair(other, number, TopologyRelation.BELOW)


def _among_peers(hypotheses: Sequence[FaultHypothesis], reach: Reach, knowledge: Knowledge) -> Iterator[Pair]:
    """Per symptom and service only the earliest cause, since all would be the same explanation.

    A cause with the same fault on another replica does not explain the origin of both, so it counts separately.
    """
    causes: dict[tuple[EntityRef, str | None, bool], list[int]] = {}
    for number in sorted(
        range(len(hypotheses)), key=lambda index: (not hypotheses[index].firing, hypotheses[index].order[1:])
    ):
        cause = hypotheses[number]
        known = _known(cause, knowledge)
        if known is None or not known.consequences("peers"):
            continue
        for service in reach.services(cause.entity):
            for fault in (None, *known.consequences("peers")):
                causes.setdefault((service, fault, fault == cause.fault), []).append(number)
    for number, symptom in enumerate(hypotheses):
        if symptom.fault is None and symptom.entity.kind not in USER_FACING:
            continue
        for service in reach.services(symptom.entity):
            for alike in (False, True):
                for cause_number in causes.get((service, symptom.fault, alike), ()):
                    cause = hypotheses[cause_number]
                    if cause_number != number and not _is_new_fault(cause, symptom) and _in_peer_time(cause, symptom):
                        yield Pair(cause_number, number, TopologyRelation.PEERS)
                        break


def _known(hypothesis: FaultHypothesis, knowledge: Knowledge) -> FaultKnowledge | None:
    return knowledge.get(hypothesis.fault) if hypothesis.fault else None


def _explains_path(cause: FaultHypothesis, symptom: FaultHypothesis, knowledge: Knowledge) -> bool:
    known = _known(cause, knowledge)
    if known is None:
        return False
    if symptom.fault is None:
        return symptom.entity == cause.entity or symptom.entity.kind in known.hurts
    if ended_before(cause, symptom):
        return False  # an ended fault breaks nothing new; only queues and their load may outlast it
    return symptom.fault in known.consequences("path") or _is_part(cause, symptom, known)


def _is_part(cause: FaultHypothesis, symptom: FaultHypothesis, known: FaultKnowledge) -> bool:
    """True if a component's fault explains the same fault reported for the whole."""
    kind = known.fault.entity
    return symptom.fault == cause.fault and cause.entity.kind is kind and symptom.entity.kind is not kind


def _explains_below(cause: FaultHypothesis, symptom: FaultHypothesis, knowledge: Knowledge) -> bool:
    known = _known(cause, knowledge)
    if known is None:
        return False
    if symptom.fault is None:
        return bool(known.consequences("below")) and symptom.entity.kind in known.hurts
    return symptom.fault in known.consequences("below")


def _in_time(cause: FaultHypothesis, symptom: FaultHypothesis, lateness: timedelta) -> bool:
    """A cause may be detected late; while it lasts it explains later symptoms."""
    after = symptom.since - cause.since
    if has_exact_start(cause):
        lateness = min(lateness, EXACT_LATENESS)
    return after >= -lateness and (cause.firing or _since_end(cause, symptom) <= WINDOW)


def _since_end(cause: FaultHypothesis, symptom: FaultHypothesis) -> timedelta:
    """Time from the end of a cause to the start of a symptom; from its start if the end is unknown."""
    return symptom.since - (cause.over or cause.since)


def began_inside(cause: FaultHypothesis, symptom: FaultHypothesis) -> bool:
    """True if a symptom began while its cause lasted, or just after a cause whose alert has resolved."""
    ended = not cause.firing and cause.over is not None and symptom.since - cause.over <= INSTANT
    return cause.firing or (ended and symptom.since >= cause.since - LATER)


def _is_new_fault(cause: FaultHypothesis, symptom: FaultHypothesis) -> bool:
    """True if a named fault began after a cause whose alert has resolved: only symptoms without a fault outlast it."""
    return symptom.fault is not None and not cause.firing and ended_before(cause, symptom)


def ended_before(first: FaultHypothesis, second: FaultHypothesis) -> bool:
    """True if one ended before the other began."""
    return first.over is not None and second.since - first.over > INSTANT


def begins_later(cause: FaultHypothesis, symptom: FaultHypothesis, late: timedelta = LATER) -> bool:
    """True if a cause was seen to begin after its symptom; an earlier cause is more likely.

    ``late`` is the tolerance for two scrapes, as targets are not scraped at the same time.
    """
    return cause.since - symptom.since > late


def comes_first(first: FaultHypothesis, second: FaultHypothesis) -> bool:
    """Of two that explain each other: the one that began well before, else the deeper, else the earlier.

    Pending replicas ordered by a surge do not explain the surge.
    """
    apart = first.since - second.since
    return apart < timedelta(0) if abs(apart) > WELL_BEFORE else first.order < second.order


def over(alerts: Iterable[Alert]) -> datetime | None:
    """Time at which the condition of these firing alerts was last true; None if one still holds or there are none."""
    firing = list(alerts)
    if not firing or any(alert.reason is not AlertReason.CONDITION_GONE for alert in firing):
        return None
    return max(alert.seen_at for alert in firing)


def has_exact_start(hypothesis: FaultHypothesis) -> bool:
    """True for faults with an exact start: load, and a batch limit since its flag change."""
    if hypothesis.fault is None:
        return False
    return hypothesis.fault == "batch-misconfigured" or faults()[hypothesis.fault].layer is Layer.TRAFFIC


def _in_peer_time(cause: FaultHypothesis, symptom: FaultHypothesis) -> bool:
    after = symptom.since - cause.since
    outlasts = symptom.fault is None and not cause.firing and _since_end(cause, symptom) <= WINDOW
    return after >= -PEER_LATENESS and (after <= WINDOW or outlasts)


def _same_instant(cause: FaultHypothesis, symptom: FaultHypothesis) -> bool:
    after = symptom.since - cause.since
    outlasts = symptom.fault is None and cause.over is not None and _since_end(cause, symptom) <= WINDOW
    return after >= -INSTANT and (cause.firing or after <= INSTANT or outlasts)


def gathered(pairs_found: Iterable[Pair], count: int) -> tuple[list[list[Pair]], list[list[Pair]]]:
    """The pairs by symptom and by cause, two lists of length ``count``."""
    by_symptom: list[list[Pair]] = [[] for _ in range(count)]
    by_cause: list[list[Pair]] = [[] for _ in range(count)]
    for pair in pairs_found:
        by_symptom[pair.symptom].append(pair)
        by_cause[pair.cause].append(pair)
    return by_symptom, by_cause
