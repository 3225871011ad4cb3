"""What is broken: the suspected cause, and everything folded under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from outrider.model.entities import EntityRef
from outrider.model.findings import Evidence, Priority
from outrider.model.signals import Layer


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A candidate cause. ``confidence`` is 0-1."""

    entity: EntityRef
    fault: str
    confidence: float
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that was looked at and turned down; ``why`` is an i18n key."""

    entity: EntityRef
    fault: str
    why: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of an incident's story. ``what`` is an i18n key, ``arguments`` fill it."""

    at: datetime
    what: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that is broken: the suspected cause and everything folded under it.

    ``hypotheses`` are best first, the first one is the suspected cause; empty means "cause unknown".
    ``alerts`` are fingerprints. ``pages`` counts first notifications to a person.
    """

    id: str
    layer: Layer
    priority: Priority
    opened_at: datetime
    hypotheses: tuple[Hypothesis, ...]
    rejected: tuple[Rejected, ...]
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
        """The best hypothesis, None when the cause is unknown."""
        return self.hypotheses[0] if self.hypotheses else None

    @property
    def unknown_confidence(self) -> float:
        """What the confidences leave for "none of these", 0-1; 1 when nothing was named."""
        return max(0.0, 1.0 - sum(one.confidence for one in self.hypotheses))
