"""Records changes, their ends and start-ups of replicas in the change log, and reads events from it for the cycle.

Other processes write events to it: changes announced by pipelines, and pushed logs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from collectors.events.unresolved_event import FIRST_LOOK, EntityResolver, UnresolvedEvent
from collectors.kubernetes.audit import audit
from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.kubernetes.objects import PODS
from collectors.logs.matcher import LogMatcher
from outrider import log
from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey
from outrider.ports import Collected
from outrider.records.change_log import Change, ChangeLog, change_of
from outrider.topology import Topology
from service.sources.composite_source import SilentContributor

AUDIT_EVERY = timedelta(minutes=5)
AUDIT_DOCUMENT = "workload_audit"
MOST_MISSED = 10_000
# an increase of either means that the replica has served
_SERVED = (SignalKey("engine_generation_tokens_total"), SignalKey("engine_requests_finished_total"))


class ChangeLogContributor(SilentContributor):
    """Stores changes, their ends and start-ups in the change log; adds the events that other processes wrote to it."""

    def __init__(
        self, change_log: ChangeLog, clusters: Sequence[KubernetesEventSource] = (), logs: Sequence[LogMatcher] = ()
    ) -> None:
        """``clusters`` and ``logs`` are read elsewhere. The change log is closed with this contributor."""
        self._change_log, self._clusters, self._logs = change_log, tuple(clusters), tuple(logs)
        self._cursor = self._early_cursor = 0
        self._resolver = EntityResolver()
        self._audited: datetime | None = None
        self._resumed: set[str] = set()
        self._topology: Topology | None = None  # of the last cycle
        self._missed: deque[Change] = deque(maxlen=MOST_MISSED)  # changes while the change log was unavailable

    async def read_early(self, at: datetime) -> tuple[Event, ...]:
        """Returns the events that other processes posted since; the next cycle reads them again."""
        if self._topology is None:
            return ()
        after = max(self._cursor, self._early_cursor)
        try:
            posted = await asyncio.to_thread(self._change_log.posted, after, at - FIRST_LOOK)
        except StoreError:
            return ()  # the next cycle logs it
        self._early_cursor = posted[-1][0] if posted else after
        return self._resolved(posted, self._topology)

    async def add(self, collected: Collected, at: datetime) -> Collected:
        """Records the cycle. A failure is logged and does not fail the cycle."""
        self._topology = collected.topology
        try:
            return await asyncio.to_thread(self._record, collected, collected.topology, at)
        except StoreError as error:
            log.get("ledger").error("ledger_failed", error=error.message)
            self._missed.extend(_changes(collected.events))
            return collected

    def _record(self, collected: Collected, topology: Topology, at: datetime) -> Collected:
        events = (*collected.events, *self._posted(topology, at))
        self._change_log.append_changes([*self._missed, *_changes(events)])
        self._missed.clear()
        for cluster in self._clusters:
            self._change_log.append_ends(cluster.ends())
        self._note_startups(collected.batches, topology, at)
        if self._audited is None or not timedelta(0) <= at - self._audited < AUDIT_EVERY:
            self._audited = at
            self._audit(at)
        return replace(collected, events=events)

    def _posted(self, topology: Topology, at: datetime) -> tuple[Event, ...]:
        """Returns the events posted since the last cycle, each resolved to a component of the topology."""
        posted = self._change_log.posted(self._cursor, at - FIRST_LOOK)
        if not posted:
            return ()
        self._cursor = posted[-1][0]
        return self._resolved(posted, topology)

    def _resolved(self, posted: Sequence[tuple[int, Event]], topology: Topology) -> tuple[Event, ...]:
        if posted and not topology.shares_graph(self._resolver.topology):
            self._resolver = EntityResolver(topology)
        return tuple(replace(event, entity=self._resolver.entity(_unresolved(event, topology))) for _, event in posted)

    def _note_startups(self, batches: Sequence[SampleBatch], topology: Topology, at: datetime) -> None:
        for matcher in self._logs:
            for namespace, pod, mark in matcher.drain_marks():
                for cluster in self._clusters:
                    cluster.startups.mark(namespace, pod, mark)
        for cluster in self._clusters:
            self._resume(cluster, at)
            waiting = list(cluster.startups.waiting())
            if waiting:
                served = dict(_serving(batches))
                for startup in waiting:
                    replicas = topology.above(startup.pod, EntityKind.REPLICA)
                    first = min((served[replica] for replica in replicas if replica in served), default=None)
                    if first is not None and startup.ready_at is not None and first >= startup.ready_at:
                        cluster.startups.served(startup.id, first)
            self._change_log.save_startups(cluster.startups.drain(at))

    def _resume(self, cluster: KubernetesEventSource, at: datetime) -> None:
        """Resumes the start-ups of an earlier engine as soon as the pods of the cluster are known."""
        if cluster.name in self._resumed or not cluster.objects.by_resource[PODS.name].version:
            return
        self._resumed.add(cluster.name)
        own = [startup for startup in self._change_log.placed_at(at) if startup.id.startswith(f"{cluster.cluster}/")]
        self._change_log.save_startups(cluster.startups.resume(own, at))

    def _audit(self, at: datetime) -> None:
        if self._clusters:
            findings = [
                finding.as_dict()
                for cluster in self._clusters
                for finding in audit(cluster.objects, cluster.replicas, cluster.cluster)
            ]
            self._change_log.put_document(AUDIT_DOCUMENT, {"findings": findings}, at)

    async def close(self) -> None:
        """Closes the change log."""
        self._change_log.close()


def _changes(events: Sequence[Event]) -> list[Change]:
    return [change for change in map(change_of, events) if change is not None]


def _serving(batches: Sequence[SampleBatch]) -> Iterator[tuple[EntityRef, datetime]]:
    """Yields replicas that finished work since their last scrape, and the time of that scrape."""
    for batch in batches:
        if batch.kind is not EntityKind.REPLICA:
            continue
        for key in _SERVED:
            if key in batch.keys:
                column = batch.values[:, batch.keys.index(key)]
                for row in np.flatnonzero(column > 0):
                    yield batch.entities[row], batch.scraped_at


def _unresolved(event: Event, topology: Topology) -> UnresolvedEvent:
    """Returns the event before its component is known. A service without a namespace gets one from the topology."""
    entity, kind = event.entity, None
    if event.kind is EventKind.LOG and entity.kind is EntityKind.POD:
        kind = EntityKind.REPLICA
    elif event.kind is EventKind.CHANGE and entity.kind is EntityKind.WORKLOAD:
        kind = EntityKind.SERVICE
    elif entity.kind is EntityKind.SERVICE and entity not in topology.entities:
        candidates = [
            service
            for service in topology.of_kind(EntityKind.SERVICE)
            if service.name == entity.name
            and service.cluster == entity.cluster
            and entity.namespace in (None, service.namespace)
        ]
        entity = candidates[0] if len(candidates) == 1 else entity
    service = event.attributes.get("service", "")
    return UnresolvedEvent(
        event.kind, event.code, event.at, event.source, event.dedup_key, entity, event.attributes, "", "", kind, service
    )
