"""Reads event sources concurrently: each at its own interval, none delays the others, no event twice."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
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
    """One source of events."""

    name: str

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> _Read:
        """Returns the new events since the last reading, and read errors. ``nodes`` are the known ones."""
        ...

    async def close(self) -> None:
        """Releases resources."""
        ...


class EventSources:
    """Reads sources concurrently. A source has at most one reading in flight."""

    def __init__(
        self,
        sources: Sequence[EventSource],
        *,
        deadline: timedelta | None = None,
        every: Mapping[str, timedelta] | None = None,
    ) -> None:
        """``deadline`` closes a round: later results are handed over in the next one. None waits for all.

        ``every`` is the minimum interval between two readings, by source name; without it, each round reads the
        source.
        """
        self._sources = {source.name: source for source in sources}
        self._deadline = deadline
        self._every = dict(every or {})
        self._started: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[_Read]] = {}
        self._resolver = EntityResolver()
        self._deduplicator = EventDeduplicator()
        self._health = {name: TargetHealth(name, "events", None, None, None, None, None) for name in self._sources}

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each source; ``samples`` are the events of its last reading."""
        return list(self._health.values())

    @property
    def sources(self) -> tuple[EventSource, ...]:
        """The sources themselves; some provide more than events."""
        return tuple(self._sources.values())

    async def collect(self, at: datetime, topology: Topology | None = None) -> tuple[Event, ...]:
        """One round. Never raises for a source's error."""
        if topology is not None:
            self.know(topology)
        return self.events(await self.read(at))

    def know(self, topology: Topology) -> None:
        """Sets the topology: it resolves devices, replicas and services, and lists the nodes to read."""
        if not topology.shares_graph(self._resolver.topology):
            self._resolver = EntityResolver(topology)

    async def read(self, at: datetime, names: Collection[str] | None = None) -> list[UnresolvedEvent]:
        """Returns the events of every source (or of those named) that were not returned before."""
        nodes = self._resolver.topology.of_kind(EntityKind.NODE)
        started = asyncio.get_running_loop().time()
        for name, source in self._sources.items():
            if name not in self._running and self._is_due(name, at) and (names is None or name in names):
                self._started[name] = at
                self._running[name] = asyncio.create_task(source.read(at, nodes), name=f"events {name}")
        awaited = [task for name, task in self._running.items() if names is None or name in names]
        if awaited:
            seconds = None if self._deadline is None else self._deadline.total_seconds()
            await asyncio.wait(awaited, timeout=seconds)
        seconds_spent = asyncio.get_running_loop().time() - started
        unresolved: list[UnresolvedEvent] = []
        for name in list(self._running):
            if not self._running[name].done():
                late = names is None or name in names
                self._health[name] = replace(self._health[name], late=self._health[name].late or late)
                continue
            events, errors = _result(name, self._running.pop(name))
            self._note(name, events, errors, seconds_spent, at)
            unresolved += events
        return self._deduplicator.new_readings(unresolved, at)

    def _is_due(self, name: str, at: datetime) -> bool:
        """True if the interval has passed, or if the clock was set back."""
        started, every = self._started.get(name), self._every.get(name)
        return started is None or every is None or not timedelta(0) <= at - started < every

    def events(self, readings: Sequence[UnresolvedEvent]) -> tuple[Event, ...]:
        """Resolves readings to events of the affected entities, oldest first."""
        read = map(node_problems.read, readings)
        return tuple(sorted(self._resolver.events(read), key=lambda event: event.at))

    def _note(
        self, name: str, events: Sequence[UnresolvedEvent], errors: Sequence[CollectError], seconds: float, at: datetime
    ) -> None:
        before = self._health[name]
        error = errors[0] if errors else None
        message = None if error is None else error.message
        if len(errors) > 1:
            message = f"{message} (and {len(errors) - 1} more)"
        self._health[name] = TargetHealth(
            target=name,
            adapter="events",
            up=error is None,
            samples=len(events),
            duration_seconds=seconds,
            error=message,
            last_success=at if error is None else before.last_success,
            reason=None if error is None else error.reason,
        )
        if error is not None and (before.reason != error.reason or before.up):
            log.get("collect").warning("events_failed", source=name, reason=error.reason, error=message)

    async def close(self) -> None:
        """Cancels readings in flight and closes every source."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        for source in self._sources.values():
            await source.close()


def _result(name: str, task: asyncio.Task[_Read]) -> _Read:
    """Returns the result of a reading. A bug in one source must not fail the round of the others."""
    error = task.exception()
    if error is None:
        return task.result()
    log.get("collect").error("events_broke", source=name, exc_info=error)
    message = f"{name}: unexpected response ({type(error).__name__})"
    return [], [CollectError(message, reason=CollectReason.OTHER, hint="please report this with the log")]
