"""Incidents: the suspected cause, and the alerts grouped under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outrider.clock import parse_rfc3339
from outrider.model.entities import EntityRef
from outrider.model.findings import Evidence, Priority
from outrider.model.signals import Layer

CAUSE_OVER = "incidents.timeline.cause_over"  # the last alert of the suspected cause resolved, with ``last``
CAUSE_RETURNED = "incidents.timeline.cause_returned"


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A candidate cause. ``confidence`` is 0-1."""

    entity: EntityRef
    fault: str
    confidence: float
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class RejectedHypothesis:
    """A rejected candidate; ``why`` is an i18n key."""

    entity: EntityRef
    fault: str
    why: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of an incident's timeline. ``what`` is an i18n key, ``arguments`` fill it."""

    at: datetime
    what: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """One line of a status message. ``what`` is an i18n key, ``arguments`` fill it."""

    what: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IncidentProgress:
    """Progress of a repair that takes long. A status message follows each change of ``state``, and ``every``."""

    every: timedelta
    state: str
    lines: tuple[ProgressLine, ...]


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident: the suspected cause and the alerts grouped under it.

    ``hypotheses`` are sorted by confidence; the first is the suspected cause, none means "cause unknown". ``alerts``
    are fingerprints. ``pages`` counts first notifications to a person.
    """

    id: str
    layer: Layer
    priority: Priority
    opened_at: datetime
    hypotheses: tuple[Hypothesis, ...]
    rejected: tuple[RejectedHypothesis, ...]
    alerts: tuple[str, ...]
    timeline: tuple[TimelineEntry, ...]
    updated_at: datetime
    resolved_at: datetime | None = None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    services: tuple[str, ...] = ()
    pages: int = 0

    @property
    def suspected_cause(self) -> Hypothesis | None:
        """The best hypothesis; None if the cause is unknown."""
        return self.hypotheses[0] if self.hypotheses else None

    @property
    def cause_ended_at(self) -> datetime | None:
        """When the suspected cause was last seen, if its alerts have resolved while its symptoms decay; else None."""
        cause = self.suspected_cause
        if cause is None:
            return None
        named = {"fault": cause.fault, "entity": str(cause.entity)}
        marks = [entry for entry in self.timeline if entry.what in (CAUSE_OVER, CAUSE_RETURNED)]
        own = [entry for entry in marks if named.items() <= entry.arguments.items()]
        return parse_rfc3339(own[-1].arguments["last"]) if own and own[-1].what == CAUSE_OVER else None

    @property
    def unknown_confidence(self) -> float:
        """Confidence in "none of these", 0-1; 1 without hypotheses."""
        return max(0.0, 1.0 - sum(hypothesis.confidence for hypothesis in self.hypotheses))

    def concerns(self, service: EntityRef) -> bool:
        """True if it names the service, by key, ``str`` or bare name, or suspects the service itself."""
        cause = self.suspected_cause
        names = {service.key, str(service), service.name}
        return not names.isdisjoint(self.services) or (cause is not None and cause.entity == service)
