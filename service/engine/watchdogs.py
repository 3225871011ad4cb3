"""Findings about watchdogs of other monitors: a heartbeat that is expected and absent. Pure.

A monitor that is dead sends no alert about it. Here its silence is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from outrider.clock import rfc3339
from outrider.model import EntityKind, EntityRef, Evidence, Finding, Priority, TimeRange
from outrider.records.heartbeats import NEVER, Watchdog
from outrider.vocabulary.units import format_duration

DETECTOR = "watchdog"
NAMESPACE = "watchdogs"


def findings(
    watchdogs: Sequence[Watchdog], heartbeats: Mapping[str, datetime], since: datetime, cluster: str, now: datetime
) -> tuple[Finding, ...]:
    """Returns one finding per absent heartbeat. ``since`` is the first cycle: a new engine waits for the first one.

    A heartbeat far in the future dates from before a step of the clock, and counts as absent, too.
    """
    return tuple(_absent(watchdogs, heartbeats, since, cluster, now))


def _absent(
    watchdogs: Sequence[Watchdog], heartbeats: Mapping[str, datetime], since: datetime, cluster: str, now: datetime
) -> Iterator[Finding]:
    for watchdog in watchdogs:
        last = heartbeats.get(watchdog.key)
        ended = last == NEVER
        newest = since if last is None else last
        starting = now - since <= watchdog.within and newest <= since  # it had no time yet to reach this engine
        if not ended and (starting or abs(now - newest) <= watchdog.within):
            continue
        entity = EntityRef(cluster, EntityKind.WORKLOAD, NAMESPACE, watchdog.name)
        start = since if last is None or ended else min(last, now)
        key = "findings.watchdog_ended" if ended else "findings.watchdog_absent"
        arguments = {
            "name": watchdog.name,
            "within": format_duration(watchdog.within),
            "last": "-" if last is None or ended else rfc3339(last),
        }
        yield Finding(
            detector=DETECTOR,
            entity=entity,
            signals=(),
            severity=Priority.P1,
            score=1.0,
            observed=None,
            expected=None,
            window=TimeRange(start, now),
            evidence=(Evidence("", None, None, key, arguments),),
            fingerprint=f"{DETECTOR}|{entity.key}",
        )
