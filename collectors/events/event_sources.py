"""Sources of events side by side: each at its own pace, none at another's expense, nothing told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from collectors.events import node_problems
from collectors.events.deduplication import EventDeduplicator
from collectors.events.unresolved_event import EntityResolver, UnresolvedEvent
from collectors.scrape.target_health import TargetHealth
from outrider import log
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef, Event
from outrider.topology import Topology

_Read = tuple[list[UnresolvedEvent], list[CollectError]]


class EventSource(Protocol):
    """One place where events are read."""

    name: str

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> _Read:
        """What is new since the last reading, and what could not be read. ``nodes`` are those known."""
        ...

    async def close(self) -> None:
        """Release what is open."""
        ...


class EventSources:
    """Reads sources together. A source has at most one reading under way."""

    def __init__(
        self,
        sources: Sequence[EventSource],
        *,
        deadline: timedelta | None = None,
        every: Mapping[str, timedelta] | None = None,
    ) -> None:
        """``deadline`` closes a round: what comes later is handed over in the next one. None waits for all.

        ``every`` is the least time between two readings, by the name of a source; else each round reads it.
        """
        self._sources = {source.name: source for source in sources}
        self._deadline = deadline
        self._every = dict(every or {})
        self._begun: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[_Read]] = {}
        self._places = EntityResolver()
        self._deduplicator = EventDeduplicator()
        self._health = {name: TargetHealth(name, "events", None, None, None, None, None) for name in self._sources}

    @property
    def health(self) -> list[TargetHealth]:
        """How each source fares; ``samples`` are the events of its last reading."""
        return list(self._health.values())

    @property
    def sources(self) -> tuple[EventSource, ...]:
        """The sources themselves, for those who know that some tell more than events."""
        return tuple(self._sources.values())

    async def collect(self, at: datetime, topology: Topology | None = None) -> tuple[Event, ...]:
        """One round. Never raises for a source's fault."""
        if topology is not None:
            self.know(topology)
        return self.events(await self.read(at))

    def know(self, topology: Topology) -> None:
        """Take up what is known of the fleet: it names devices, replicas and services, and the nodes to ask."""
        if not topology.shares_graph(self._places.topology):
            self._places = EntityResolver(topology)

    async def read(self, at: datetime) -> list[UnresolvedEvent]:
        """What every source saw, and nothing that was told before."""
        nodes = self._places.topology.of_kind(EntityKind.NODE)
        begun = asyncio.get_running_loop().time()
        for name, source in self._sources.items():
            if name not in self._running and self._is_due(name, at):
                self._begun[name] = at
                self._running[name] = asyncio.create_task(source.read(at, nodes), name=f"events {name}")
        if self._running:
            seconds = None if self._deadline is None else self._deadline.total_seconds()
            await asyncio.wait(self._running.values(), timeout=seconds)
        spent = asyncio.get_running_loop().time() - begun
        found: list[UnresolvedEvent] = []
        for name in list(self._running):
            if not self._running[name].done():
                self._health[name] = replace(self._health[name], late=True)
                continue
            sightings, errors = _result(name, self._running.pop(name))
            self._note(name, sightings, errors, spent, at)
            found += sightings
        return self._deduplicator.new_readings(found, at)

    def _is_due(self, name: str, at: datetime) -> bool:
        """A clock that was set back makes everything due."""
        begun, every = self._begun.get(name), self._every.get(name)
        return begun is None or every is None or not timedelta(0) <= at - begun < every

    def events(self, sightings: Sequence[UnresolvedEvent]) -> tuple[Event, ...]:
        """Sightings as events of the components they are about, oldest first."""
        read = map(node_problems.read, sightings)
        return tuple(sorted(self._places.events(read), key=lambda event: event.at))

    def _note(
        self, name: str, found: Sequence[UnresolvedEvent], errors: Sequence[CollectError], seconds: float, at: datetime
    ) -> None:
        before = self._health[name]
        error = errors[0] if errors else None
        said = None if error is None else error.message
        if len(errors) > 1:
            said = f"{said} (and {len(errors) - 1} more)"
        self._health[name] = TargetHealth(
            target=name,
            adapter="events",
            up=error is None,
            samples=len(found),
            duration_seconds=seconds,
            error=said,
            last_success=at if error is None else before.last_success,
            reason=None if error is None else error.reason,
        )
        if error is not None and (before.reason != error.reason or before.up):
            log.get("collect").warning("events_failed", source=name, reason=error.reason, error=said)

    async def close(self) -> None:
        """End readings that are still under way and close every source."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        for source in self._sources.values():
            await source.close()


def _result(name: str, task: asyncio.Task[_Read]) -> _Read:
    """What a reading brought. A mistake of ours in one source must not cost the round of all others."""
    fault = task.exception()
    if fault is None:
        return task.result()
    log.get("collect").error("events_broke", source=name, exc_info=fault)
    said = f"{name}: its answer could not be understood ({type(fault).__name__})"
    return [], [CollectError(said, reason=CollectReason.OTHER, hint="please report this with the log")]
