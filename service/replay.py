"""Runs recorded pages through the same cycle at their own times, on a store in memory."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from collectors import recording, registry
from collectors.collect import Collector
from collectors.scraped import Scrape
from collectors.targets import Target
from outrider import jsonable
from outrider.clock import ManualClock, rfc3339
from outrider.errors import CollectReason, UsageError
from outrider.i18n import Language
from outrider.model import AlertReason, AlertState, Event
from service import listing, wiring
from service.settings import Settings

EMITS = ("alerts", "incidents", "signals")
DEFAULT_STEP = timedelta(seconds=15)


@dataclass(slots=True)
class Recorded:
    """One recording: its targets, its scrapes in time order, its events."""

    targets: list[Target]
    scrapes: list[Scrape]
    events: list[Event] = field(default_factory=list)

    @property
    def step(self) -> timedelta:
        """The median spacing of the scrapes of one target."""
        gaps = []
        for target in self.targets:
            times = [scrape.at for scrape in self.scrapes if scrape.target.name == target.name]
            gaps += [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
        return timedelta(seconds=statistics.median(gaps)) if gaps else DEFAULT_STEP


def load(path: Path, adapter: str) -> Recorded:
    """A recording of one target, or a folder with a recorded fleet. Raises UsageError naming the line."""
    if not path.exists():
        raise UsageError(
            f"{path} does not exist", hint="name a *.metrics.jsonl.gz file or the folder of a recorded fleet"
        )
    if path.is_dir():
        fleet = recording.read_fleet(path)
        return Recorded(list(fleet.targets), list(fleet.scrapes()), list(fleet.events))
    registry.adapter(adapter)
    target = recording.target_of_file(path, adapter)
    return Recorded([target], list(recording.read_recording(path, target)))


def rounds(scrapes: Iterable[Scrape], step: timedelta) -> Iterator[list[Scrape]]:
    """Group scrapes in time order into cycles: each target at most once, within one step."""
    group: list[Scrape] = []
    for scrape in scrapes:
        known = any(scrape.target.name == earlier.target.name for earlier in group)
        if group and (known or scrape.at - group[0].at >= step * 0.9):
            yield group
            group = []
        group.append(scrape)
    if group:
        yield group


def replay(
    paths: Sequence[Path], *, adapter: str, emit: Sequence[str], settings: Settings, language: Language
) -> dict[str, Any]:
    """Run each recording through a platform of its own and join what they saw."""
    result: dict[str, Any] = {"from": None, "to": None, "cycles": 0, "signals": [], "alerts": [], "incidents": []}
    starts, ends = [], []
    for path in paths:
        recorded = load(path, adapter)
        if not recorded.scrapes:
            raise UsageError(f"{path} holds no scrape", hint="outrider record makes recordings; each line is JSON")
        starts.append(recorded.scrapes[0].at)
        ends.append(recorded.scrapes[-1].at)
        _run(recorded, settings, language, emit, result)
    if starts:
        result["from"], result["to"] = rfc3339(min(starts)), rfc3339(max(ends))
    return result


def _run(
    recorded: Recorded, settings: Settings, language: Language, emit: Sequence[str], result: dict[str, Any]
) -> None:
    clock = ManualClock(recorded.scrapes[0].at)
    collector = Collector(recorded.targets)
    step = recorded.step
    cycle = wiring.cycle_in_memory(settings, collector, clock, interval=step)
    events = sorted(recorded.events, key=lambda event: event.at)
    once_up = False
    for group in rounds(recorded.scrapes, step):
        clock.set(group[-1].at)
        due = [event for event in events if event.at <= clock.now()]
        events = events[len(due) :]
        collected = collector.absorb(group, clock.now())
        once_up = once_up or any(one.up for one in collector.health)
        collected = replace(collected, events=(*collected.events, *due))
        cycle.digest(clock.now(), collected)
        result["cycles"] += 1
        if "signals" in emit:
            result["signals"] += listing.signals(collected, with_instant=True)
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
        result["alerts"] += [jsonable.alert(alert, language) for alert in reversed(fired)]
    if "incidents" in emit:
        result["incidents"] += [
            jsonable.incident(incident, language) for incident in reversed(state.incidents(limit=100_000))
        ]
