"""Drills: faults injected into a simulated fleet, with the part of them that deciding code may see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from outrider.model import EntityRef


@dataclass(frozen=True, slots=True)
class DrillWindow:
    """Time and cluster of a drill: all that deciding code may know of it.

    ``name`` is that of the game day, or ``drill`` for one started by a person.
    """

    cluster: str
    starts_at: datetime
    ends_at: datetime
    name: str


@dataclass(frozen=True, slots=True)
class Drill:
    """An injected fault or state with its ground truth, for people only.

    ``game_day`` names the scheduled game day it belongs to, None if a person started it; ``stopped_at`` is set if it
    was stopped early; ``negative`` is a state that is not a fault; ``path`` holds its entity with everything above and
    below it, and all affected entities, at its start.
    """

    id: str
    fault: str
    entity: EntityRef
    seed: int
    starts_at: datetime
    ends_at: datetime
    by: str
    symptoms: tuple[str, ...] = ()
    game_day: str | None = None
    stopped_at: datetime | None = None
    negative: bool = False
    path: tuple[EntityRef, ...] = ()

    @property
    def over_at(self) -> datetime:
        """Its end: as planned, or when it was stopped."""
        return self.stopped_at or self.ends_at

    @property
    def window(self) -> DrillWindow:
        """The part that deciding code may know."""
        return DrillWindow(self.entity.cluster, self.starts_at, self.over_at, self.game_day or "drill")

    def running(self, now: datetime) -> bool:
        """True while it is active."""
        return self.starts_at <= now < self.over_at
