"""One look at pages, for ``collect once`` and ``doctor``: values that need two scrapes are named, not guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from collectors import doctor as examine
from collectors import recording, registry
from collectors.collect import Collector, TargetHealth
from collectors.exposition import Parser
from collectors.promql import PrometheusSource
from collectors.scrape import Scraper
from collectors.scraped import Scrape
from collectors.targets import Target, target_of
from outrider import catalog, jsonable
from outrider.clock import Clock, rfc3339
from outrider.errors import CollectError, CollectReason, UnavailableError, UsageError
from outrider.i18n import Language
from outrider.model import EntityKind
from outrider.ports import Collected
from service import discovery, facts, listing, targets
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class _Look:
    """One target with its one scrape."""

    target: Target
    scrape: Scrape


async def once(settings: Settings, pages: Sequence[tuple[str, str]], clock: Clock) -> dict[str, Any]:
    """The JSON of ``outrider collect once``. Raises UsageError for a page that cannot be read."""
    at = clock.now()
    if not pages and settings.collect.prometheus is not None:
        return await _from_prometheus(settings, clock)
    looks, sources = await _looks(settings, pages, at)
    collector = Collector([look.target for look in looks])
    collected = collector.absorb([look.scrape for look in looks], at)
    kept = Collected(tuple(batch for batch in collected.batches if batch.source), collected.events)
    found = [row for row in listing.signals(kept) if not _is_watcher(row)]
    for look in looks:
        found += _since_start(collector, look)
        found += [
            {"entity": jsonable.entity(entity), "signal": name, "value": None, "unit": catalog.signal(name).unit,
             "reason": "needs_two_scrapes"}
            for entity, name in _needs_two(collector, look.target)
        ]  # fmt: skip
    health = [jsonable.target(one) for one in (*collector.health, *sources)]
    if pages and not any(target["up"] for target in health):
        raise _unreadable(looks, health[0]["error"] or "no page could be read")
    return {"at": rfc3339(at), "targets": health, "signals": found}


def _unreadable(looks: Sequence[_Look], message: str) -> UsageError | UnavailableError:
    """A server that is away is unavailable; a page that is none is the caller's to mend."""
    errors = [look.scrape.error for look in looks if look.scrape.error is not None]
    if errors and errors[0].reason not in (CollectReason.NOT_METRICS, CollectReason.TRUNCATED, CollectReason.TOO_LARGE):
        return UnavailableError(message, hint="is it running, and is the address right?")
    return UsageError(message, hint="check the path and the adapter")


@asynccontextmanager
async def _prometheus(settings: Settings, clock: Clock) -> AsyncIterator[PrometheusSource]:
    """The configured Prometheus; a failure of its own is told as what is away."""
    assert settings.collect.prometheus is not None
    source = targets.prometheus_source(settings.collect.prometheus, settings.cluster, clock=clock)
    try:
        yield source
    except CollectError as error:
        raise UnavailableError(error.message, hint=error.hint) from error
    finally:
        await source.close()


async def _from_prometheus(settings: Settings, clock: Clock) -> dict[str, Any]:
    """One reading of the configured Prometheus. Raises UnavailableError when it cannot be reached."""
    source = targets.source(settings, clock)
    try:
        at = clock.now()
        collected = await source.collect(at)
    finally:
        await source.close()
    server, *rest = source.health
    if not server.up:
        raise UnavailableError(server.error or "Prometheus cannot be reached", hint="check collect.prometheus.url")
    found = [row for row in listing.signals(listing.newest(collected)) if not _is_watcher(row)]
    return {"at": rfc3339(at), "targets": [jsonable.target(one) for one in rest], "signals": found}


async def doctor(
    settings: Settings, pages: Sequence[tuple[str, str]], clock: Clock, language: Language = "en"
) -> dict[str, Any]:
    """The JSON of ``outrider doctor``, features and fixes in a language. A target that cannot be read has its error."""
    if not pages and settings.collect.prometheus is not None:
        return await _doctor_of_prometheus(settings, clock, language)
    found = []
    parser = Parser()
    looks, sources = await _looks(settings, pages, clock.now())
    for look in looks:
        try:
            if look.scrape.body is None:
                raise look.scrape.error or UsageError(f"{look.target.name} gave no page")
            page = parser.parse(look.scrape.body, openmetrics=look.scrape.openmetrics)
        except (CollectError, UsageError) as error:
            found.append(_undiagnosed(look.target.name, look.target.adapter, error.message))
            continue
        diagnosis = examine.examine(registry.adapter(look.target.adapter), page)
        found.append(_diagnosed(look.target, diagnosis, language))
    if pages and all(one["error"] for one in found):
        raise _unreadable(looks, found[0]["error"])
    found += [_undiagnosed(one.target, one.adapter, str(one.error)) for one in sources if one.error]
    return {"targets": found}


