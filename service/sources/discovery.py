"""Target discovery: the target sources of a configuration, as a contributor to each cycle."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from collectors.discovery.adapter_detection import detect_adapter
from collectors.discovery.kubernetes import KubernetesSource
from collectors.discovery.manager import Discovery, DiscoveryResult
from collectors.discovery.relabeling import RelabelRules
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
from service.config.collect_settings import CollectSettings
from service.config.discovery_settings import DiscoverSettings
from service.config.settings import Settings
from service.engine.fleet_state import TARGETS_NAMESPACE
from service.sources.composite_source import SilentContributor, TopologyOverlay
from service.sources.kube_clients import KubeClientPool

_EVERY = {
    "static": timedelta(days=1),
    "file": timedelta(seconds=30),
    "http": timedelta(minutes=1),
    "dns": timedelta(seconds=30),
    "kubernetes": timedelta(seconds=15),
}
_OTHER_CODE = 7.0


class DiscoveryContributor(SilentContributor):
    """Sets the targets of a scraper to those discovered, and adds the health of the target sources."""

    def __init__(self, pages: ScrapeManager, discovery: Discovery, cluster: str, *, deadline: timedelta) -> None:
        """The first cycle waits ``deadline`` for the sources; later cycles do not wait."""
        self._pages, self._discovery, self._cluster = pages, discovery, cluster
        self._deadline = deadline
        self._applied: DiscoveryResult | None = None
        self._overlay = TopologyOverlay()

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each target source."""
        return self._discovery.health

    async def prepare(self, at: datetime) -> None:
        """Hands newly discovered targets to the scraper."""
        result = await self._discovery.refresh(at, wait=0.0 if self._applied else self._deadline.total_seconds())
        if result is not self._applied:
            self._pages.set_targets(result.targets, result.edges, result.labels)
            self._applied = result

    async def add(self, collected: Collected, at: datetime) -> Collected:
        """Adds the health of the target sources, and the sources as entities."""
        batch = _health_batch(self._cluster, self._discovery.health, at)
        topology = self._overlay.apply(collected.topology, self._labels)
        return replace(collected, batches=(*collected.batches, batch), topology=topology)

    def _labels(self) -> dict[EntityRef, dict[str, str]]:
        return {
            _source_entity(self._cluster, health.target): {"target": health.target, "adapter": health.adapter}
            for health in self._discovery.health
        }

    async def close(self) -> None:
        """Closes the target sources."""
        await self._discovery.close()


def discovery_of(settings: Settings, configured: Sequence[Target], clients: KubeClientPool | None = None) -> Discovery:
    """Returns every target source of a configuration. ``clients`` are shared with event sources."""
    collect = settings.collect
    pool = clients or KubeClientPool(collect.discover)
    sources = [(_source(entry, settings.cluster, pool), _rules(entry, collect)) for entry in collect.discover]
    return Discovery(sources, settings.cluster, configured=configured, guess=_detect_adapter)


@dataclass(frozen=True, slots=True)
class DiscoveryRun:
    """Result of reading every target source once."""

    targets: tuple[Target, ...]
    health: tuple[TargetHealth, ...]


async def discover_once(settings: Settings, configured: Sequence[Target], at: datetime) -> DiscoveryRun:
    """Reads every target source once and waits for all of them. Failures are in ``health``."""
    discovery = discovery_of(settings, configured)
    try:
        result = await discovery.refresh(at)
        return DiscoveryRun(result.targets, tuple(discovery.health))
    finally:
        await discovery.close()


def _source(options: DiscoverSettings, cluster: str, clients: KubeClientPool) -> TargetSource:
    name, every = options.label, options.every or _EVERY[options.type]
    client = partial(HttpClient, name, options.url or "", timeout=options.timeout, access=options.access)
    servers = [NameServer.parse(server) for server in options.name_servers]
    if options.type == "static":
        return StaticSource(name, options.targets, options.add_labels)
    if options.type == "file":
        return FileSource(name, options.files, every=every)
    if options.type == "http":
        return HttpSource(name, client(), every=every)
    if options.type == "dns":
        return DnsSource(
            name, options.names, record=options.record, servers=servers, within=options.timeout, every=every
        )
    return KubernetesSource(
        name,
        clients.of(options, name),
        cluster,
        namespaces=options.namespaces,
        label_selector=options.label_selector,
        service_label=options.service_label,
        every=every,
    )


def _rules(options: DiscoverSettings, collect: CollectSettings) -> RelabelRules:
    scrape = options.scrape
    return RelabelRules(
        keep={label: re.compile(pattern) for label, pattern in options.keep.items()},
        drop={label: re.compile(pattern) for label, pattern in options.drop.items()},
        labels=options.labels,
        adapter=options.adapter,
        adapters=options.adapters,
        adapter_label=options.adapter_label,
        scheme=scrape.scheme,
        path=scrape.path,
        port=scrape.port,
        timeout=scrape.timeout,
        access=scrape.access,
        limit_bytes=collect.page_limit_bytes,
        limit_series=collect.page_limit_series,
    )


async def _detect_adapter(url: str, rules: RelabelRules) -> str | None:
    """Returns the adapter of a metrics page, None if there is none. Raises CollectError if it cannot be read."""
    client = HttpClient("discover", url, timeout=rules.timeout, access=rules.access)
    try:
        response = await client.get("")
    finally:
        await client.close()
    if response.status != 200:
        raise client.fault(f"{url} returned HTTP {response.status}", CollectReason.HTTP_STATUS)
    return await asyncio.to_thread(detect_adapter, response.body.decode("utf-8", errors="replace"))


def _source_entity(cluster: str, name: str) -> EntityRef:
    return EntityRef(cluster, EntityKind.WORKLOAD, TARGETS_NAMESPACE, f"discover/{name}")


def _health_batch(cluster: str, health: Sequence[TargetHealth], at: datetime) -> SampleBatch:
    """Returns the health of each target source as that of a target; its samples are the targets it returns."""
    values = np.full((len(health), len(WATCH_KEYS)), np.nan)
    for row, source in enumerate(health):
        if source.up is not None:
            code = 0.0 if source.up else _OTHER_CODE
            values[row] = (float(source.up), np.nan, float(source.samples or 0), code, np.nan)
    status = np.where(np.isfinite(values), CellStatus.PRESENT, CellStatus.ABSENT).astype(np.uint8)
    entities = tuple(_source_entity(cluster, source.target) for source in health)
    return SampleBatch("discovery", at, EntityKind.WORKLOAD, WATCH_KEYS, entities, values, status)
