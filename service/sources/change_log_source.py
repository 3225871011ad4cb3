"""A source of the cycle whose changes, their ends and the start-ups of replicas are kept in the ledger.

It also hands the engine what other processes left there: changes that pipelines announced, logs that were pushed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from collectors.events.unresolved_event import FIRST_LOOK, UnresolvedEvent, EntityResolver
from collectors.kubernetes.audit import audit
from collectors.kubernetes.event_source import Kubernetes
from collectors.kubernetes.objects import PODS
from collectors.logs.matcher import LogLines
from collectors.scrape.target_health import TargetHealth
from outrider import log
from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey
from outrider.ports import Collected
from outrider.records.change_log import Change, Ledger, change_of
from outrider.topology import Topology
from service.engine.cycle import Source
from service.sources.event_source import WithEvents

AUDIT_EVERY = timedelta(minutes=5)
AUDIT_PAPER = "workload_audit"
MOST_MISSED = 10_000
# the increase of either says that a replica has answered
_SERVED = (SignalKey("engine_generation_tokens_total"), SignalKey("engine_requests_finished_total"))


class Recorded:
    """A source with its ledger. ``recorded`` is the source itself."""

    def __init__(self, recorded: Source, ledger: Ledger) -> None:
        """The source is closed with this one; the ledger too."""
        self.recorded, self.ledger = recorded, ledger
        self._cursor = 0
        self._places = EntityResolver()
        self._audited: datetime | None = None
        self._resumed: set[str] = set()
        self._missed: deque[Change] = deque(maxlen=MOST_MISSED)  # changes seen while the ledger was away

    @property
    def health(self) -> list[TargetHealth]:
        """How each target fares."""
        return self.recorded.health

    def topology(self, at: datetime) -> Topology:
        """What is known of the topology."""
        return self.recorded.topology(at)

    async def collect(self, at: datetime) -> Collected:
        """One round. What cannot be kept is logged: it must not cost the round."""
        collected = await self.recorded.collect(at)
        topology = self.topology(at)
        try:
            return await asyncio.to_thread(self._record, collected, topology, at)
        except StoreError as error:
            log.get("ledger").error("ledger_failed", error=error.message)
            self._missed.extend(_changes(collected.events))
            return collected

    def _record(self, collected: Collected, topology: Topology, at: datetime) -> Collected:
        events = (*collected.events, *self._posted(topology, at))
        self.ledger.append_changes([*self._missed, *_changes(events)])
        self._missed.clear()
        for cluster in self._clusters():
            self.ledger.append_ends(cluster.ends())
        self._note_startups(collected.batches, topology, at)
        if self._audited is None or not timedelta(0) <= at - self._audited < AUDIT_EVERY:
            self._audited = at
            self._audit(at)
        return replace(collected, events=events)

    def _posted(self, topology: Topology, at: datetime) -> tuple[Event, ...]:
        """What was left for the engine since the last round, each about the component that the topology names."""
        found = self.ledger.posted(self._cursor, at - FIRST_LOOK)
        if not found:
            return ()
        self._cursor = found[-1][0]
        if not topology.shares_graph(self._places.topology):
            self._places = EntityResolver(topology)
        return tuple(replace(event, entity=self._places.entity(_sighting(event, topology))) for _, event in found)

    def _note_startups(self, batches: Sequence[SampleBatch], topology: Topology, at: datetime) -> None:
        clusters = self._clusters()
        for lines in self._logs():
            for namespace, pod, mark in lines.drain_marks():
                for cluster in clusters:
                    cluster.startups.mark(namespace, pod, mark)
        for cluster in clusters:
            self._resume(cluster, at)
            waiting = list(cluster.startups.waiting())
            if waiting:
                served = dict(_answering(batches))
                for one in waiting:
                    replicas = topology.above(one.pod, EntityKind.REPLICA)
                    first = min((served[found] for found in replicas if found in served), default=None)
                    if first is not None and one.ready_at is not None and first >= one.ready_at:
                        cluster.startups.served(one.id, first)
            self.ledger.save_startups(cluster.startups.drain(at))

    def _resume(self, cluster: Kubernetes, at: datetime) -> None:
        """Once its pods are known: what an earlier engine kept goes on, or has ended meanwhile."""
        if cluster.name in self._resumed or not cluster.objects.held[PODS.name].version:
            return
        self._resumed.add(cluster.name)
        kept = [one for one in self.ledger.placed_at(at) if one.id.startswith(f"{cluster.cluster}/")]
        self.ledger.save_startups(cluster.startups.resume(kept, at))

    def _audit(self, at: datetime) -> None:
        clusters = self._clusters()
        if clusters:
            found = [finding.as_dict() for one in clusters for finding in audit(one.objects, one.replicas, one.cluster)]
            self.ledger.put_paper(AUDIT_PAPER, {"findings": found}, at)

    def _clusters(self) -> tuple[Kubernetes, ...]:
        return self.recorded.view.clusters if isinstance(self.recorded, WithEvents) else ()

    def _logs(self) -> Iterator[LogLines]:
        for source in self.recorded.sources if isinstance(self.recorded, WithEvents) else ():
            lines = getattr(source, "lines", None)
            if isinstance(lines, LogLines):
                yield lines

    async def close(self) -> None:
        """Close both."""
        await self.recorded.close()
        self.ledger.close()


def _changes(events: Sequence[Event]) -> list[Change]:
    return [one for one in map(change_of, events) if one is not None]


def _answering(batches: Sequence[SampleBatch]) -> Iterator[tuple[EntityRef, datetime]]:
    """Replicas that have answered something since their last page, and when that page was read."""
    for batch in batches:
        if batch.kind is not EntityKind.REPLICA:
            continue
        for key in _SERVED:
            if key in batch.keys:
                column = batch.values[:, batch.keys.index(key)]
                for row in np.flatnonzero(column > 0):
                    yield batch.entities[row], batch.scraped_at


def _sighting(event: Event, topology: Topology) -> UnresolvedEvent:
    """The event before its component is known; a service that was named without its namespace gets it here."""
    entity, aim = event.entity, None
    if event.kind is EventKind.LOG and entity.kind is EntityKind.POD:
        aim = EntityKind.REPLICA
    elif event.kind is EventKind.CHANGE and entity.kind is EntityKind.WORKLOAD:
        aim = EntityKind.SERVICE
    elif entity.kind is EntityKind.SERVICE and entity not in topology.entities:
        named = [
            one
            for one in topology.of_kind(EntityKind.SERVICE)
            if one.name == entity.name and one.cluster == entity.cluster and entity.namespace in (None, one.namespace)
        ]
        entity = named[0] if len(named) == 1 else entity
    service = event.attributes.get("service", "")
    return UnresolvedEvent(
        event.kind, event.code, event.at, event.source, event.dedup_key, entity, event.attributes, "", "", aim, service
    )
