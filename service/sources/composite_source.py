"""The source of the cycle: a source of metrics pages, with contributors for probes, events, discovery and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from collectors.mapping.target import Target
from collectors.scrape.target_health import TargetHealth
from outrider.model import EntityRef, Event
from outrider.ports import Collected, Source
from outrider.topology import Topology

Labels = Mapping[EntityRef, Mapping[str, str]]
EarlySink = Callable[[Collected], None]


class PageSource(Source, Protocol):
    """A source that reads exposition pages: the scraper or a Prometheus."""

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each target."""
        ...

    @property
    def watched(self) -> tuple[Target, ...]:
        """The targets that are scraped, and those that push."""
        ...


@runtime_checkable
class EarlyPages(Protocol):
    """A source of pages that sends single pages on before their round ends."""

    def on_early(self, sink: EarlySink) -> None:
        """Sets the receiver of single pages."""
        ...

    async def read_pushed_early(self, at: datetime) -> None:
        """Sends on pushed pages that are complete between two rounds."""
        ...


class Contributor(Protocol):
    """A part of a cycle's data besides the metrics pages."""

    @property
    def health(self) -> Sequence[TargetHealth]:
        """Health of the sources that the contributor reads."""
        ...

    async def prepare(self, at: datetime) -> None:
        """Runs before the metrics pages are read."""
        ...

    async def read(self, at: datetime) -> Sequence[Event]:
        """Runs while the metrics pages are read. Returns the new events, resolved by the last cycle's topology."""
        ...

    async def read_early(self, at: datetime) -> Sequence[Event]:
        """Returns new events between two cycles. The next cycle adds them, too."""
        ...

    async def add(self, collected: Collected, at: datetime) -> Collected:
        """Returns the collected data with the part of this contributor."""
        ...

    async def close(self) -> None:
        """Stops pending work and releases connections."""
        ...


class SilentContributor:
    """A contributor that does nothing. Contributors override what they need."""

    @property
    def health(self) -> Sequence[TargetHealth]:
        """Nothing is read."""
        return ()

    async def prepare(self, at: datetime) -> None:
        """Does nothing."""

    async def read(self, at: datetime) -> Sequence[Event]:
        """Nothing is read."""
        del at
        return ()

    async def read_early(self, at: datetime) -> Sequence[Event]:
        """Nothing is read."""
        del at
        return ()

    async def add(self, collected: Collected, at: datetime) -> Collected:
        """Returns the collected data unchanged."""
        del at
        return collected

    async def close(self) -> None:
        """Does nothing."""


class CompositeSource:
    """A source of metrics pages with contributors, applied in order in each cycle."""

    def __init__(self, pages: PageSource, contributors: Sequence[Contributor] = ()) -> None:
        """``pages`` and the contributors are closed with this source."""
        self.pages = pages
        self.contributors = tuple(contributors)
        self.page_topology = Topology()
        """Topology of the newest metrics pages alone."""
        self._early_sink: EarlySink | None = None

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each target, then of the sources of each contributor."""
        return [*self.pages.health, *(health for part in self.contributors for health in part.health)]

    def on_early(self, sink: EarlySink) -> None:
        """Sets the receiver of single pages and readings, which gets them before their cycle."""
        self._early_sink = sink
        if isinstance(self.pages, EarlyPages):
            self.pages.on_early(sink)

    async def read_early(self, at: datetime) -> None:
        """Reads what arrives between two cycles: pushed pages, and events that need no request per node."""
        if self._early_sink is None:
            return
        pages = [self.pages.read_pushed_early(at)] if isinstance(self.pages, EarlyPages) else []
        await asyncio.gather(*pages, *(self._send_on(contributor.read_early(at)) for contributor in self.contributors))

    async def _send_on(self, reading: Coroutine[Any, Any, Sequence[Event]]) -> None:
        events = tuple(await reading)
        if events and self._early_sink is not None:
            self._early_sink(Collected(events=events))

    async def collect(self, at: datetime) -> Collected:
        """Collects once: metrics pages and contributors are read concurrently."""
        reading = asyncio.gather(*(self._send_on(contributor.read(at)) for contributor in self.contributors))
        collected, _ = await asyncio.gather(self._collect_pages(at), reading)
        self.page_topology = collected.topology
        for contributor in self.contributors:
            collected = await contributor.add(collected, at)
        return collected

    async def _collect_pages(self, at: datetime) -> Collected:
        for contributor in self.contributors:
            await contributor.prepare(at)
        return await self.pages.collect(at)

    async def close(self) -> None:
        """Closes the contributors, the last one first, then the source of pages."""
        for contributor in reversed(self.contributors):
            await contributor.close()
        await self.pages.close()


class TopologyOverlay:
    """Adds labeled entities to a topology. The result shares its graph while the topology below does."""

    def __init__(self) -> None:
        self._below: Topology | None = None
        self._result = Topology()

    def apply(self, below: Topology, labels: Callable[[], Labels]) -> Topology:
        """Returns the topology with the entities and labels that ``labels`` returns."""
        if self._below is None or not below.shares_graph(self._below):
            added = labels()
            merged = {entity: {**below.labels.get(entity, {}), **facts} for entity, facts in added.items()}
            self._below = below
            self._result = replace(below, entities=below.entities | added.keys(), labels={**below.labels, **merged})
        return replace(self._result, at=below.at)
