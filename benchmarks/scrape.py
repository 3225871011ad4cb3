"""1,000 targets over loopback HTTP: fetch with probes, parse and normalise 600-sample pages in one cycle.

A second figure is the delay of the other targets if one target hangs, one sends a byte at a time and one never ends.
The server is a separate process.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Result, main, result
from benchmarks.fleet_pages import FleetPages, PageServer, fleet, server
from collectors.mapping.target import Target, target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from collectors.scrape.scraper import Scraper
from outrider import log

LIMIT, MOST_DELAY = 15.0, 0.1  # seconds: the interval; the allowed delay by misbehaving targets
ROUNDS, WARM_UP, PAIRS = 7, 2, 9
STEP, TIMEOUT = timedelta(seconds=15), timedelta(seconds=4)
BAD = ("hang", "trickle", "endless")


class _Timed(Scraper):
    """Records the completion time of each target."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[str, float] = {}

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        results = await super().scrape_one(target, at=at)
        self.done[target.name] = time.perf_counter()
        return results


async def _rounds(shown: PageServer, pages: FleetPages) -> tuple[float, int]:
    """Returns the median seconds of a warm cycle, and its samples."""
    targets = [target for target in pages.targets(shown.base) if target.adapter == "vllm"]
    collector, seconds = ScrapeManager(targets, Scraper()), []
    at = datetime(2026, 11, 18, 10, tzinfo=UTC)
    for number in range(ROUNDS):
        begun = time.perf_counter()
        await collector.collect(at + number * STEP)
        seconds.append(time.perf_counter() - begun)
    assert all(health.up for health in collector.health), "a scrape failed"
    samples = sum(health.samples or 0 for health in collector.health)
    await collector.close()
    return statistics.median(seconds[WARM_UP:]), samples


async def _delay(shown: PageServer, odd: PageServer, pages: FleetPages) -> tuple[float, float]:
    """Returns the delay of the others if three targets misbehave, seconds: (of the fastest cycles, of the medians).

    Other work on the host only lengthens cycles, and both kinds alike. A target that delays the others does so in every
    cycle, even in the fastest.
    """
    good = [target for target in pages.targets(shown.base) if target.adapter == "vllm"]
    both = {"alone": good, "among": [*(_bad(odd, how) for how in BAD), *good]}
    at, scraper = datetime(2026, 11, 18, 10, tzinfo=UTC), _Timed()
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for number in range(PAIRS + 1):
        for name in sorted(both, reverse=bool(number % 2)):  # alternate the order
            seconds[name].append(await _last_of(scraper, both[name], good, at))
    await scraper.close()
    alone, among = (np.array(seconds[name][1:]) for name in both)  # the first pair opens the connections
    return float(among.min() - alone.min()), float(np.median(among) - np.median(alone))


async def _last_of(scraper: _Timed, targets: list[Target], good: list[Target], at: datetime) -> float:
    """Returns the seconds until the last good target was done."""
    begun = time.perf_counter()
    results = await scraper.scrape(targets, at=at)
    wrong = {one.target.name for one in results if one.error is not None}
    assert wrong == {target.name for target in targets if target not in good}, wrong
    return max(scraper.done[target.name] for target in good) - begun


def _bad(shown: PageServer, misbehaviour: str) -> Target:
    return target_of(
        "bench",
        {
            "name": misbehaviour,
            "adapter": "vllm",
            "url": f"{shown.base}/bad/{misbehaviour}/metrics",
            "timeout": TIMEOUT,
            "probe": False,
            "limit_bytes": 4 * 1024 * 1024,
        },
    )


def run() -> list[Result]:
    """Returns the seconds of a cycle of 1,000 targets, and the delay by three bad targets."""
    log.configure(level="error")
    pages = FleetPages(fleet())
    with tempfile.TemporaryDirectory() as name, server(Path(name)) as shown, server(Path(name)) as odd:
        shown.show(pages.bodies())
        seconds, samples = asyncio.run(_rounds(shown, pages))
        delay, middle = asyncio.run(_delay(shown, odd, pages))
    return [
        result("scrape", seconds, "s", LIMIT, seconds <= LIMIT, share_of_interval=round(seconds / LIMIT, 3),
               samples=samples),
        result("scrape_delay", max(0.0, delay), "s", MOST_DELAY, delay <= MOST_DELAY, medians=round(middle, 3)),
    ]  # fmt: skip


if __name__ == "__main__":
    main(run)
