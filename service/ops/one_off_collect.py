"""One look at pages, for ``collect once`` and ``doctor``: values that need two scrapes are named, not guessed."""

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
from service.ops.page_reader import Fate, Look, looks_of, none_answered
from service.sources import factory


async def once(settings: Settings, pages: Sequence[tuple[str, str]], clock: Clock) -> dict[str, Any]:
    """The JSON of ``outrider collect once``. Raises UsageError for a page that cannot be read."""
    at = clock.now()
    if not pages and settings.collect.prometheus is not None:
        return await _from_prometheus(settings, clock)
    looks, sources = await _looks(settings, pages, at)
    collector = ScrapeManager([look.target for look in looks])
    collected = collector.absorb([look.scrape for look in looks], at)
    kept = Collected(tuple(batch for batch in collected.batches if batch.source), collected.events)
    found = _rows(kept)
    odd: dict[str, str | None] = {}
    for look in looks:
        page = _page_of(collector, look)
        if page is not None:
            found += [signal_listing.since_start(one) for one in collector.normaliser.since_start(look.target, page)]
            found += [
                signal_listing.without_value(one.entity, one.signal, "untrusted")
                for one in invalid_histograms(registry.adapter(look.target.adapter), page, look.target)
            ]
            odd[look.target.name] = _warning(look.scrape, page)
        found += [
            signal_listing.without_value(entity, name, "needs_two_scrapes")
            for entity, name in _needs_two(collector, look.target)
        ]
    health = [{**serialization.target(one), "warning": odd.get(one.target)} for one in (*collector.health, *sources)]
    whole = {look.target.name: look.scrape.samples for look in looks if look.scrape.exploded}
    for row in health:
        row["samples"] = whole.get(row["target"], row["samples"])
    none_answered(collector.health or sources)
    return {"at": rfc3339(at), "targets": health, "signals": found}


@asynccontextmanager
async def _prometheus(settings: Settings, clock: Clock) -> AsyncIterator[PrometheusSource]:
    """The configured Prometheus; a failure of its own is told as what is away."""
    assert settings.collect.prometheus is not None
    source = factory.prometheus_source(settings.collect.prometheus, settings.cluster, clock=clock)
    try:
        yield source
    except CollectError as error:
        raise UnavailableError(error.message, hint=error.hint) from error
    finally:
        await source.close()


async def _from_prometheus(settings: Settings, clock: Clock) -> dict[str, Any]:
    """One reading of the configured Prometheus. Raises UnavailableError when it cannot be reached."""
    source = factory.source(settings, clock)
    try:
        at = clock.now()
        collected = await source.collect(at)
    finally:
        await source.close()
    server, *rest = source.health
    if not server.up:
        raise UnavailableError(server.error or "Prometheus cannot be reached", hint="check collect.prometheus.url")
    none_answered(rest)
    found = _rows(signal_listing.newest(collected))
    return {"at": rfc3339(at), "targets": [serialization.target(one) for one in rest], "signals": found}


async def doctor(
    settings: Settings, pages: Sequence[tuple[str, str]], clock: Clock, language: Language = "en"
) -> dict[str, Any]:
    """The JSON of ``outrider doctor``, features and fixes in a language. A target that cannot be read has its error."""
    if not pages and settings.collect.prometheus is not None:
        return await _doctor_of_prometheus(settings, clock, language)
    found, fates, parser = [], list[Fate](), Parser()
    looks, sources = await _looks(settings, pages, clock.now())
    for look in looks:
        try:
            page = _page(parser, look)
        except CollectError as error:
            found.append(_undiagnosed(look.target.name, look.target.adapter, error.message))
            fates.append(Fate(up=False, error=error.message, reason=error.reason, hint=error.hint))
            continue
        fates.append(Fate(up=True))
        diagnosis = examine.check_coverage(
            registry.adapter(look.target.adapter), page, None if look.scrape.exploded else ()
        )
        found.append(_diagnosed(look.target, diagnosis, language, _warning(look.scrape, page)))
    none_answered(fates or sources)
    found += [_undiagnosed(one.target, one.adapter, str(one.error)) for one in sources if one.error]
    return {"targets": found}


