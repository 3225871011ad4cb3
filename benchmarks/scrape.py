"""1,000 targets over HTTP on loopback: fetch with probes, parse and normalise 600-sample pages in one round.

Then the same round with a target that hangs, one that trickles and one that never ends among them: how
much later the last of the others is done. The server is a process of its own.
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

LIMIT, MOST_DELAY = 15.0, 0.1  # seconds: the interval; the delay that odd targets may cost the others
ROUNDS, WARM_UP, PAIRS = 7, 2, 9
STEP, TIMEOUT = timedelta(seconds=15), timedelta(seconds=4)
BAD = ("hang", "trickle", "endless")


class _Timed(Scraper):
    """Notes when each target was done."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[str, float] = {}

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        results = await super().scrape_one(target, at=at)
        self.done[target.name] = time.perf_counter()
        return results


async def _rounds(shown: PageServer, pages: FleetPages) -> tuple[float, int]:
    """Median seconds of a warm round, and the samples of one."""
    targets = [target for target in pages.targets(shown.base) if target.adapter == "vllm"]
    collector, seconds = ScrapeManager(targets, Scraper()), []
    at = datetime(2026, 11, 18, 10, tzinfo=UTC)
    for number in range(ROUNDS):
        begun = time.perf_counter()
        await collector.collect(at + number * STEP)
        seconds.append(time.perf_counter() - begun)
    assert all(health.up for health in collector.health), "a page did not come"
    samples = sum(health.samples or 0 for health in collector.health)
    await collector.close()
    return statistics.median(seconds[WARM_UP:]), samples


async def _delay(shown: PageServer, odd: PageServer, pages: FleetPages) -> tuple[float, float]:
    """Seconds by which the others are later when three targets misbehave: (of the quickest rounds, of the medians).

    Whatever else the machine does only adds to a round, and to either kind alike; a target that holds the others
    up does so in every round, the quickest too.
    """
    good = [target for target in pages.targets(shown.base) if target.adapter == "vllm"]
    both = {"alone": good, "among": [*(_bad(odd, how) for how in BAD), *good]}
    at, scraper = datetime(2026, 11, 18, 10, tzinfo=UTC), _Timed()
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for number in range(PAIRS + 1):
        for name in sorted(both, reverse=bool(number % 2)):  # neither is always the first
            seconds[name].append(await _last_of(scraper, both[name], good, at))
    await scraper.close()
    alone, among = (np.array(seconds[name][1:]) for name in both)  # the first pair opens the connections
    return float(among.min() - alone.min()), float(np.median(among) - np.median(alone))


async def _last_of(scraper: _Timed, targets: list[Target], good: list[Target], at: datetime) -> float:
    """Seconds until the last good target was done."""
    begun = time.perf_counter()
    results = await scraper.scrape(targets, at=at)
    wrong = {one.target.name for one in results if one.error is not None}
    assert wrong == {target.name for target in targets if target not in good}, wrong
    return max(scraper.done[target.name] for target in good) - begun


def _bad(shown: PageServer, how: str) -> Target:
    return target_of(
        "bench",
        {
            "name": how,
            "adapter": "vllm",
            "url": f"{shown.base}/bad/{how}/metrics",
            "timeout": TIMEOUT,
            "probe": False,
            "limit_bytes": 4 * 1024 * 1024,
        },
    )


def run() -> list[Result]:
    """Seconds of a round of 1,000 targets, and the delay that three bad targets cause the others."""
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
