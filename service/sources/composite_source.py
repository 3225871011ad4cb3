"""The source of the cycle: a source of metrics pages, with contributors for probes, events, discovery and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from collectors.mapping.target import Target
from collectors.scrape.target_health import TargetHealth
from outrider.model import EntityRef
from outrider.ports import Collected, Source
from outrider.topology import Topology

Labels = Mapping[EntityRef, Mapping[str, str]]


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


class Contributor(Protocol):
    """A part of a cycle's data besides the metrics pages."""

    @property
    def health(self) -> Sequence[TargetHealth]:
        """Health of the sources that the contributor reads."""
        ...

    async def prepare(self, at: datetime) -> None:
        """Runs before the metrics pages are read."""
        ...

    async def read(self, at: datetime) -> None:
        """Runs while the metrics pages are read."""
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

    async def read(self, at: datetime) -> None:
        """Does nothing."""

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

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each target, then of the sources of each contributor."""
        return [*self.pages.health, *(health for part in self.contributors for health in part.health)]

    async def collect(self, at: datetime) -> Collected:
        """Collects once: metrics pages and contributors are read concurrently."""
        reading = asyncio.gather(*(contributor.read(at) for contributor in self.contributors))
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
