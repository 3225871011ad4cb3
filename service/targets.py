"""What is watched, from settings: pages to scrape or an existing Prometheus to read, and sources of events."""

from __future__ import annotations

from collectors import targets as collector_targets
from collectors.collect import Collector, Pushed
from collectors.promql import PrometheusSource
from collectors.scrape import Scraper
from collectors.targets import Target
from outrider.clock import Clock
from service.cycle import Source
from service.event_source import with_events
from service.settings import Settings, TargetSettings


def source(settings: Settings, clock: Clock, pushed: Pushed | None = None) -> Source:
    """The source of batches and events that the configuration names, with what others push beside it.

    Without any of them one that brings nothing.
    """
    prometheus = settings.collect.prometheus
    if prometheus is not None:
        pages: Source = PrometheusSource(
            prometheus.url,
            cluster=settings.cluster,
            jobs=prometheus.jobs,
            timeout=prometheus.timeout,
            headers=prometheus.headers,
            bearer_token_file=prometheus.bearer_token_file,
            clock=clock,
            pushed=pushed,
        )
    else:
        pages = Collector(targets(settings), Scraper(), deadline=settings.collect.interval / 4, pushed=pushed)
    return with_events(pages, settings)


def targets(settings: Settings) -> list[Target]:
    """The targets of a configuration. Raises ConfigError naming each one that cannot be used."""
    documents = [_document(target, settings.collect.page_limit_bytes) for target in settings.collect.targets]
    return list(collector_targets.targets_of(settings.cluster, documents, "collect.targets"))


def _document(target: TargetSettings, limit_bytes: int) -> dict[str, object]:
    found = target.model_dump(exclude_none=True)
    found["entity"] = {**found["entity"], "kind": target.entity.kind.value}
    return {**found, "limit_bytes": limit_bytes}
