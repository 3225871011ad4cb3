"""Derived events: actions that the platform performed, and stops and starts of pods as those of their replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from outrider.model import Action, ActionKind, ActionStatus, EntityKind, EntityRef, Event, EventKind
from outrider.ports import StateReader
from outrider.topology import Topology
from service.engine import fleet_state

ACTIONS_WINDOW = timedelta(hours=1)
_OF_REPLICAS = frozenset({"Killing", "Evicted", "Started"})  # reasons of the kubelet's events


def of_actions(state: StateReader, topology: Topology, since: datetime, now: datetime) -> Iterator[Event]:
    """Yields actions that ended since then as events: a restart by the platform is not a crash. Raises StoreError."""
    for action in fleet_state.actions_since(state, now - ACTIONS_WINDOW):
        if action.status is not ActionStatus.DONE or action.ended_at is None or action.ended_at < since:
            continue
        for entity in (action.target, *topology.above(action.target, EntityKind.REPLICA), *_twins(action, topology)):
            yield Event(
                id=f"{action.id}:{entity.key}",
                kind=EventKind.ACTION,
                entity=entity,
                at=action.ended_at,
                source="outrider",
                code=action.kind.value,
                attributes={"because": action.because},
                dedup_key=f"{action.id}:{entity.key}",
            )


def _twins(action: Action, topology: Topology) -> tuple[EntityRef, ...]:
    """Returns the same service in other clusters, whose traffic a switch changes too."""
    if action.kind is not ActionKind.SWITCH_CLUSTER:
        return ()
    name, own = (action.target.namespace, action.target.name), action.target.cluster
    services = topology.of_kind(EntityKind.SERVICE)
    return tuple(other for other in services if (other.namespace, other.name) == name and other.cluster != own)


def of_pods(events: Sequence[Event], topology: Topology) -> Iterator[Event]:
    """Yields stops and starts of pods as events of their replicas: a planned stop is not a crash."""
    for event in events:
        if event.code in _OF_REPLICAS and event.entity.kind is EntityKind.POD:
            for replica in topology.above(event.entity, EntityKind.REPLICA):
                name = f"{event.id}:{replica.key}"
                yield replace(event, id=name, entity=replica, dedup_key=name)
