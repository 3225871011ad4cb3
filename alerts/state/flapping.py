"""Flap damping: an alert that fires too often in an hour is held as one firing alert, with its count. Pure.

A held alert keeps its incident open, so that it pages once. A higher priority breaks through as for any alert. It ends
once it has fired rarely enough for an hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from outrider.clock import parse_rfc3339
from outrider.model import Alert, AlertReason, AlertState

WITHIN = timedelta(hours=1)
MOST_PER_HOUR = 4
FlapMemory = Mapping[str, tuple[datetime, ...]]
"""Times at which each alert fired within the last hour, by fingerprint."""
_FLAPPING, _FIRED_AT, _TIMES = "flapping", "fired_at", "fired_times"
_ENDED = (AlertReason.CONDITION_GONE, AlertReason.ENDED_AT_SOURCE)


def damp(
    before: Sequence[Alert], after: Sequence[Alert], memory: FlapMemory, most_per_hour: int, now: datetime
) -> tuple[tuple[Alert, ...], FlapMemory]:
    """The alerts of a cycle, with those that flap held, and the memory for the next one.

    ``before`` are the alerts of the last cycle. ``most_per_hour`` 0 disables damping.
    """
    if most_per_hour <= 0:
        return tuple(after), {}
    earlier = {alert.fingerprint: alert for alert in before}
    fired = {print_: recent for print_, times in memory.items() if (recent := _recent(times, now))}
    result = []
    for alert in after:
        previous = earlier.get(alert.fingerprint)
        times = _fired(alert, previous, fired.get(alert.fingerprint, ()), now)
        if times:
            fired[alert.fingerprint] = times
        result.append(_held(alert, times) if len(times) > most_per_hour else alert)
    return tuple(result), fired


def _fired(alert: Alert, previous: Alert | None, known: tuple[datetime, ...], now: datetime) -> tuple[datetime, ...]:
    """The times at which the alert fired, with that of this cycle if it fires anew."""
    stored = (previous or alert).annotations.get(_TIMES, "")
    times = {*known, *(parse_rfc3339(text) for text in stored.split(",") if text)}
    if alert.state is AlertState.FIRING:
        begun = alert.annotations.get(_FIRED_AT)
        if begun:
            times.add(parse_rfc3339(begun))
        if (
            previous is not None
            and previous.reason is AlertReason.FLAPPING
            and alert.reason is not AlertReason.FLAPPING
        ):
            times.add(now)  # the condition of a held alert returned
    return _recent(tuple(sorted(times)), now)


def _recent(times: tuple[datetime, ...], now: datetime) -> tuple[datetime, ...]:
    """The times within the last hour; a clock that steps back leaves later ones, which do not count."""
    return tuple(at for at in times if now - WITHIN < at <= now)


def _held(alert: Alert, times: tuple[datetime, ...]) -> Alert:
    """The alert with its count; one that would end stays firing."""
    annotations = {
        **alert.annotations,
        _FLAPPING: str(len(times)),
        _TIMES: ",".join(at.isoformat() for at in times),
        "evidence": _with_count(alert.annotations.get("evidence", "[]"), len(times)),
    }
    if alert.state is AlertState.RESOLVED and alert.reason in _ENDED:
        return replace(
            alert, state=AlertState.FIRING, reason=AlertReason.FLAPPING, ends_at=None, annotations=annotations
        )
    return replace(alert, annotations=annotations) if alert.state is AlertState.FIRING else alert


def _with_count(evidence: str, count: int) -> str:
    """The stored evidence with one line about the flapping, first."""
    others = [entry for entry in json.loads(evidence) if entry["text"] != "alerts.evidence.flapping"]
    line = {"signal": "", "observed": None, "text": "alerts.evidence.flapping", "arguments": {"count": str(count)}}
    return json.dumps([line, *others], ensure_ascii=False)
