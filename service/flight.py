"""Records what every target answers and what happens beside, for a post-mortem, a bug report or a new test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from collectors.flight import FlightRecorder
from collectors.scrape import Scraper
from collectors.targets import Target
from outrider.clock import Clock
from outrider.errors import UsageError
from outrider.model import EntityRef
from outrider.topology import Topology
from service import discovery, targets
from service.event_source import event_sources
from service.settings import Settings


async def record(
    settings: Settings, duration: timedelta, out: Path, clock: Clock, progress: Callable[[str, float], None]
) -> dict[str, Any]:
    """Read every target and source of events each interval for ``duration``: the JSON of ``outrider record``.

    A round that takes longer than the interval delays the next. What was recorded stays when interrupted.
    Raises UsageError when nothing is scraped or the folder cannot be used.
    """
    watched = (await discovery.once(settings, targets.targets(settings), clock.now())).targets
    if not watched:
        hint = "name them under collect.targets or collect.discover"
        raise UsageError("no targets are configured to record", hint=hint)
    recorder = FlightRecorder(out, settings.cluster, watched)
    events = event_sources(settings)
    edges = [edge for target in watched for edge in target.edges]
    events.know(Topology.build(edges, [one.entity for one in watched], _facts(watched)))
    interval = settings.collect.interval
    rounds = max(1, round(duration / interval))
    begun = clock.monotonic()
    try:
        async with Scraper() as scraper:
            for number in range(rounds):
                at = clock.now()
                scrapes, found = await asyncio.gather(scraper.scrape(watched, at=at), events.collect(at))
                recorder.add(scrapes)
                recorder.add_events(found)
                progress("record", (number + 1) / rounds)
                ahead = begun + (number + 1) * interval.total_seconds() - clock.monotonic()
                if number + 1 < rounds:
                    await clock.sleep(timedelta(seconds=max(0.0, ahead)))
    finally:
        recorder.close()
        await events.close()
    found_events = {"events": recorder.events} if settings.events else {}
    return {"dir": str(out), "targets": len(watched), "scrapes": recorder.scrapes, **found_events}


def _facts(watched: Sequence[Target]) -> dict[EntityRef, dict[str, str]]:
    """What the targets' labels tell of each component."""
    known: dict[EntityRef, dict[str, str]] = {}
    for target in watched:
        for entity, facts in target.facts.items():
            known.setdefault(entity, {}).update(facts)
    return known
