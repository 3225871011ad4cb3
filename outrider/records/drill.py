"""Faults that people put into a simulated fleet on purpose: what they know of them, and what others may know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from outrider.model import EntityRef


@dataclass(frozen=True, slots=True)
class DrillWindow:
    """When and where a drill runs: all that those who decide may know of it.

    ``name`` is the game day's, or ``drill`` for one that a person ordered.
    """

    cluster: str
    starts_at: datetime
    ends_at: datetime
    name: str


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault or a state put into a simulated fleet on purpose, and the truth about it. For people alone.

    ``game_day`` names the scheduled game day it belongs to, None when a person started it;
    ``stopped_at`` is set when it was ended before its time; ``negative`` is a state that is no fault;
    ``path`` holds its entity with everything above and below it, and all it touched, at its start.
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
        """When it is over: at its end, or when it was ended before."""
        return self.stopped_at or self.ends_at

    @property
    def window(self) -> DrillWindow:
        """What those who decide may know of it."""
        return DrillWindow(self.entity.cluster, self.starts_at, self.over_at, self.game_day or "drill")

    def running(self, now: datetime) -> bool:
        """True while it is at work."""
        return self.starts_at <= now < self.over_at
