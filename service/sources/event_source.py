"""Pages and events as one source of the cycle."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from functools import partial

from collectors.events.deduplication import EventDeduplicator
from collectors.events.event_sources import EventSource, EventSources
from collectors.kubernetes.event_source import Kubernetes
from collectors.logs.engine_log import EngineLogs
from collectors.logs.kernel_file import KernelFile
from collectors.logs.kernel_log import KernelLogFile, KernelLogs
from collectors.logs.loki import LokiLogs
from collectors.net.http import HttpClient
from collectors.scrape.target_health import TargetHealth
from outrider.model import EntityKind, EntityRef
from outrider.ports import Collected
from outrider.topology import Topology
from service.config.event_settings import EventSettings
from service.config.settings import Settings
from service.engine.cycle import Source
from service.sources.discovery import Discovering
from service.sources.kube_clients import KubeClientPool
from service.sources.kube_view import KubeView
from service.sources.probe_source import WithProbes


class WithEvents:
    """A source of pages with sources of events beside it. ``pages`` is the former."""

    def __init__(self, pages: Source, events: EventSources, view: KubeView | None = None) -> None:
        """Both are closed with this one. ``view`` is what the Kubernetes API tells beside events."""
        self.pages = pages
        self.view = view or KubeView(())
        self._events = events
        self._deduplicator = EventDeduplicator()

    @property
    def health(self) -> list[TargetHealth]:
        """How each target fares, then each source of events."""
        return [*self.pages.health, *self._events.health]

    @property
    def sources(self) -> tuple[EventSource, ...]:
        """The sources of events."""
        return self._events.sources

    def topology(self, at: datetime) -> Topology:
        """What the pages tell of the topology, and the Kubernetes API beside them."""
        return self.view.topology(self.pages.topology(at))

    async def collect(self, at: datetime) -> Collected:
        """One round: pages and events are read at the same time, and events are placed by what is known then."""
        collected, seen = await asyncio.gather(self.pages.collect(at), self._events.read(at))
        topology = await asyncio.to_thread(self.topology, at)  # of a large fleet it takes a while to build
        self._events.know(topology)
        told = self._deduplicator.deduplicate((*self._events.events(seen), *collected.events))
        if not self.view.clusters:
            return replace(collected, events=told)
        batches = (*collected.batches, *self.view.batches(self.pages.health, at))
        return replace(collected, batches=batches, events=told, edges=topology.edges, labels=topology.labels)

    async def close(self) -> None:
        """Close both."""
        await self._events.close()
        await self.pages.close()


def pages_of(source: Source) -> Source:
    """The source of pages, without events, probes and discovery beside it and a ledger behind it."""
    inner = getattr(source, "recorded", source)  # service.sources.change_log_source, which knows this module
    while isinstance(inner, WithEvents | WithProbes | Discovering):
        inner = inner.pages
    return inner


def with_events(pages: Source, settings: Settings, doors: KubeClientPool | None = None) -> Source:
    """The source with the events that a configuration names; itself when it names none.

    ``doors`` are those of API servers that discovery reads too.
    """
    if not settings.events:
        return pages
    sources = event_sources(settings, doors)
    clusters = [one for one in sources.sources if isinstance(one, Kubernetes)]
    signals = {one.name or one.type: one.signals for one in settings.events}
    return WithEvents(pages, sources, KubeView(clusters, signals))


def event_sources(settings: Settings, doors: KubeClientPool | None = None) -> EventSources:
    """Every source of events that a configuration names."""
    opened = doors or KubeClientPool(settings.events)
    made = [event_source(one, settings.cluster, opened) for one in settings.events]
    every = {one.name or one.type: one.every for one in settings.events}
    return EventSources(made, deadline=settings.collect.interval / 4, every=every)


def event_source(given: EventSettings, cluster: str, doors: KubeClientPool) -> EventSource:
    """One source of events from its settings."""
    name, of = given.name or given.type, given.cluster or cluster
    client = partial(HttpClient, name, timeout=given.timeout, access=given.access)
    node = None if given.node is None else EntityRef(of, EntityKind.NODE, None, given.node)
    if given.type == "kernel_log":
        if given.path is not None:
            assert node is not None  # the settings have seen to it
            return KernelLogFile(name, KernelFile(given.path), node)
        return KernelLogs(name, given.url or "", client, of, node)
    if given.type == "loki":
        return LokiLogs(name, client(given.url or ""), of, given.query.strip(), prefilter=given.prefilter)
    api = doors.of(given, name)
    if given.type == "kubernetes":
        return Kubernetes(name, api, of, namespaces=given.namespaces, service_label=given.service_label)
    return EngineLogs(
        name,
        api,
        of,
        namespaces=given.namespaces,
        label_selector=given.label_selector,
        container=given.container,
    )