async def _looks(
    settings: Settings, pages: Sequence[tuple[str, str]], at: datetime
) -> tuple[list[Look], tuple[TargetHealth, ...]]:
    """``looks_of``, each page cut down to what its adapter reads when it has more series than its target may."""
    looks, sources = await looks_of(settings, pages, at)
    reads = (registry.adapter(look.target.adapter).reads for look in looks)
    kept = [replace(look, scrape=within_limit(look.scrape, read)) for look, read in zip(looks, reads, strict=True)]
    return kept, sources


def _page(parser: Parser, look: Look) -> Page:
    """The page of a look. Raises CollectError naming the target."""
    name, scrape = look.target.name, look.scrape
    if scrape.body is None:
        raise scrape.error or CollectError(f"{name} gave no page", reason=CollectReason.OTHER)
    try:
        page = parser.parse(scrape.body, openmetrics=scrape.openmetrics)
    except CollectError as error:
        raise CollectError(f"{name}: {error.message}", reason=error.reason, hint=error.hint) from error
    wrong = refusal(name, registry.adapter(look.target.adapter), page, had_one=False)
    if wrong is not None:
        raise wrong
    return page


async def _doctor_of_prometheus(settings: Settings, clock: Clock, language: Language) -> dict[str, Any]:
    """The same of what a Prometheus scrapes, with the jobs of it that nothing here reads."""
    found, fates = [], list[Fate]()
    async with _prometheus(settings, clock) as source:
        at = clock.now()
        for look in await source.newest_pages(at):
            target = look.scrape.target
            if look.page is None:
                error = look.scrape.error or CollectError("its last scrape failed", reason=CollectReason.OTHER)
                found.append(_undiagnosed(target.name, target.adapter, error.message))
                fates.append(Fate(up=False, error=error.message, reason=error.reason, hint=error.hint))
                continue
            fates.append(Fate(up=True))
            diagnosis = examine.check_coverage(registry.adapter(target.adapter), look.page, look.names)
            found.append(_diagnosed(target, diagnosis, language))
        unread = await source.jobs_without_adapter(at)
    none_answered(fates)
    return {"targets": found, "jobs_without_adapter": unread}


def _diagnosed(
    target: Target, diagnosis: examine.SignalCoverage, language: Language, warning: str | None = None
) -> dict[str, Any]:
    about: dict[str, Any] = {"target": target.name, "adapter": target.adapter, **diagnosis.as_dict(language)}
    return {**about, "error": None, "warning": warning}


def _undiagnosed(target: str, adapter: str, error: str) -> dict[str, Any]:
    about: dict[str, Any] = {"target": target, "adapter": adapter, "present": [], "missing": []}
    return {**about, "unknown_metrics": 0, "error": error, "warning": None}


def _page_of(collector: ScrapeManager, look: Look) -> Page | None:
    """The page as the collector read it; None where it could not."""
    if look.scrape.body is None or not any(one.target == look.target.name and one.up for one in collector.health):
        return None
    return collector.parser.parse(look.scrape.body, openmetrics=look.scrape.openmetrics)


def _warning(scrape: Scrape, page: Page) -> str | None:
    """What speaks against a page that can be read; None when nothing does."""
    return "; ".join(warnings_of(scrape, page, registry.adapter(scrape.target.adapter))) or None


def _rows(collected: Collected) -> list[dict[str, Any]]:
    """Every value, and what is not believed."""
    return [
        row
        for row in (*signal_listing.signals(collected), *signal_listing.untrusted(collected))
        if not _is_watcher(row)
    ]


def _needs_two(collector: ScrapeManager, target: Target) -> list[tuple[Any, str]]:
    """Entities and names that one scrape cannot tell; histograms are told since the start instead."""
    found = collector.normaliser.needs_two(target.name)
    return list(dict.fromkeys((entity, key.name) for entity, key in found if key.bucket is None))


def _is_watcher(row: dict[str, Any]) -> bool:
    entity = row["entity"]
    return bool(entity["kind"] == EntityKind.WORKLOAD.value and entity["namespace"] == fleet_state.TARGETS_NAMESPACE)
