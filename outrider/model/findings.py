"""What detectors see, say and remember."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray

from outrider.model.entities import EntityRef


class Priority(StrEnum):
    """P0 wakes two people, P3 waits for the weekly report."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"

    @property
    def rank(self) -> int:
        """0 for P0: smaller is more urgent."""
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
    """One observation that speaks for (or against) a finding. ``text`` is an i18n key."""

    signal: str
    observed: float | None
    expected: Interval | None = None
    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """A detector saw something out of the ordinary.

    ``fault`` is the fault id the detector itself believes in, None when it only saw a deviation.
    ``score`` is 0-1. ``fingerprint`` is stable while the same thing goes on: detector, entity, fault
    or signal.
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
    """Why a detector says nothing about an entity."""

    WARMING_UP = "warming_up"
    NO_VALUES = "no_values"
    UNTRUSTED_VALUES = "untrusted_values"
    NOT_ENOUGH_PEERS = "not_enough_peers"
    NO_EXPECTATION = "no_expectation"
    NOT_ENOUGH_EVENTS = "not_enough_events"
    CLOCK_STEP = "clock_step"


@dataclass(frozen=True, slots=True)
class NoVerdict:
    """The detector cannot say, and why. ``entity`` None means: about every entity of the window."""

    detector: str
    entity: EntityRef | None
    reason: NoVerdictReason


@dataclass(frozen=True, slots=True)
class DetectorState:
    """What a detector remembers between cycles, as versioned arrays.

    Row i of every per-entity array is about ``entities[i]``. ``version`` is the detector's own: a
    state of another version is dropped and learning starts anew.
    """

    version: int
    entities: tuple[EntityRef, ...]
    arrays: Mapping[str, NDArray[Any]]
