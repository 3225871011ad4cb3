"""Findings about watchdogs of other monitors: a heartbeat that is expected and absent. Pure.

A monitor that is dead sends no alert about it. Here its silence is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from outrider.clock import rfc3339
from outrider.model import EntityKind, EntityRef, Evidence, Finding, Priority, TimeRange
from outrider.records.heartbeats import NEVER, Watchdog
from outrider.vocabulary.units import format_duration

DETECTOR = "watchdog"
NAMESPACE = "watchdogs"


def findings(
    watchdogs: Sequence[Watchdog],
    heartbeats: Mapping[str, datetime],
    since: datetime,
    cluster: str,
    now: datetime,
    alerted: Collection[EntityRef] = (),
) -> tuple[Finding, ...]:
    """Returns one finding per absent heartbeat. ``since`` is the first cycle: a new engine waits for the first one.

    ``alerted`` are entities with an active alert: what was absent before a restart or a failover still is. A heartbeat
    far in the future dates from before a step of the clock, and counts as absent, too.
    """
    return tuple(_absent(watchdogs, heartbeats, since, cluster, now, alerted))


def _absent(
    watchdogs: Sequence[Watchdog],
    heartbeats: Mapping[str, datetime],
    since: datetime,
    cluster: str,
    now: datetime,
    alerted: Collection[EntityRef],
) -> Iterator[Finding]:
    for watchdog in watchdogs:
        entity = EntityRef(cluster, EntityKind.WORKLOAD, NAMESPACE, watchdog.name)
        last = heartbeats.get(watchdog.key)
        ended = last == NEVER
        is_recent = last is not None and abs(now - last) <= watchdog.within
        had_no_time = now - since <= watchdog.within and (last is None or last <= since)  # to reach this engine
        if not ended and (is_recent or (had_no_time and entity not in alerted)):
            continue
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
