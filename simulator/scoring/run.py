"""One run of a scenario as values: injected faults, and the incidents, alerts and actions that followed them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.model import EntityRef, Priority

STORM_ENTITIES = 10  # a ground truth that touches this many is a storm


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """An injected fault. ``path`` has the entity with everything above and below it.

    ``recovered_at`` is the time at which its impact on the service ended before the fault itself, None if never.
    ``repaired_by`` are the action kinds of its playbook, None if unknown. ``pod_created_at`` is the creation of the pod
    whose start ended the impact, None if no pod had to start. ``newest_pod_at`` is the creation of the newest pod that
    served by then. ``harmed`` is False if it never had an impact.
    ``rings`` are its symptomatic parts, nearest first: touched entities, its path, the rest of the services on it;
    empty if grouping is not scored.
    """

    fault: str
    entity: EntityRef
    start: datetime
    end: datetime
    path: frozenset[EntityRef]
    recovered_at: datetime | None = None
    rings: tuple[frozenset[EntityRef], ...] = ()
    repaired_by: frozenset[str] | None = None
    pod_created_at: datetime | None = None
    newest_pod_at: datetime | None = None
    harmed: bool = True


@dataclass(frozen=True, slots=True)
class ScoredIncident:
    """An observed incident. ``entities``: those of its causes and of all alerts folded into it.

    ``hypotheses`` are (entity, fault id), best first, ``confidences`` their confidences, 0-1; the rest up to 1 is
    "none of these". ``notified_at`` is the first message to a person, ``paged_at`` the first one of P0 or P1. One page
    may name several incidents and belongs to its sender; ``called_at`` is the first page that names this incident.
    """

    id: str
    opened_at: datetime
    resolved_at: datetime | None
    priority: Priority
    hypotheses: tuple[tuple[EntityRef, str], ...]
    entities: frozenset[EntityRef]
    paged_at: datetime | None = None
    notified_at: datetime | None = None
    confidences: tuple[float, ...] = ()
    called_at: datetime | None = None

    @property
    def is_called(self) -> bool:
        """True if a page named it."""
        return self.paged_at is not None or self.called_at is not None


@dataclass(frozen=True, slots=True)
class ScoredAction:
    """An allowed and performed action, not a dry run. ``at`` is its first attempt.

    ``takes_capacity``: it took replicas away or restarted one.
    """

    incident: str
    kind: str
    target: EntityRef
    at: datetime
    takes_capacity: bool = False


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """An alert that fired: its entity, its start, and its final incident, None without one."""

    entity: EntityRef
    at: datetime
    incident: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a scenario: injected faults and observations. ``alerts`` counts fired alerts, ``fired`` lists them.

    ``lookalike``: its faults resemble each other, or a state beside them. ``storm``: its faults touch
    ``STORM_ENTITIES`` or more.
    """

    scenario: str
    start: datetime
    end: datetime
    targets: int
    injected: tuple[InjectedFault, ...]
    incidents: tuple[ScoredIncident, ...]
    alerts: int
    acted: tuple[ScoredAction, ...] = ()
    negative: bool = False
    storm: bool = False
    fired: tuple[FiredAlert, ...] = ()
    lookalike: bool = False

    @property
    def target_days(self) -> float:
        """Targets x monitored days."""
        return self.targets * ((self.end - self.start) / timedelta(days=1))
