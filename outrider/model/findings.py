"""Input, results and state of detectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray

from outrider.model.entities import EntityRef


class Priority(StrEnum):
    """P0 pages two people, P3 goes into the weekly report."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"

    @property
    def rank(self) -> int:
        """0 for P0: a smaller rank is more urgent."""
        return int(self.value[1])


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed range; None is an open end."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Half-open: start <= t < end."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation that supports (or contradicts) a finding. ``text`` is an i18n key."""

    signal: str
    observed: float | None
    expected: Interval | None = None
    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """An anomaly found by a detector.

    ``fault`` is the fault id suspected by the detector, None for a mere deviation. ``score`` is 0-1. ``fingerprint`` is
    stable while the anomaly lasts: detector, entity, fault or signal.
    """

    detector: str
    entity: EntityRef
    signals: tuple[str, ...]
    severity: Priority
    score: float
    observed: float | None
    expected: Interval | None
    window: TimeRange
    evidence: tuple[Evidence, ...]
    fingerprint: str
    fault: str | None = None


class NoVerdictReason(StrEnum):
    """Reason why a detector has no verdict for an entity."""

    WARMING_UP = "warming_up"
    NO_VALUES = "no_values"
    UNTRUSTED_VALUES = "untrusted_values"
    NOT_ENOUGH_PEERS = "not_enough_peers"
    NO_EXPECTATION = "no_expectation"
    NOT_ENOUGH_EVENTS = "not_enough_events"
    CLOCK_STEP = "clock_step"


@dataclass(frozen=True, slots=True)
class NoVerdict:
    """No verdict, with its reason. ``entity`` None: for every entity of the window."""

    detector: str
    entity: EntityRef | None
    reason: NoVerdictReason


@dataclass(frozen=True, slots=True)
class DetectorState:
    """State of a detector between cycles, as versioned arrays.

    Row i of every per-entity array belongs to ``entities[i]``. ``version`` is set by the detector: a state of another
    version is dropped and learning restarts.
    """

    version: int
    entities: tuple[EntityRef, ...]
    arrays: Mapping[str, NDArray[Any]]
