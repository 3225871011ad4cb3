"""Runs recorded pages through the same cycle at their own times, on a store in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from collectors.mapping import registry
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.recording import reader
from collectors.recording.reader import Track
from collectors.scrape.result import Scrape
from outrider.clock import ManualClock, from_unix, rfc3339
from outrider.documents import serialization
from outrider.errors import CollectReason, UsageError
from outrider.model import AlertReason, AlertState, Event
from outrider.text.i18n import Language
from service.config.settings import Settings
from service.ops import signal_listing
from service.wiring import platform

EMITS = ("alerts", "incidents", "signals")
DEFAULT_STEP = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one path holds: a recording for each target, not yet read, and the events."""

    tracks: list[Track]
    events: list[Event] = field(default_factory=list)

    @property
    def step(self) -> timedelta:
        """The median spacing of the scrapes of one target; the usual one where that says nothing."""
        gaps = [np.diff(np.sort(np.frombuffer(track.times))) for track in self.tracks]
        spacing = np.concatenate(gaps) if gaps else np.empty(0)
        step = timedelta(seconds=float(np.median(spacing))) if spacing.size else DEFAULT_STEP
        return step if step > timedelta(0) else DEFAULT_STEP

    @property
    def notes(self) -> list[str]:
        """What was odd about the files, in sentences."""
        return [
            f"{track.path}:{track.misplaced}: this line is earlier than the one before it; the lines of the file"
            " are taken in the order of their times"
            for track in self.tracks
            if track.misplaced is not None
        ]


def load(path: Path, adapter: str) -> Recorded:
    """A recording of one target, or a folder with a recorded fleet. Raises UsageError naming the line."""
    if not path.exists():
        raise UsageError(
            f"{path} does not exist", hint="name a *.metrics.jsonl.gz file or the folder of a recorded fleet"
        )
    if path.is_dir():
        fleet = reader.read_fleet(path)
        return Recorded(fleet.tracks(), sorted(fleet.events, key=lambda event: event.at))
    registry.adapter(adapter)
    return Recorded([reader.track(path, reader.target_of_file(path, adapter))])


def rounds(scrapes: Iterable[Scrape], step: timedelta) -> Iterator[list[Scrape]]:
    """Group scrapes in time order into cycles: each target at most once, within one step."""
    group: list[Scrape] = []
    known: set[str] = set()
    for scrape in scrapes:
        if group and (scrape.target.name in known or scrape.at - group[0].at >= step * 0.9):
            yield group
            group, known = [], set()
        group.append(scrape)
        known.add(scrape.target.name)
    if group:
        yield group


def replay(
    paths: Sequence[Path], *, adapter: str, emit: Sequence[str], settings: Settings, language: Language
) -> dict[str, Any]:
    """Run each recording through a platform of its own and join what they saw."""
    result: dict[str, Any] = {
        "from": None, "to": None, "cycles": 0, "signals": [], "alerts": [], "incidents": [], "notes": []
    }  # fmt: skip
    starts, ends = [], []
    for path in paths:
        recorded = load(path, adapter)
        times = [at for track in recorded.tracks if track.times for at in (min(track.times), max(track.times))]
        if not times:
            raise UsageError(f"{path} contains no scrape", hint="outrider record makes recordings; each line is JSON")
        starts.append(from_unix(min(times)))
        ends.append(_run(recorded, starts[-1], settings, language, emit, result))
    if starts:
        result["from"], result["to"] = rfc3339(min(starts)), rfc3339(max(ends))
    return result


def _run(
    recorded: Recorded,
    start: datetime,
    settings: Settings,
    language: Language,
    emit: Sequence[str],
    result: dict[str, Any],
) -> datetime:
    """Returns the instant of the last cycle."""
    clock = ManualClock(start)
    collector = ScrapeManager([track.target for track in recorded.tracks])
    step, events = recorded.step, deque(recorded.events)
    cycle = platform.cycle_in_memory(settings, collector, clock, interval=step)
    result["notes"] += recorded.notes
    once_up = False

    def digest(group: list[Scrape], at: datetime) -> None:
        clock.set(at)
        due = [events.popleft() for _ in range(len(events)) if events[0].at <= at]
        collected = collector.absorb(group, at)
        collected = replace(collected, events=(*collected.events, *due))
        cycle.run_stages(at, collected)
        result["cycles"] += 1
        if "signals" in emit:
            result["signals"] += signal_listing.signals(collected, with_instant=True)

    for group in rounds(reader.merged(recorded.tracks), step):
        digest(group, group[-1].at)
        once_up = once_up or any(one.up for one in collector.health)
    if events and events[0].at <= clock.now() + step:  # what happened before the next scrape would have come
        digest([], clock.now() + step)
    if events:
        result["notes"].append(_too_late(events, clock.now()))
    if not once_up and all(one.reason == CollectReason.NOT_METRICS for one in collector.health):
        raise UsageError(collector.health[0].error or "no page could be read", hint=collector.health[0].hint)
    state = cycle.parts.state
    alerts = state.alerts(limit=100_000)
    if "alerts" in emit:
        fired = [
            alert
            for alert in alerts
            if alert.state is not AlertState.PENDING and alert.reason is not AlertReason.NEVER_FIRED
        ]
        result["alerts"] += [serialization.alert(alert, language) for alert in reversed(fired)]
    if "incidents" in emit:
        result["incidents"] += [
            serialization.incident(incident, language) for incident in reversed(state.incidents(limit=100_000))
        ]
    return clock.now()


def _too_late(events: Sequence[Event], end: datetime) -> str:
    count = f"{len(events)} events are" if len(events) > 1 else "1 event is"
    return f"{count} later than the last scrapes, which end at {rfc3339(end)}, and not replayed; {_first(events[0])}"


def _first(event: Event) -> str:
    return f"the first is {event.kind.value} {event.code} of {event.entity} at {rfc3339(event.at)}"
