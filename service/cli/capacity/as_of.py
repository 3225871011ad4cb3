"""Age of a plan, and checks of the ``--at`` option."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil, floor
from typing import Any

from outrider.clock import SystemClock, from_unix, rfc3339
from outrider.errors import UsageError
from outrider.ports import StateReader
from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_duration
from service.config.settings import Settings
from service.wiring import stores as wiring_stores

LATE = timedelta(minutes=5)
_LATE_INTERVALS = 5


def check(settings: Settings, at: datetime) -> None:
    """Rejects a time outside the recorded span. Raises UsageError that names the span."""
    with wiring_stores.state_reader(settings) as state:
        newest = state.cycles(limit=1)
        if not newest:
            return
        if at > max(newest[0].at, SystemClock().now()):
            message = f"--at {rfc3339(at)} is in the future; the newest cycle is of {rfc3339(newest[0].at)}"
            raise UsageError(message, hint="omit --at to plan from now; the plan covers the next day")
        if not state.topology(at).entities:
            first = _watched_since(state, at, newest[0].at)
            raise UsageError(
                f"the services at {rfc3339(at)} are unknown: this store begins at {rfc3339(first)}",
                hint="use a later --at; older load history has no replica counts",
            )


def _watched_since(state: StateReader, before: datetime, newest: datetime) -> datetime:
    """First time, in whole seconds, with a known topology after ``before``. Found by bisection."""
    low, high = floor(before.timestamp()), ceil(newest.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if state.topology(from_unix(middle)).entities else (middle, high)
    return min(newest, from_unix(high))


def age_seconds(made_at: datetime) -> float:
    """Age of a plan in seconds, never below 0."""
    return max(0.0, (SystemClock().now() - made_at).total_seconds())


def note(plans: Sequence[dict[str, Any]], settings: Settings, at: datetime | None, language: Language) -> list[str]:
    """Time of the plans, with a warning if no cycle has run since."""
    if not plans:
        return []
    made = max(row["made_at"] for row in plans)
    text = translate("cli.as_of", language, at=made)
    late = max(LATE, _LATE_INTERVALS * settings.collect.interval).total_seconds()
    age = min(row["age_seconds"] for row in plans)
    if at is not None or age <= late:
        return [text]
    return [text + translate("cli.as_of_stale", language, age=format_duration(round(age)))]
