"""Protocols of the collectors, and the values that they exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from outrider.model import EntityRef, Event, SampleBatch
from outrider.topology import Edge, Topology


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of one round of collection.

    ``edges`` and ``labels`` are topology facts of the pages that were read. ``topology`` is the whole graph at the
    time of the round; it is empty in the result of a single page.
    """

    batches: tuple[SampleBatch, ...] = ()
    events: tuple[Event, ...] = ()
    edges: tuple[Edge, ...] = ()
    labels: Mapping[EntityRef, Mapping[str, str]] | None = None
    topology: Topology = field(default_factory=Topology)


class Source(Protocol):
    """A source of batches and events: the scraper, a Prometheus, a recording or a simulated fleet."""

    async def collect(self, at: datetime) -> Collected:
        """Runs one round of collection."""
        ...

    async def close(self) -> None:
        """Stops pending work and releases connections."""
        ...
