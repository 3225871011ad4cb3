"""Optional abilities of detectors. A caller finds them by ``isinstance``, never by attribute name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from detectors.base.state_arrays import Arrays
from outrider.model import AlarmRate, DetectorState, EntityRef, Floats, Statistic, Window


@dataclass(frozen=True, slots=True)
class Absence:
    """Length of the absence of entities: ``seconds`` (entities,) since their state left the window.

    ``left`` (entities,) is the detector's own clock at that time, ``reached`` its clock now.
    """

    seconds: Floats
    left: Floats
    reached: float


@dataclass(frozen=True, slots=True)
class AlertFeedback:
    """Operator feedback on one span of an alert. ``useful`` is True if the alert had a real cause."""

    entity: EntityRef
    start: datetime
    end: datetime
    useful: bool


@runtime_checkable
class LearningDetector(Protocol):
    """A detector that alerts only after it has learned enough history of its class of entities."""

    weekly: bool
    """True if it uses a weekly profile, which takes longer to learn."""

    def learnt(self, state: DetectorState) -> timedelta:
        """Returns the length of the history learned for the class, without data gaps."""
        ...

    def alarm_rate(self, state: DetectorState) -> AlarmRate:
        """Returns alarms per entity-day and the budget."""
        ...

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replaces the default budget. Call before the first cycle."""
        ...


@runtime_checkable
class ResumableDetector(Protocol):
    """A detector whose state of an entity stays useful when the entity returns after hours."""

    def of_entities(self, count: int) -> Arrays:
        """Returns the state of ``count`` unknown entities. Its names and shapes are those of the dormant state."""
        ...

    def clock(self, state: DetectorState) -> float:
        """Returns how far a state has advanced, in the detector's own unit."""
        ...

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Advances the rows of returning entities to now. Changes ``memory``."""
        ...


@runtime_checkable
class RestorableDetector(Protocol):
    """A detector that validates a checkpoint before it is used."""

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """Returns the usable part of a checkpoint, and the reason if a part is dropped ("" if none is)."""
        ...


@runtime_checkable
class WarmableDetector(Protocol):
    """A detector that learns from stored history at start-up."""

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Returns the state after it has learned the history in ``window``."""
        ...


@runtime_checkable
class FineWarmableDetector(WarmableDetector, Protocol):
    """A detector that learns the newest part of the history at a step of its own."""

    warm_step: timedelta
    warm_statistic: Statistic


@runtime_checkable
class FeedbackDetector(Protocol):
    """A detector that learns from operators' verdicts on its alerts."""

    def teach(self, state: DetectorState, judged: Sequence[AlertFeedback]) -> DetectorState:
        """Returns the state after all feedback in ``judged`` is applied."""
        ...
