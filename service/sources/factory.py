"""Builds the source of the cycle from settings: scraper or Prometheus, discovery, probes, events, change log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from collectors.mapping import target as collector_targets
from collectors.mapping.target import Target
from collectors.pipeline.scrape_manager import PushSource, ScrapeManager, Tap
from collectors.prometheus.source import PrometheusSource
from collectors.scrape.scraper import Scraper
from outrider.clock import Clock
from outrider.records.change_log import ChangeLog
from service.config.access_settings import AccessSettings
from service.config.collect_settings import CollectSettings, PrometheusSettings, TargetSettings
from service.config.settings import Settings
from service.sources import discovery, event_source, probe_source
from service.sources.change_log_source import ChangeLogContributor
from service.sources.composite_source import CompositeSource, Contributor, PageSource
from service.sources.kube_clients import KubeClientPool

_SHARE_OF_ROUND = 0.9  # of the time until a cycle closes; the rest is for parsing the metrics page


def source(
    settings: Settings,
    clock: Clock,
    tap: Tap | None = None,
    pushed: PushSource | None = None,
    change_log: ChangeLog | None = None,
) -> CompositeSource:
    """Returns the source of batches and events of a configuration, including ``pushed`` samples.

    ``tap`` receives every metrics page unchanged; there are none with ``collect.prometheus.pushdown``. The source
    closes ``change_log``. Raises UsageError if a probe needs a library that is not installed.
    """
    prometheus, clients = settings.collect.prometheus, KubeClientPool((*settings.collect.discover, *settings.events))
    contributors: list[Contributor] = []
    if prometheus is not None:
        pushdown, interval = prometheus.pushdown, settings.collect.interval
        pages: PageSource = prometheus_source(
            prometheus,
            settings.cluster,
            clock=clock,
            pushdown=pushdown,
            interval=interval,
            pushed=pushed,
            tap=tap,
            most_tenants=settings.collect.tenants,
        )
    else:
        configured, deadline = targets(settings), settings.collect.interval / 4
        spread = settings.collect.spread
        scraper = Scraper(health_timeout=endpoint_timeout(deadline, spread))
        pages = manager = ScrapeManager(
            configured,
            scraper,
            deadline=deadline,
            spread=spread,
            tap=tap,
            pushed=pushed,
            most_tenants=settings.collect.tenants,
        )
        if settings.collect.discover:
            target_discovery = discovery.discovery_of(settings, configured, clients)
            contributors.append(
                discovery.DiscoveryContributor(manager, target_discovery, settings.cluster, deadline=deadline)
            )
    if settings.probes:
        probes = probe_source.probes_of(settings.probes, settings.cluster, settings.collect.interval)
        contributors.append(probe_source.ProbeContributor(probes))
    events = event_source.contributor(pages, settings, clients) if settings.events else None
    if events is not None:
        contributors.append(events)
    if change_log is not None:
        clusters, logs = (events.view.clusters, events.logs) if events is not None else ((), ())
        contributors.append(ChangeLogContributor(change_log, clusters, logs))
    return CompositeSource(pages, contributors)


def endpoint_timeout(deadline: timedelta, spread: timedelta) -> timedelta:
    """Returns the timeout of engine endpoints, so that the last metrics page arrives before the cycle closes."""
    return max(deadline - spread, deadline / 2) * _SHARE_OF_ROUND


def prometheus_source(prometheus: PrometheusSettings, cluster: str, **more: Any) -> PrometheusSource:
    """Returns the Prometheus source of a configuration. ``more`` are options of ``PrometheusSource``."""
    return PrometheusSource(
        prometheus.url,
        cluster=cluster,
        jobs=prometheus.jobs,
        timeout=prometheus.timeout,
        access=prometheus.access,
        parameters=prometheus.parameters,
        **more,
    )


def targets(settings: Settings) -> list[Target]:
    """Returns the targets of a configuration. Raises ConfigError, which names each invalid target."""
    documents = [_document(target, settings.collect) for target in settings.collect.targets]
    return list(collector_targets.targets_of(settings.cluster, documents, "collect.targets"))


def _document(target: TargetSettings, collect: CollectSettings) -> dict[str, object]:
    document = target.model_dump(exclude_none=True, exclude=set(AccessSettings.model_fields))
    document["entity"] = {**document["entity"], "kind": target.entity.kind.value}
    limits = {"limit_bytes": collect.page_limit_bytes, "limit_series": collect.page_limit_series}
    return {**document, **limits, "access": target.access}
