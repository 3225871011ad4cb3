"""Reads pages once, for ``collect once`` and ``doctor``. Values that need two scrapes are listed without a value."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from collectors.exposition.parser import Page, Parser
from collectors.mapping import coverage as examine
from collectors.mapping import registry
from collectors.mapping.target import Target
from collectors.normalise.cumulative import invalid_histograms
from collectors.pipeline.page_lint import warnings_of
from collectors.pipeline.page_ownership import refusal
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.prometheus.source import PrometheusSource
from collectors.scrape.result import Scrape
from collectors.scrape.series_limit import within_limit
from collectors.scrape.target_health import TargetHealth
from outrider.clock import Clock, rfc3339
from outrider.documents import serialization
from outrider.errors import CollectError, CollectReason, UnavailableError
from outrider.model import EntityKind
from outrider.ports import Collected
from outrider.text.i18n import Language
from service.config.settings import Settings
from service.engine import fleet_state
from service.ops import signal_listing
from service.ops.page_reader import ReadStatus, TargetScrape, require_any_page, scrape_pages
from service.sources import factory


async def once(settings: Settings, pages: Sequence[tuple[str, str]], clock: Clock) -> dict[str, Any]:
    """Returns the JSON of ``outrider collect once``. Raises UsageError for a page that cannot be read."""
    at = clock.now()
    if not pages and settings.collect.prometheus is not None:
        return await _from_prometheus(settings, clock)
    scrapes, sources = await _scrapes(settings, pages, at)
    collector = ScrapeManager([read.target for read in scrapes])
    collected = collector.absorb([read.scrape for read in scrapes], at)
    scraped = Collected(tuple(batch for batch in collected.batches if batch.source), collected.events)
    signals = _rows(scraped)
    warnings: dict[str, str | None] = {}
    for read in scrapes:
        page = _page_of(collector, read)
        if page is not None:
            quantiles = collector.normaliser.since_start(read.target, page)
            signals += [signal_listing.since_start(quantile) for quantile in quantiles]
            signals += [
                signal_listing.without_value(histogram.entity, histogram.signal, "untrusted")
                for histogram in invalid_histograms(registry.adapter(read.target.adapter), page, read.target)
            ]
            warnings[read.target.name] = _warning(read.scrape, page)
        signals += [
            signal_listing.without_value(entity, name, "needs_two_scrapes")
            for entity, name in _needs_two(collector, read.target)
        ]
    health = [
        {**serialization.target(target), "warning": warnings.get(target.target)}
        for target in (*collector.health, *sources)
    ]
    total_samples = {read.target.name: read.scrape.samples for read in scrapes if read.scrape.exploded}
    for row in health:
        row["samples"] = total_samples.get(row["target"], row["samples"])
    require_any_page(collector.health or sources)
    return {"at": rfc3339(at), "targets": health, "signals": signals}


@asynccontextmanager
async def _prometheus(settings: Settings, clock: Clock) -> AsyncIterator[PrometheusSource]:
    """Opens the configured Prometheus. Its own failures are raised as UnavailableError."""
    assert settings.collect.prometheus is not None
    source = factory.prometheus_source(settings.collect.prometheus, settings.cluster, clock=clock)
    try:
        yield source
    except CollectError as error:
        raise UnavailableError(error.message, hint=error.hint) from error
    finally:
        await source.close()


async def _from_prometheus(settings: Settings, clock: Clock) -> dict[str, Any]:
    """Reads the configured Prometheus once. Raises UnavailableError if it cannot be reached."""
    source = factory.source(settings, clock)
    try:
        at = clock.now()
        collected = await source.collect(at)
    finally:
        await source.close()
    server, *rest = source.health
    if not server.up:
        raise UnavailableError(server.error or "Prometheus cannot be reached", hint="check collect.prometheus.url")
    require_any_page(rest)
    signals = _rows(signal_listing.newest(collected))
    return {"at": rfc3339(at), "targets": [serialization.target(target) for target in rest], "signals": signals}


async def doctor(
    settings: Settings, pages: Sequence[tuple[str, str]], clock: Clock, language: Language = "en"
) -> dict[str, Any]:
    """Returns the JSON of ``outrider doctor`` in a language. A target that cannot be read has an error."""
    if not pages and settings.collect.prometheus is not None:
        return await _doctor_of_prometheus(settings, clock, language)
    targets, statuses, parser = [], list[ReadStatus](), Parser()
    scrapes, sources = await _scrapes(settings, pages, clock.now())
    for read in scrapes:
        try:
            page = _page(parser, read)
        except CollectError as error:
            targets.append(_undiagnosed(read.target.name, read.target.adapter, error.message))
            statuses.append(ReadStatus(up=False, error=error.message, reason=error.reason, hint=error.hint))
            continue
        statuses.append(ReadStatus(up=True))
        diagnosis = examine.check_coverage(
            registry.adapter(read.target.adapter), page, None if read.scrape.exploded else ()
        )
        targets.append(_diagnosed(read.target, diagnosis, language, _warning(read.scrape, page)))
    require_any_page(statuses or sources)
    targets += [_undiagnosed(source.target, source.adapter, str(source.error)) for source in sources if source.error]
    return {"targets": targets}


async def _scrapes(
    settings: Settings, pages: Sequence[tuple[str, str]], at: datetime
) -> tuple[list[TargetScrape], tuple[TargetHealth, ...]]:
    """Reads pages. A page above the series limit of its target keeps only the metrics that its adapter reads."""
    scrapes, sources = await scrape_pages(settings, pages, at)
    names = (registry.adapter(read.target.adapter).reads for read in scrapes)
    limited = [replace(read, scrape=within_limit(read.scrape, name)) for read, name in zip(scrapes, names, strict=True)]
    return limited, sources


def _page(parser: Parser, read: TargetScrape) -> Page:
    """Parses the page of a target. Raises CollectError with the name of the target."""
    name, scrape = read.target.name, read.scrape
    if scrape.body is None:
        raise scrape.error or CollectError(f"{name} returned no page", reason=CollectReason.OTHER)
    try:
        page = parser.parse(scrape.body, openmetrics=scrape.openmetrics)
    except CollectError as error:
        raise CollectError(f"{name}: {error.message}", reason=error.reason, hint=error.hint) from error
    rejected = refusal(name, registry.adapter(read.target.adapter), page, had_one=False)
    if rejected is not None:
        raise rejected
    return page


async def _doctor_of_prometheus(settings: Settings, clock: Clock, language: Language) -> dict[str, Any]:
    """``doctor`` for the targets of a Prometheus, with the jobs that no adapter reads."""
    targets, statuses = [], list[ReadStatus]()
    async with _prometheus(settings, clock) as source:
        at = clock.now()
        for read in await source.newest_pages(at):
            target = read.scrape.target
            if read.page is None:
                error = read.scrape.error or CollectError("its last scrape failed", reason=CollectReason.OTHER)
                targets.append(_undiagnosed(target.name, target.adapter, error.message))
                statuses.append(ReadStatus(up=False, error=error.message, reason=error.reason, hint=error.hint))
                continue
            statuses.append(ReadStatus(up=True))
            diagnosis = examine.check_coverage(registry.adapter(target.adapter), read.page, read.names)
            targets.append(_diagnosed(target, diagnosis, language))
        unread = await source.jobs_without_adapter(at)
    require_any_page(statuses)
    return {"targets": targets, "jobs_without_adapter": unread}


def _diagnosed(
    target: Target, diagnosis: examine.SignalCoverage, language: Language, warning: str | None = None
) -> dict[str, Any]:
    fields: dict[str, Any] = {"target": target.name, "adapter": target.adapter, **diagnosis.as_dict(language)}
    return {**fields, "error": None, "warning": warning}


def _undiagnosed(target: str, adapter: str, error: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"target": target, "adapter": adapter, "present": [], "missing": []}
    return {**fields, "unknown_metrics": 0, "error": error, "warning": None}


def _page_of(collector: ScrapeManager, read: TargetScrape) -> Page | None:
    """Returns the page as the collector parsed it; None if it failed."""
    is_up = any(health.target == read.target.name and health.up for health in collector.health)
    if read.scrape.body is None or not is_up:
        return None
    return collector.parser.parse(read.scrape.body, openmetrics=read.scrape.openmetrics)


def _warning(scrape: Scrape, page: Page) -> str | None:
    """Returns the problems of a readable page; None without any."""
    return "; ".join(warnings_of(scrape, page, registry.adapter(scrape.target.adapter))) or None


def _rows(collected: Collected) -> list[dict[str, Any]]:
    """Returns a row for every value and every untrusted cell."""
    return [
        row
        for row in (*signal_listing.signals(collected), *signal_listing.untrusted(collected))
        if not _is_internal_target(row)
    ]


def _needs_two(collector: ScrapeManager, target: Target) -> list[tuple[Any, str]]:
    """Returns entities and signals that need two scrapes. Histograms are listed since the process start."""
    keys = collector.normaliser.needs_two(target.name)
    return list(dict.fromkeys((entity, key.name) for entity, key in keys if key.bucket is None))


def _is_internal_target(row: dict[str, Any]) -> bool:
    entity = row["entity"]
    return bool(entity["kind"] == EntityKind.WORKLOAD.value and entity["namespace"] == fleet_state.TARGETS_NAMESPACE)
