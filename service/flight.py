"""Records what every target answers, for a post-mortem, a bug report or a new test."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from collectors.flight import FlightRecorder
from collectors.scrape import Scraper
from outrider.clock import Clock
from outrider.errors import UsageError
from service import targets
from service.settings import Settings


async def record(
    settings: Settings, duration: timedelta, out: Path, clock: Clock, progress: Callable[[str, float], None]
) -> dict[str, Any]:
    """Scrape every target each interval for ``duration``: the JSON of ``outrider record``.

    A round that takes longer than the interval delays the next. What was recorded stays when interrupted.
    Raises UsageError when nothing is scraped or the folder cannot be used.
    """
    watched = targets.targets(settings)
    if not watched:
        raise UsageError("no targets are configured to record", hint="name them under collect.targets")
    recorder = FlightRecorder(out, settings.cluster, watched)
    interval = settings.collect.interval
    rounds = max(1, round(duration / interval))
    begun = clock.monotonic()
    try:
        async with Scraper() as scraper:
            for number in range(rounds):
                recorder.add(await scraper.scrape(watched, at=clock.now()))
                progress("record", (number + 1) / rounds)
                ahead = begun + (number + 1) * interval.total_seconds() - clock.monotonic()
                if number + 1 < rounds:
                    await clock.sleep(timedelta(seconds=max(0.0, ahead)))
    finally:
        recorder.close()
    return {"dir": str(out), "targets": len(watched), "scrapes": recorder.scrapes}
