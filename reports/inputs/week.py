"""An ISO week and all its figures, before they are formatted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from outrider.errors import UsageError
from outrider.model import Plan
from reports.inputs.figures import ServiceFigures
from reports.inputs.fleet import FleetFigures
from reports.inputs.history import HistoryFigures

_WEEK = re.compile(r"(\d{4})-W(\d{2})")
_WEEK_LENGTH = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Week:
    """All figures of one week, before they are formatted."""

    start: datetime
    end: datetime
    services: tuple[ServiceFigures, ...]
    fleet: FleetFigures
    history: HistoryFigures
    plan: Plan
    price_per_gpu_hour: float | None
    currency: str

    @property
    def empty(self) -> bool:
        """True if nothing was collected and nothing was decided."""
        return not (self.services or self.fleet.gpus or self.history.incidents or self.history.actions)


def week_of(instant: datetime) -> str:
    """The ISO week of a timestamp: ``2026-W19``."""
    year, week, _ = instant.astimezone(UTC).isocalendar()
    return f"{year}-W{week:02d}"


def week_range(week: str) -> tuple[datetime, datetime]:
    """Monday 00:00 UTC to the next. Raises UsageError unless it is an existing week as YYYY-Www."""
    match = _WEEK.fullmatch(week.strip())
    year, number = (int(match[1]), int(match[2])) if match else (0, 0)
    try:
        start = datetime.fromisocalendar(year, number, 1).replace(tzinfo=UTC)
    except ValueError as error:
        raise UsageError(f"{week!r} is not a week", hint="write it as YYYY-Www, such as 2026-W19") from error
    return start, start + _WEEK_LENGTH
