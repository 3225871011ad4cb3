"""Only hanging targets are scraped less often, and never an engine."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from collectors.mapping.target import Target, targets_of
from collectors.pipeline.backoff import AFTER_FAILURES, ScrapeBackoff
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason

AT = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=15)
ENGINE, EXPORTER = targets_of(
    "c", [{"name": "engine", "adapter": "vllm"}, {"name": "exporter", "adapter": "node_exporter"}]
)


class Failing:
    """Fails every scrape; ``requested`` has the target and time of each."""

    def __init__(self, reason: str, retry_after: timedelta | None = None) -> None:
        self.error = CollectError("no", reason=reason, retry_after=retry_after)
        self.requested: list[tuple[str, datetime]] = []

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        self.requested.append((target.name, at))
        return Scrape(target, at, None, self.error, 0.0)

    async def close(self) -> None:
        """Nothing to release."""


def rounds(fetcher: Failing, count: int) -> list[list[bool]]:
    """True per cycle and target if it was reported up."""

    async def run() -> list[list[bool]]:
        collector = ScrapeManager([ENGINE, EXPORTER], fetcher)
        collected = []
        for number in range(count):
            await collector.collect(AT + number * STEP)
            collected.append([bool(one.up) for one in collector.health])
        return collected

    return asyncio.run(run())


def times(fetcher: Failing, name: str) -> list[float]:
    return [(at - AT) / STEP for requested, at in fetcher.requested if requested == name]


def test_a_hanging_target_is_scraped_less_often_and_stays_down() -> None:
    fetcher = Failing(CollectReason.TIMEOUT)
    assert rounds(fetcher, 20) == [[False, False]] * 20
    assert times(fetcher, "engine") == list(range(20))
    assert times(fetcher, "exporter") == [0, 1, 2, 3, 4, 5, 7, 11, 15, 19]


def test_a_refusing_target_is_scraped_every_cycle() -> None:
    fetcher = Failing(CollectReason.REFUSED)
    rounds(fetcher, 12)
    assert times(fetcher, "exporter") == list(range(12))


def test_a_retry_after_time_is_respected() -> None:
    fetcher = Failing(CollectReason.HTTP_STATUS, retry_after=timedelta(seconds=40))
    rounds(fetcher, 7)
    assert times(fetcher, "exporter") == times(fetcher, "engine") == [0, 3, 6]


def test_a_successful_scrape_ends_the_backoff() -> None:
    backoff = ScrapeBackoff()
    hung = CollectError("no", reason=CollectReason.TIMEOUT)
    for number in range(AFTER_FAILURES + 3):
        backoff.note(Scrape(EXPORTER, AT + number * STEP, None, hung, 0.0))
    last = AT + (AFTER_FAILURES + 2) * STEP
    assert backoff.pause(EXPORTER, last + STEP) is hung
    backoff.note(Scrape(EXPORTER, last, b"", None, 0.0))
    assert backoff.pause(EXPORTER, last + STEP) is None
    assert len(backoff) == 0


@pytest.mark.parametrize("count", [1, 1000])
def test_each_target_has_a_fixed_offset_in_every_cycle(count: int) -> None:
    class Answering(Failing):
        async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
            self.requested.append((target.name, at))
            return Scrape(target, at, b"", None, 0.0)

    fetcher = Answering(CollectReason.OTHER)
    many = targets_of("c", [{"name": f"n{number}", "adapter": "node_exporter"} for number in range(count)])
    spread = timedelta(milliseconds=50)

    async def run() -> None:
        collector = ScrapeManager(many, fetcher, spread=spread)
        for number in range(2):
            await collector.collect(AT + number * STEP)

    asyncio.run(run())
    first, second = dict(fetcher.requested[:count]), dict(fetcher.requested[count:])
    assert {name: at + STEP for name, at in first.items()} == second
    moments = [(at - AT) / spread for at in first.values()]
    assert all(0 <= moment < max(count / 1000, 0.001) for moment in moments)
    if count > 1:
        assert max(moments) - min(moments) > 0.9
