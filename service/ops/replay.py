"""Replays recorded pages through the same cycle with their timestamps, on a store in memory."""

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
from outrider.text.i18n import Language, fill
from service.config.settings import Settings
from service.ops import signal_listing
from service.wiring import platform

EMITS = ("alerts", "incidents", "signals")
DEFAULT_STEP = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Recording:
    """Content of one path: a track per target, read later, and the events."""

    tracks: list[Track]
    events: list[Event] = field(default_factory=list)

    @property
    def step(self) -> timedelta:
        """Median interval between scrapes of a target; ``DEFAULT_STEP`` if unknown."""
        gaps = [np.diff(np.sort(np.frombuffer(track.times))) for track in self.tracks]
        spacing = np.concatenate(gaps) if gaps else np.empty(0)
        step = timedelta(seconds=float(np.median(spacing))) if spacing.size else DEFAULT_STEP
        return step if step > timedelta(0) else DEFAULT_STEP

    @property
    def notes(self) -> list[str]:
        """Messages about lines out of order."""
        return [
            f"{track.path}:{track.misplaced}: this line is earlier than the one before it; the lines of the file"
            " are replayed in the order of their timestamps"
            for track in self.tracks
            if track.misplaced is not None
        ]


def load(path: Path, adapter: str) -> Recording:
    """Opens the recording of one target, or a folder with a recorded fleet. Raises UsageError with the line."""
    if not path.exists():
        raise UsageError(
            f"{path} does not exist", hint="name a *.metrics.jsonl.gz file or the folder of a recorded fleet"
        )
    if path.is_dir():
        fleet = reader.read_fleet(path)
        return Recording(fleet.tracks(), sorted(fleet.events, key=lambda event: event.at))
    registry.adapter(adapter)
    return Recording([reader.track(path, reader.target_of_file(path, adapter))])


def group_cycles(scrapes: Iterable[Scrape], step: timedelta) -> Iterator[list[Scrape]]:
    """Groups scrapes in time order into cycles: each target at most once, within one step."""
    group: list[Scrape] = []
    names: set[str] = set()
    for scrape in scrapes:
        if group and (scrape.target.name in names or scrape.at - group[0].at >= step * 0.9):
            yield group
            group, names = [], set()
        group.append(scrape)
        names.add(scrape.target.name)
    if group:
        yield group


def replay(
    paths: Sequence[Path], *, adapter: str, emit: Sequence[str], settings: Settings, language: Language
) -> dict[str, Any]:
    """Replays each recording on its own platform and joins the results."""
    result: dict[str, Any] = {
        "from": None, "to": None, "cycles": 0, "signals": [], "alerts": [], "incidents": [], "notes": []
    }  # fmt: skip
    starts, ends = [], []
    for path in paths:
        recording = load(path, adapter)
        times = [at for track in recording.tracks if track.times for at in (min(track.times), max(track.times))]
        if not times:
            raise UsageError(f"{path} contains no scrape", hint="outrider record writes recordings; each line is JSON")
        starts.append(from_unix(min(times)))
        ends.append(_run(recording, starts[-1], settings, language, emit, result))
    if starts:
        result["from"], result["to"] = rfc3339(min(starts)), rfc3339(max(ends))
    return result


def _run(
    recording: Recording,
    start: datetime,
    settings: Settings,
    language: Language,
    emit: Sequence[str],
    result: dict[str, Any],
) -> datetime:
    """Replays one recording into ``result``. Returns the time of the last cycle."""
    clock = ManualClock(start)
    collector = ScrapeManager([track.target for track in recording.tracks])
    step, events = recording.step, deque(recording.events)
    cycle = platform.cycle_in_memory(settings, collector, clock, interval=step)
    result["notes"] += recording.notes
    any_up = False

    def run_cycle(group: list[Scrape], at: datetime) -> None:
        clock.set(at)
        due = [events.popleft() for _ in range(len(events)) if events[0].at <= at]
        collected = collector.absorb(group, at)
        collected = replace(collected, events=(*collected.events, *due))
        cycle.run_stages(at, collected)
        result["cycles"] += 1
        if "signals" in emit:
            result["signals"] += signal_listing.signals(collected, with_instant=True)

    for group in group_cycles(reader.merged(recording.tracks), step):
        run_cycle(group, group[-1].at)
        any_up = any_up or any(health.up for health in collector.health)
    if events and events[0].at <= clock.now() + step:  # events before the time of the next scrape
        run_cycle([], clock.now() + step)
    if events:
        result["notes"].append(_not_replayed(events, clock.now()))
    if not any_up and all(health.reason == CollectReason.NOT_METRICS for health in collector.health):
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


def _not_replayed(events: Sequence[Event], end: datetime) -> str:
    count = fill("{n} [event is|events are]", n=len(events))
    return f"{count} later than the last scrapes, which end at {rfc3339(end)}, and not replayed; {_first(events[0])}"


def _first(event: Event) -> str:
    return f"the first is {event.kind.value} {event.code} of {event.entity} at {rfc3339(event.at)}"
