"""As of when a plan speaks: how old it is, and instants that nothing is known of."""

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
    """Refuse an instant that no cycle tells of. Raises UsageError with the span that is known."""
    with wiring_stores.state_reader(settings) as state:
        newest = state.cycles(limit=1)
        if not newest:
            return
        if at > max(newest[0].at, SystemClock().now()):
            said = f"--at {rfc3339(at)} lies in the future: what is known ends at {rfc3339(newest[0].at)}"
            raise UsageError(said, hint="leave --at out for the plan of now, which looks a day ahead")
        if not state.topology(at).entities:
            first = _watched_since(state, at, newest[0].at)
            raise UsageError(
                f"which services ran at {rfc3339(at)} is not known: this store has watched them since {rfc3339(first)}",
                hint="give --at from then on; an older history of load says nothing of replicas",
            )


def _watched_since(state: StateReader, before: datetime, newest: datetime) -> datetime:
    """The first instant, in whole seconds, of which the topology is known: none is ``before``; by bisection."""
    low, high = floor(before.timestamp()), ceil(newest.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if state.topology(from_unix(middle)).entities else (middle, high)
    return min(newest, from_unix(high))


def age_seconds(made_at: datetime) -> float:
    """How old a plan is, never below 0."""
    return max(0.0, (SystemClock().now() - made_at).total_seconds())


def note(found: Sequence[dict[str, Any]], settings: Settings, at: datetime | None, language: Language) -> list[str]:
    """As of when the plans speak, and when that is long ago, that nobody has looked since."""
    if not found:
        return []
    made = max(one["made_at"] for one in found)
    said = translate("cli.as_of", language, at=made)
    late = max(LATE, _LATE_INTERVALS * settings.collect.interval).total_seconds()
    age = min(one["age_seconds"] for one in found)
    if at is not None or age <= late:
        return [said]
    return [said + translate("cli.as_of_stale", language, age=format_duration(round(age)))]
