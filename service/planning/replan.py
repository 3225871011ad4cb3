"""Triggers of an immediate plan: events and loads that the last plan did not foresee. Pure.

A surge must not wait for the next scheduled plan. An event triggers once; a load or a queue triggers again only after
it has changed, so that a long surge at the same load is planned once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from outrider.model import EntityRef
from planner.capacity.present import NOTABLE, UNKNOWN, WINDOW, PresentLoad, exceeds

LOAD_FAULTS = frozenset({"traffic-surge", "kv-pressure", "long-prompt-burst"})
"""Causes of an incident that more replicas end."""

_QUEUE_CHANGE = 0.25


class ReplanReason(StrEnum):
    """Reason for a plan outside the schedule."""

    INCIDENT = "incident"
    REPLICAS_LOST = "replicas_lost"
    REPLICAS_READY = "replicas_ready"
    ACTION_ENDED = "action_ended"
    LOAD_ABOVE_PLAN = "load_above_plan"
    QUEUE = "queue"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class ServiceNow:
    """Replicas and load of a service. ``current`` replicas are ordered, ``ready`` ones serve."""

    current: int = 0
    ready: int = 0
    present: PresentLoad = UNKNOWN


@dataclass(frozen=True, slots=True)
class LoadIncident:
    """An open incident whose cause is a load. A lower ``rank`` is more urgent."""

    rank: int
    services: frozenset[EntityRef]


@dataclass(frozen=True, slots=True)
class Situation:
    """One cycle as the triggers see it.

    ``incidents`` are the open ones with a cause of ``LOAD_FAULTS``, by id. ``ended`` maps actions that have ended to
    the services that they concern.
    """

    at: datetime
    services: Mapping[EntityRef, ServiceNow] = field(default_factory=dict)
    incidents: Mapping[str, LoadIncident] = field(default_factory=dict)
    ended: Mapping[str, frozenset[EntityRef]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedService:
    """What the last plan of a service was made from.

    ``upper`` is the highest load that its forecast expects now. ``per_replica`` are requests per second of a replica,
    ``wait_seconds`` the wait that the SLO allows. ``short``: more was needed than serves.
    """

    seen: ServiceNow
    upper: float | None
    per_replica: float | None
    wait_seconds: float
    short: bool = False


def triggers(
    planned: Mapping[EntityRef, PlannedService], before: Situation | None, now: Situation
) -> dict[EntityRef, tuple[ReplanReason, ...]]:
    """Returns the services whose plan must be revised now, with the reasons. ``before`` is the previous cycle."""
    events: dict[EntityRef, list[ReplanReason]] = {}
    if before is not None:
        for service, reason in (*_of_incidents(before, now), *_of_actions(before, now)):
            events.setdefault(service, []).append(reason)
    result = {}
    for service, known in planned.items():
        seen = now.services.get(service)
        if seen is not None:
            reasons = dict.fromkeys((*events.get(service, ()), *_of_replicas(known, seen), *_of_load(known, seen)))
            if is_above(known, seen.present) or is_late(known, seen):
                reasons.pop(ReplanReason.RECOVERED, None)  # the incident has another cause now; the load goes on
            if reasons:
                result[service] = tuple(reasons)
    return result


def _of_incidents(before: Situation, now: Situation) -> Iterator[tuple[EntityRef, ReplanReason]]:
    """Incidents that opened, became more urgent, reached another service, or are over."""
    for incident, current in now.incidents.items():
        earlier = before.incidents.get(incident)
        worse = earlier is None or current.rank < earlier.rank
        reached = current.services if worse or earlier is None else current.services - earlier.services
        yield from ((service, ReplanReason.INCIDENT) for service in reached)
    for incident, earlier in before.incidents.items():
        if incident not in now.incidents:
            yield from ((service, ReplanReason.RECOVERED) for service in earlier.services)


def _of_actions(before: Situation, now: Situation) -> Iterator[tuple[EntityRef, ReplanReason]]:
    for action, services in now.ended.items():
        if action not in before.ended:
            yield from ((service, ReplanReason.ACTION_ENDED) for service in services)


def _of_replicas(planned: PlannedService, now: ServiceNow) -> Iterator[ReplanReason]:
    if now.ready < planned.seen.ready:
        yield ReplanReason.REPLICAS_LOST
    elif now.ready > planned.seen.ready and (planned.short or planned.seen.ready < planned.seen.current):
        yield ReplanReason.REPLICAS_READY


def _of_load(planned: PlannedService, now: ServiceNow) -> Iterator[ReplanReason]:
    """A load above the forecast, a queue that the SLO does not allow, or the end of either."""
    if not _changed(planned.seen.present, now.present):
        return
    if is_above(planned, now.present):
        yield ReplanReason.LOAD_ABOVE_PLAN
    if is_late(planned, now):
        yield ReplanReason.QUEUE
    if planned.short:
        yield ReplanReason.RECOVERED


def is_above(planned: PlannedService, present: PresentLoad) -> bool:
    """True if the arrivals exceed the forecast's highest quantile by more than noise."""
    known = planned.upper is not None and present.arrivals is not None
    return known and exceeds(present.arrivals or 0.0, planned.upper or 0.0)


def is_late(planned: PlannedService, now: ServiceNow) -> bool:
    """True if the ready replicas do not serve the queue within the wait that the SLO allows."""
    serves = (planned.per_replica or 0.0) * now.ready
    return now.present.queued > serves * planned.wait_seconds


def _changed(before: PresentLoad, now: PresentLoad) -> bool:
    """True if arrivals or queue differ from those of the last plan by more than noise."""
    if now.rate is None:
        return False  # without values nothing is known to have changed
    old, new = before.arrivals, now.arrivals or 0.0
    if old is None or exceeds(new, old) or exceeds(old, new):
        return True
    if exceeds(before.calm or 0.0, now.calm or 0.0, WINDOW.total_seconds()):
        return True  # the mean that a plan after a surge uses has fallen
    queues = before.queued, now.queued
    return max(queues) - min(queues) > max(_QUEUE_CHANGE * max(queues), NOTABLE * (now.running or 0.0), 1.0)
