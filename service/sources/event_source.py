"""Event sources as a contributor to each cycle."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from functools import partial

from collectors.events.event_sources import EventSource, EventSources
from collectors.events.unresolved_event import UnresolvedEvent
from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.logs.engine_log import EngineLogs
from collectors.logs.kernel_file import KernelFile
from collectors.logs.kernel_log import KernelLogFile, KernelLogs
from collectors.logs.loki import LokiLogs
from collectors.logs.matcher import LogMatcher, LogReader
from collectors.net.http import HttpClient
from collectors.scrape.target_health import TargetHealth
from outrider.model import EntityKind, EntityRef, Event
from outrider.ports import Collected
from service.config.event_settings import EventSettings
from service.config.settings import Settings
from service.sources.composite_source import PageSource, SilentContributor
from service.sources.kube_clients import KubeClientPool
from service.sources.kube_view import KubeView

_READ_EARLY = (KubernetesEventSource, KernelLogFile)


class EventContributor(SilentContributor):
    """Adds events, and the topology and signals of Kubernetes APIs."""

    def __init__(self, events: EventSources, pages: PageSource, view: KubeView | None = None) -> None:
        """``pages`` are read elsewhere: their health decides which signals of the Kubernetes API are added."""
        self.view = view or KubeView(())
        self._events, self._pages = events, pages
        self._unresolved: list[UnresolvedEvent] = []
        self._early = frozenset(source.name for source in events.sources if isinstance(source, _READ_EARLY))

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each event source."""
        return self._events.health

    @property
    def logs(self) -> tuple[LogMatcher, ...]:
        """The matchers of the event sources that read logs."""
        return tuple(source.lines for source in self._events.sources if isinstance(source, LogReader))

    async def read(self, at: datetime) -> tuple[Event, ...]:
        """Reads the event sources. Returns the new events."""
        return self._noted(await self._events.read(at))

    async def read_early(self, at: datetime) -> tuple[Event, ...]:
        """Reads the sources that need one watch or one file, not a request for each node."""
        return self._noted(await self._events.read(at, self._early)) if self._early else ()

    def _noted(self, readings: list[UnresolvedEvent]) -> tuple[Event, ...]:
        """Keeps the readings for the next cycle, and resolves them by the topology of the last one."""
        self._unresolved += readings
        return self._events.events(readings)

    async def add(self, collected: Collected, at: datetime) -> Collected:
        """Adds the events, resolved by the topology of this cycle."""
        topology = await asyncio.to_thread(self.view.topology, collected.topology)  # slow for a large fleet
        self._events.know(topology)
        unresolved, self._unresolved = self._unresolved, []
        events = (*self._events.events(unresolved), *collected.events)
        batches = collected.batches
        if self.view.clusters:
            batches = (*batches, *self.view.batches(self._pages.health, at))
        return replace(collected, batches=batches, events=events, topology=topology)

    async def close(self) -> None:
        """Closes the event sources."""
        await self._events.close()


def contributor(pages: PageSource, settings: Settings, clients: KubeClientPool | None = None) -> EventContributor:
    """Returns the event sources of a configuration. ``clients`` are shared with discovery."""
    sources = event_sources(settings, clients)
    clusters = [source for source in sources.sources if isinstance(source, KubernetesEventSource)]
    signals = {options.name or options.type: options.signals for options in settings.events}
    return EventContributor(sources, pages, KubeView(clusters, signals))


def event_sources(settings: Settings, clients: KubeClientPool | None = None) -> EventSources:
    """Returns every event source of a configuration."""
    pool = clients or KubeClientPool(settings.events)
    sources = [event_source(options, settings.cluster, pool) for options in settings.events]
    every = {options.name or options.type: options.every for options in settings.events}
    return EventSources(sources, deadline=settings.collect.interval / 4, every=every)


def event_source(options: EventSettings, cluster: str, clients: KubeClientPool) -> EventSource:
    """Returns one event source from its settings."""
    name, cluster = options.name or options.type, options.cluster or cluster
    client = partial(HttpClient, name, timeout=options.timeout, access=options.access)
    node = None if options.node is None else EntityRef(cluster, EntityKind.NODE, None, options.node)
    if options.type == "kernel_log":
        if options.path is not None:
            assert node is not None  # validated by the settings
            return KernelLogFile(name, KernelFile(options.path), node)
        return KernelLogs(name, options.url or "", client, cluster, node)
    if options.type == "loki":
        return LokiLogs(name, client(options.url or ""), cluster, options.query.strip(), prefilter=options.prefilter)
    api = clients.of(options, name)
    if options.type == "kubernetes":
        return KubernetesEventSource(
            name, api, cluster, namespaces=options.namespaces, service_label=options.service_label
        )
    return EngineLogs(
        name,
        api,
        cluster,
        namespaces=options.namespaces,
        label_selector=options.label_selector,
        container=options.container,
    )
