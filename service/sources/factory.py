"""What is watched, from settings: pages to scrape or an existing Prometheus to read, probes and sources of events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from collectors.mapping import target as collector_targets
from collectors.mapping.target import Target
from collectors.pipeline.scrape_manager import ScrapeManager, PushSource, Tap
from collectors.prometheus.source import PrometheusSource
from collectors.scrape.scraper import Scraper
from outrider.clock import Clock
from service.config.access_settings import AccessSettings
from service.config.collect_settings import CollectSettings, PrometheusSettings, TargetSettings
from service.config.settings import Settings
from service.engine.cycle import Source
from service.sources import discovery
from service.sources.event_source import with_events
from service.sources.kube_clients import KubeClientPool
from service.sources.probe_source import with_probes

_OF_ROUND = 0.9  # of the time until a round closes: what is left is for handing the page on


def source(settings: Settings, clock: Clock, tap: Tap | None = None, pushed: PushSource | None = None) -> Source:
    """The source of batches and events that the configuration names, with what others push beside it.

    Without any of them one that brings nothing. ``tap`` gets every page as it came, but with
    ``collect.prometheus.pushdown``, where there are none.
    """
    prometheus, doors = settings.collect.prometheus, KubeClientPool((*settings.collect.discover, *settings.events))
    if prometheus is not None:
        pushdown, interval = prometheus.pushdown, settings.collect.interval
        pages: Source = prometheus_source(
            prometheus, settings.cluster, clock=clock, pushdown=pushdown, interval=interval, pushed=pushed, tap=tap
        )
    else:
        configured, deadline = targets(settings), settings.collect.interval / 4
        spread = settings.collect.spread
        scraper = Scraper(doors=doors_within(deadline, spread))
        pages = ScrapeManager(configured, scraper, deadline=deadline, spread=spread, tap=tap, pushed=pushed)
        if settings.collect.discover:
            found = discovery.discovery_of(settings, configured, doors)
            pages = discovery.Discovering(pages, found, settings.cluster, deadline=deadline)
    return with_events(with_probes(pages, settings), settings, doors)


def doors_within(deadline: timedelta, spread: timedelta) -> timedelta:
    """How long engines' doors are waited for: the last page to be asked for is still in time for its round."""
    return max(deadline - spread, deadline / 2) * _OF_ROUND


def prometheus_source(prometheus: PrometheusSettings, cluster: str, **more: Any) -> PrometheusSource:
    """The Prometheus of a configuration; ``more`` is about how it is read."""
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
    """The targets of a configuration. Raises ConfigError naming each one that cannot be used."""
    documents = [_document(target, settings.collect) for target in settings.collect.targets]
    return list(collector_targets.targets_of(settings.cluster, documents, "collect.targets"))


def _document(target: TargetSettings, collect: CollectSettings) -> dict[str, object]:
    found = target.model_dump(exclude_none=True, exclude=set(AccessSettings.model_fields))
    found["entity"] = {**found["entity"], "kind": target.entity.kind.value}
    limits = {"limit_bytes": collect.page_limit_bytes, "limit_series": collect.page_limit_series}
    return {**found, **limits, "access": target.access}
