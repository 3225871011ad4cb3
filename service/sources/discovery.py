"""Targets that are found: sources from the configuration, beside the rounds of a collector."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from collectors.discovery.adapter_detection import guess
from collectors.discovery.kubernetes import KubernetesSource
from collectors.discovery.manager import Discovery, DiscoveryResult
from collectors.discovery.relabeling import Rules
from collectors.discovery.static_file_http_dns import DnsSource, FileSource, HttpSource, StaticSource
from collectors.discovery.types import TargetSource
from collectors.mapping.target import Target
from collectors.net.dns_client import NameServer
from collectors.net.http import HttpClient
from collectors.normalise.batches import WATCH_KEYS
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.target_health import TargetHealth
from outrider.errors import CollectReason
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch
from outrider.ports import Collected
from outrider.topology import Topology
from service.config.collect_settings import CollectSettings
from service.config.discovery_settings import DiscoverSettings
from service.config.settings import Settings
from service.engine.fleet_state import TARGETS_NAMESPACE
from service.sources.kube_clients import KubeClientPool

_EVERY = {
    "static": timedelta(days=1),
    "file": timedelta(seconds=30),
    "http": timedelta(minutes=1),
    "dns": timedelta(seconds=30),
    "kubernetes": timedelta(seconds=15),
}
_OTHER_CODE = 7.0


class Discovering:
    """A collector whose targets come and go. ``pages`` is the collector."""

    def __init__(self, pages: ScrapeManager, discovery: Discovery, cluster: str, *, deadline: timedelta) -> None:
        """The first round waits ``deadline`` for the sources; later ones take what is there. Both are closed here."""
        self.pages = pages
        self._discovery, self._cluster = discovery, cluster
        self._deadline = deadline
        self._taken: DiscoveryResult | None = None
        self._graph: tuple[Topology, Topology] | None = None

    @property
    def health(self) -> list[TargetHealth]:
        """How each source of targets fares, then each target."""
        return [*self._discovery.health, *self.pages.health]

    def topology(self, at: datetime) -> Topology:
        """What pages and sources tell, with the sources themselves: the same graph as long as nothing changes."""
        below = self.pages.topology(at)
        if self._graph is None or not below.shares_graph(self._graph[0]):
            more = {_watcher(self._cluster, one.target): _facts(one) for one in self._discovery.health}
            labels = {**below.labels, **more}
            self._graph = below, replace(below, entities=below.entities | more.keys(), labels=labels)
        return replace(self._graph[1], at=at)

    async def collect(self, at: datetime) -> Collected:
        """One round, of the targets that are known by now."""
        known = await self._discovery.refresh(at, wait=0.0 if self._taken else self._deadline.total_seconds())
        if known is not self._taken:
            self.pages.set_targets(known.targets, known.edges, known.labels)
            self._taken = known
        collected = await self.pages.collect(at)
        batch = _watched(self._cluster, self._discovery.health, at)
        return replace(collected, batches=(*collected.batches, batch), labels=self.topology(at).labels)

    async def close(self) -> None:
        """Close both."""
        await self._discovery.close()
        await self.pages.close()


def discovery_of(settings: Settings, configured: Sequence[Target], doors: KubeClientPool | None = None) -> Discovery:
    """Every source of targets that a configuration names. ``doors`` are those that sources of events open too."""
    collect = settings.collect
    opened = doors or KubeClientPool(collect.discover)
    sources = [(_source(one, settings.cluster, opened), _rules(one, collect)) for one in collect.discover]
    return Discovery(sources, settings.cluster, configured=configured, guess=_look)


@dataclass(frozen=True, slots=True)
class Once:
    """What one reading of every source gave."""

    targets: tuple[Target, ...]
    health: tuple[TargetHealth, ...]


async def once(settings: Settings, configured: Sequence[Target], at: datetime) -> Once:
    """Read every source once and wait for all of them; what they could not read stands in ``health``."""
    discovery = discovery_of(settings, configured)
    try:
        known = await discovery.refresh(at)
        return Once(known.targets, tuple(discovery.health))
    finally:
        await discovery.close()


def _source(given: DiscoverSettings, cluster: str, doors: KubeClientPool) -> TargetSource:
    name, every = given.label, given.every or _EVERY[given.type]
    client = partial(HttpClient, name, given.url or "", timeout=given.timeout, access=given.access)
    servers = [NameServer.parse(one) for one in given.name_servers]
    if given.type == "static":
        return StaticSource(name, given.targets, given.add_labels)
    if given.type == "file":
        return FileSource(name, given.files, every=every)
    if given.type == "http":
        return HttpSource(name, client(), every=every)
    if given.type == "dns":
        return DnsSource(name, given.names, record=given.record, servers=servers, within=given.timeout, every=every)
    return KubernetesSource(
        name,
        doors.of(given, name),
        cluster,
        namespaces=given.namespaces,
        label_selector=given.label_selector,
        service_label=given.service_label,
        every=every,
    )


def _rules(given: DiscoverSettings, collect: CollectSettings) -> Rules:
    scrape = given.scrape
    return Rules(
        keep={label: re.compile(pattern) for label, pattern in given.keep.items()},
        drop={label: re.compile(pattern) for label, pattern in given.drop.items()},
        labels=given.labels,
        adapter=given.adapter,
        adapters=given.adapters,
        adapter_label=given.adapter_label,
        scheme=scrape.scheme,
        path=scrape.path,
        port=scrape.port,
        timeout=scrape.timeout,
        access=scrape.access,
        limit_bytes=collect.page_limit_bytes,
        limit_series=collect.page_limit_series,
    )


async def _look(url: str, rules: Rules) -> str | None:
    """Which adapter reads a page; None when nobody does. Raises CollectError when it cannot be read."""
    client = HttpClient("discover", url, timeout=rules.timeout, access=rules.access)
    try:
        answer = await client.ask("")
    finally:
        await client.close()
    if answer.status != 200:
        raise client.fault(f"{url} answered {answer.status}", CollectReason.HTTP_STATUS)
    return await asyncio.to_thread(guess, answer.body.decode("utf-8", errors="replace"))


def _watcher(cluster: str, name: str) -> EntityRef:
    return EntityRef(cluster, EntityKind.WORKLOAD, TARGETS_NAMESPACE, f"discover/{name}")


def _facts(health: TargetHealth) -> dict[str, str]:
    return {"target": health.target, "adapter": health.adapter}


def _watched(cluster: str, health: Sequence[TargetHealth], at: datetime) -> SampleBatch:
    """What is said of each source as of any target: whether it could be read, and how many targets it brings."""
    values = np.full((len(health), len(WATCH_KEYS)), np.nan)
    for row, one in enumerate(health):
        if one.up is not None:
            values[row] = (float(one.up), np.nan, float(one.samples or 0), 0.0 if one.up else _OTHER_CODE, np.nan)
    status = np.where(np.isfinite(values), CellStatus.PRESENT, CellStatus.ABSENT).astype(np.uint8)
    entities = tuple(_watcher(cluster, one.target) for one in health)
    return SampleBatch("discovery", at, EntityKind.WORKLOAD, WATCH_KEYS, entities, values, status)
