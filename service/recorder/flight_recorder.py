"""Records the pages of every target and all events, for a post-mortem, a bug report or a new test.

Pages are read as the platform reads them: scraped, assembled from the raw samples of a Prometheus, or taken from
pushed samples. An engine that runs at the same time loses no pushed sample.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from collectors.mapping.target import Target
from collectors.pipeline.scrape_manager import PushSource
from collectors.prometheus.source import PrometheusSource
from collectors.recording.recorder import FlightRecorder
from collectors.scrape.scraper import Scraper
from outrider.clock import Clock
from outrider.errors import UnavailableError, UsageError
from outrider.model import EntityRef
from outrider.topology import Topology
from service.config.settings import Settings
from service.recorder import pushed_scrapes
from service.sources import discovery, factory, receiving
from service.sources.event_source import event_sources


async def record(
    settings: Settings, duration: timedelta, out: Path, clock: Clock, progress: Callable[[str, float], None]
) -> dict[str, Any]:
    """Reads every target and event source each interval for ``duration``. Returns the JSON of ``outrider record``.

    A cycle that takes longer than the interval delays the next. An interrupted recording is kept. Raises UsageError
    if there is nothing to read or the folder cannot be used, UnavailableError if Prometheus does not respond at first.
    """
    prometheus = settings.collect.prometheus
    watched: Sequence[Target] = ()
    if prometheus is None:
        watched = (await discovery.discover_once(settings, factory.targets(settings), clock.now())).targets
    pushed = receiving.watching(settings, clock)
    if not watched and prometheus is None and pushed is None:
        raise _nothing_to_record()
    recorder = FlightRecorder(out, settings.cluster, watched)
    source = None
    if prometheus is not None:  # raw samples, even if the platform uses pushdown
        source = factory.prometheus_source(prometheus, settings.cluster, clock=clock, tap=recorder.add)
    reading = _Reading(settings, watched, source, pushed, recorder)
    interval = settings.collect.interval
    rounds = max(1, round(duration / interval))
    begun = clock.monotonic()
    try:
        for number in range(rounds):
            await reading.round(clock.now(), first=number == 0)
            progress("record", (number + 1) / rounds)
            ahead = begun + (number + 1) * interval.total_seconds() - clock.monotonic()
            if number + 1 < rounds:
                await reading.rest(clock, timedelta(seconds=max(0.0, ahead)))
    finally:
        recorder.close()
        await reading.close()
    if not recorder.targets and not recorder.events:
        raise _nothing_to_record()
    event_count = {"events": recorder.events} if settings.events else {}
    left_out = [*_left_out(settings), *reading.left_out]
    return {
        "dir": str(out),
        "targets": recorder.targets,
        "scrapes": recorder.scrapes,
        **event_count,
        **({"left_out": left_out} if left_out else {}),
    }


def _nothing_to_record() -> UsageError:
    hint = "name them under collect.targets, collect.discover or collect.prometheus"
    return UsageError("no targets are configured to record, and no samples were pushed", hint=hint)


class _Reading:
    """The sources of each round, and the recorder that they are written to."""

    def __init__(
        self,
        settings: Settings,
        watched: Sequence[Target],
        source: PrometheusSource | None,
        pushed: PushSource | None,
        recorder: FlightRecorder,
    ) -> None:
        self._watched, self._source, self._pushed, self._recorder = watched, source, pushed, recorder
        self._scraper = Scraper()
        self._events = event_sources(settings)
        self._kpis = pushed_scrapes.Kpis(settings)
        edges = [edge for target in watched for edge in target.edges]
        self._events.know(Topology.build(edges, [target.entity for target in watched], _facts(watched)))

    @property
    def left_out(self) -> list[str]:
        """Messages about pushed data that cannot be recorded."""
        return self._kpis.left_out

    async def round(self, at: datetime, *, first: bool) -> None:
        """Reads every source once. Raises UnavailableError if ``first`` and Prometheus does not respond."""
        scrapes, events, _ = await asyncio.gather(
            self._scraper.scrape(self._watched, at=at), self._events.collect(at), self._read_source(at, first=first)
        )
        self._recorder.add(scrapes)
        self._recorder.add_events(events)
        await self._add_pushed(at)

    async def rest(self, clock: Clock, duration: timedelta) -> None:
        """Waits for the next round. Pushed samples are also read halfway, before an engine releases them."""
        if self._pushed is None:
            await clock.sleep(duration)
            return
        await clock.sleep(duration / 2)
        await self._add_pushed(clock.now())
        await clock.sleep(duration / 2)

    async def _read_source(self, at: datetime, *, first: bool) -> None:
        if self._source is None:
            return
        collected = await self._source.collect(at)
        health = self._source.health[0]
        if first and not health.up:
            raise UnavailableError(health.error or "Prometheus cannot be read", hint="check collect.prometheus")
        self._events.know(collected.topology)

    async def _add_pushed(self, at: datetime) -> None:
        if self._pushed is not None:
            batch = await asyncio.to_thread(self._pushed.take, at)
            self._recorder.add(pushed_scrapes.scrapes(batch))
            self._recorder.add(self._kpis.scrapes(batch, at))

    async def close(self) -> None:
        """Closes every connection."""
        await self._scraper.close()
        await self._events.close()
        if self._source is not None:
            await self._source.close()
        if self._pushed is not None:
            self._pushed.close()


def _left_out(settings: Settings) -> list[str]:
    """Returns messages about configured sources that a recording cannot hold."""
    messages = [
        f"probe {probe.name or probe.url or probe.host}: probe results are not recorded" for probe in settings.probes
    ]
    for source in settings.events:
        if source.type == "kubernetes":
            name = source.name or source.type
            messages.append(f"{name}: events are recorded; signals and topology of the Kubernetes API are not")
    return messages


def _facts(watched: Sequence[Target]) -> dict[EntityRef, dict[str, str]]:
    """Returns the facts of each component from the labels of the targets."""
    by_entity: dict[EntityRef, dict[str, str]] = {}
    for target in watched:
        for entity, facts in target.facts.items():
            by_entity.setdefault(entity, {}).update(facts)
    return by_entity