async def _doctor_of_prometheus(settings: Settings, clock: Clock, language: Language) -> dict[str, Any]:
    """The same of what a Prometheus scrapes, with the jobs of it that nothing here reads."""
    found = []
    async with _prometheus(settings, clock) as source:
        at = clock.now()
        for look in await source.look(at):
            target = look.scrape.target
            if look.page is None:
                said = look.scrape.error.message if look.scrape.error else "its last scrape failed"
                found.append(_undiagnosed(target.name, target.adapter, said))
                continue
            diagnosis = examine.examine(registry.adapter(target.adapter), look.page, look.names)
            found.append(_diagnosed(target, diagnosis, language))
        unread = await source.jobs_without_adapter(at)
    return {"targets": found, "jobs_without_adapter": unread}


def _diagnosed(target: Target, diagnosis: examine.Diagnosis, language: Language) -> dict[str, Any]:
    return {"target": target.name, "adapter": target.adapter, **diagnosis.as_dict(language), "error": None}


def _undiagnosed(target: str, adapter: str, error: str) -> dict[str, Any]:
    about: dict[str, Any] = {"target": target, "adapter": adapter, "present": [], "missing": []}
    return {**about, "unknown_metrics": 0, "error": error}


async def _looks(
    settings: Settings, pages: Sequence[tuple[str, str]], at: datetime
) -> tuple[list[_Look], tuple[TargetHealth, ...]]:
    """Every page once, and how each source of targets fares."""
    wanted = _named_apart([_of_page(settings.cluster, adapter, place) for adapter, place in pages])
    sources: tuple[TargetHealth, ...] = ()
    if not pages:
        found = await discovery.once(settings, targets.targets(settings), at)
        wanted, sources = [(target, None) for target in found.targets], found.health
    looks = []
    to_fetch = [target for target, body in wanted if body is None]
    scraper = Scraper()
    try:
        fetched = {scrape.target.name: scrape for scrape in await scraper.scrape(to_fetch, at=at)}
    finally:
        await scraper.close()
    for target, body in wanted:
        scrape = fetched[target.name] if body is None else recording.page_scrape(target, body, at)
        looks.append(_Look(target, scrape))
    return looks, sources


def _named_apart(wanted: Sequence[tuple[Target, bytes | None]]) -> list[tuple[Target, bytes | None]]:
    """Two files or servers of one name are two targets, though they speak about what they are named after."""
    count: Counter[str] = Counter()
    found = []
    for target, body in wanted:
        count[target.name] += 1
        times = count[target.name]
        found.append((target if times == 1 else replace(target, name=f"{target.name}-{times}"), body))
    return found


def _of_page(cluster: str, adapter: str, place: str) -> tuple[Target, bytes | None]:
    registry.adapter(adapter)
    if place.startswith(("http://", "https://")):
        name = place.split("//", 1)[1].split("/", 1)[0]
        return target_of(cluster, {"name": name, "adapter": adapter, "url": place}), None
    path = Path(place)
    try:
        body = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{place} cannot be read: {error.strerror}", hint="name a file or an http:// address"
        ) from error
    # A page that was saved by hand often lacks the end of its last line, which over HTTP would mean a cut.
    whole = body if not body or body.endswith(b"\n") else body + b"\n"
    return target_of(cluster, {"name": path.stem, "adapter": adapter}), whole


def _since_start(collector: Collector, look: _Look) -> list[dict[str, Any]]:
    """Quantiles over everything the process has seen; said so, and never fed to a detector."""
    if look.scrape.body is None or not any(one.target == look.target.name and one.up for one in collector.health):
        return []
    page = collector.parser.parse(look.scrape.body, openmetrics=look.scrape.openmetrics)
    return [listing.since_start(one) for one in collector.normaliser.since_start(look.target, page)]


def _needs_two(collector: Collector, target: Target) -> list[tuple[Any, str]]:
    """Entities and names that one scrape cannot tell; histograms are told since the start instead."""
    found = collector.normaliser.needs_two(target.name)
    return list(dict.fromkeys((entity, key.name) for entity, key in found if key.bucket is None))


def _is_watcher(row: dict[str, Any]) -> bool:
    entity = row["entity"]
    return bool(entity["kind"] == EntityKind.WORKLOAD.value and entity["namespace"] == facts.TARGETS_NAMESPACE)
