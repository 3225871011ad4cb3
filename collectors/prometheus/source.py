"""Reads an existing Prometheus instead of scraping: raw samples through the same evaluator.

Nothing is averaged or extrapolated on the server. Raw samples of the last scrapes are fetched, the pages rebuilt and
normalised as if scraped here. Several scrapes since the last round give several batches, each with its own time.
There is no engine probe behind a Prometheus.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from collectors.exposition.parser import Page
from collectors.mapping.registry import ADAPTERS, adapter
from collectors.mapping.target import Target
from collectors.normalise.batches import about_watch, watch_batch
from collectors.normalise.normalise import Normaliser
from collectors.normalise.tenants import MOST_TENANTS
from collectors.pipeline.scrape_manager import PushSource, ScrapeManager, Tap
from collectors.prometheus.client import PrometheusApi, RawSeries
from collectors.prometheus.pages import META, Instance, Key, PageBuilder, instances, key_of
from collectors.prometheus.pushdown import Pushdown
from collectors.prometheus.query_builder import literal
from collectors.prometheus.targets import detect_adapters, metric_names_of_jobs, scrape_error, target_of_instance
from collectors.scrape.result import Scrape
from collectors.scrape.target_health import TargetHealth
from outrider import log
from outrider.clock import Clock, SystemClock, from_unix
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef, SampleBatch, TrustVerdict
from outrider.ports import Collected
from outrider.wire.http_auth import Access

LOOK_BACK = timedelta(minutes=5)
_OWN_STAMPS = timedelta(seconds=60)  # lines with their own timestamps lag behind their scrape
_BATCH = 100  # targets per query
_MOST_SCRAPES = 40  # per target and round
# History: spans grow while a response stays below this number of samples, about 15 MB of JSON.
_MOST_SAMPLES = 500_000
_FIRST_SPAN, _LONGEST_SPAN = timedelta(hours=1), timedelta(days=1)
_TOO_MUCH = {CollectReason.HTTP_STATUS, CollectReason.TIMEOUT, CollectReason.TOO_LARGE}


@dataclass(frozen=True, slots=True)
class TargetPage:
    """Newest scrape of a target: the part of its page that adapters read, None if the scrape failed.

    ``names`` are all metric names of the page, None if the server does not report them.
    """

    scrape: Scrape
    page: Page | None
    names: frozenset[str] | None


class PrometheusSource:
    """Collects from a Prometheus. Its targets are those with ``up`` there and a known adapter."""

    def __init__(
        self,
        url: str,
        *,
        cluster: str,
        jobs: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=10),
        access: Access | None = None,
        clock: Clock | None = None,
        name: str = "prometheus",
        pushdown: timedelta | None = None,
        interval: timedelta = timedelta(seconds=15),
        since: datetime | None = None,
        pushed: PushSource | None = None,
        tap: Tap | None = None,
        most_tenants: int = MOST_TENANTS,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """``jobs`` maps a job to its adapter; adapters of other jobs are detected from their metrics.

        ``pushdown`` computes the signals on the server over such a window, once a round
        (``collectors.prometheus.pushdown``); None fetches raw samples. ``interval`` is the time between two rounds.
        ``parameters`` are added to every query, such as ``partial_response=false`` for Thanos. ``since`` is for
        reading history: every later scrape is returned, from the first round on. ``tap`` receives every rebuilt page,
        and pushed data; nothing with ``pushdown``, which has no original pages.
        """
        self._api = PrometheusApi(url, timeout=timeout, access=access, parameters=parameters)
        self._cluster = cluster
        self._jobs = dict(jobs or {})
        for adapter_name in self._jobs.values():
            adapter(adapter_name)
        self._clock = clock or SystemClock()
        self._self = Target(name, "prometheus", url, EntityRef(cluster, EntityKind.CLUSTER, None, cluster))
        self._since_ms = None if since is None else round(since.timestamp() * 1000)
        self._server = Pushdown(self._api, pushdown, interval) if pushdown else None
        normaliser = Normaliser(self._server.adapters if self._server else None)
        tap = None if pushdown else tap
        self._collector = ScrapeManager((), normaliser=normaliser, pushed=pushed, tap=tap, most_tenants=most_tenants)
        self._builder = PageBuilder()
        self._detected: dict[tuple[str, str], str] = {}
        self._marked: dict[tuple[str, str], str] = {}  # the same, including configured jobs
        self._guessed_at: datetime | None = None
        self._targets: dict[Key, Target] = {}
        self._unseen: tuple[Target, ...] = ()  # of the current round
        self._done: dict[Key, int] = {}
        self._health = TargetHealth(name, "prometheus", None, None, None, None, None)

    @property
    def health(self) -> list[TargetHealth]:
        """Prometheus itself, then its targets."""
        return [self._health, *self._collector.health]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets scraped by Prometheus."""
        return self._collector.targets

    @property
    def watched(self) -> tuple[Target, ...]:
        """The same, and pushed targets."""
        return self._collector.watched

    async def collect(self, at: datetime) -> Collected:
        """All scrapes since the last round. Never raises: an unreachable Prometheus is a failed scrape."""
        started = self._clock.monotonic()
        try:
            pages = await self._read(at)
        except CollectError as error:
            return await asyncio.to_thread(self._without_data, error, at, self._clock.monotonic() - started)
        seconds = self._clock.monotonic() - started
        self._health = TargetHealth(self._self.name, "prometheus", True, len(pages), seconds, None, at)
        collected = await asyncio.to_thread(self._collector.absorb_pages, pages, at)
        scrape = Scrape(self._self, at, None, None, seconds)
        trust = TrustVerdict.PARTIAL if self._api.warned else TrustVerdict.FRESH
        unseen = [batch for target in self._unseen for batch in self._collector.normaliser.unseen(target, at).batches]
        return _with(collected, *unseen, watch_batch(scrape, about_watch(scrape, up=True), None, trust))

    def _without_data(self, error: CollectError, at: datetime, seconds: float) -> Collected:
        """A round without data: no target is reported as down."""
        if self._health.reason != error.reason:
            log.get("collect").warning("prometheus_unreachable", reason=error.reason, error=error.message)
        self._health = TargetHealth(
            self._self.name, "prometheus", False, None, seconds, error.message, self._health.last_success, error.reason
        )
        scrape = Scrape(self._self, at, None, error, seconds)
        batches: list[SampleBatch] = []
        for target in self._collector.targets:
            batches.extend(self._collector.normaliser.unseen(target, at).batches)
        batches.append(watch_batch(scrape, about_watch(scrape, up=False), None, TrustVerdict.FAILED))
        pushed = self._collector.absorb_pages((), at)  # pushed data does not depend on the server
        return replace(pushed, batches=(*batches, *pushed.batches))

    async def newest_pages(self, at: datetime) -> list[TargetPage]:
        """Newest scrape of every target from raw samples, for display. Raises CollectError."""
        await self._detect(at)
        by_key = await self._known(at, LOOK_BACK)
        pages = await self._fetch(by_key, {key: [max(instance.up)] for key, instance in by_key.items()}, at)
        names = await metric_names_of_jobs(self._api, {key[0] for key in by_key}, at)
        own = {
            target.name: None if names is None else names.get(key, frozenset()) for key, target in self._targets.items()
        }
        return [TargetPage(scrape, page, own[scrape.target.name]) for scrape, page in pages]

    async def jobs_without_adapter(self, at: datetime) -> list[str]:
        """Jobs of the server that no adapter reads. Raises CollectError."""
        await self._detect(at)
        known = {*self._jobs, *(job for job, _ in self._detected)}
        return sorted({labels.get("job", "") for labels in await self._api.vector("count by (job) (up)", at)} - known)

    async def history(self, until: datetime) -> AsyncIterator[tuple[datetime, Collected | None]]:
        """All scrapes from ``since`` until then, LOOK_BACK by LOOK_BACK; None: no data up to there.

        Each query covers the longest span that the server's responses allow. Raises CollectError, and ValueError
        without ``since``.
        """
        if self._since_ms is None:
            raise ValueError("history requires since")
        at, span = from_unix(self._since_ms / 1000), _FIRST_SPAN
        while at < until:
            end = min(at + span, until)
            try:
                end, pages = await self._span(at, end)
            except CollectError as error:
                if span <= LOOK_BACK or error.reason not in _TOO_MUCH:
                    raise
                span = max(LOOK_BACK, span / 4)  # some servers have tighter response limits
                continue
            for stop, part in _slices(pages, at, end):
                yield stop, await asyncio.to_thread(self._collector.absorb_pages, part, stop)
            yield end, None
            grown = 2 if pages else 4
            span = min(span * grown, _LONGEST_SPAN) if end == min(at + span, until) else max(LOOK_BACK, end - at)
            at = end

    async def _span(self, at: datetime, end: datetime) -> tuple[datetime, list[tuple[Scrape, Page | None]]]:
        """Pages scraped in (at, end], or up to an earlier end that it returns if there are many."""
        self._note_detected(await detect_adapters(self._api, end, end - at))
        # Slightly earlier, so that a series that ended there is recognized as ended.
        known = await self._known(end, end - at + _OWN_STAMPS + timedelta(seconds=1))
        due = {key: self._due(key, instance) for key, instance in known.items()}
        sizes = sorted((stamp, known[key].samples.get(stamp, 0.0)) for key, stamps in due.items() for stamp in stamps)
        many = np.flatnonzero(np.cumsum([size for _, size in sizes]) > _MOST_SAMPLES)
        if many.size:
            slices = (from_unix(sizes[many[0]][0] / 1000) - at) // LOOK_BACK
            end = min(end, at + max(1, slices) * LOOK_BACK)
        last = end.timestamp() * 1000
        due = {key: [stamp for stamp in stamps if stamp <= last] for key, stamps in due.items()}
        return end, await self._fetch(known, {key: stamps for key, stamps in due.items() if stamps}, end)

    # --- reading ----------------------------------------------------------------------------------

    async def _read(self, at: datetime) -> list[tuple[Scrape, Page | None]]:
        self._api.warned = False
        await self._detect(at)
        known = await self._known(at, LOOK_BACK)
        if self._server is not None:
            return await self._computed(self._server, known, at)
        due = {key: self._due(key, instance) for key, instance in known.items()}
        return await self._fetch(known, {key: stamps for key, stamps in due.items() if stamps}, at)

    async def _known(self, at: datetime, span: timedelta) -> dict[Key, Instance]:
        """Instances scraped in (at - span, at], of jobs with a known adapter."""
        jobs = "|".join(sorted({literal(job) for job in (*self._jobs, *(job for job, _ in self._detected))}))
        meta = await self._api.raw(f'{{__name__=~"{"|".join(META)}",job=~"{jobs}"}}', span, at) if jobs else []
        known = {key: instance for key, instance in instances(meta).items() if self._adapter_of(key) is not None}
        self._note_targets(known, partial=self._api.warned)
        return known

    async def _fetch(
        self, known: Mapping[Key, Instance], due: Mapping[Key, Sequence[int]], at: datetime
    ) -> list[tuple[Scrape, Page | None]]:
        """The pages of those scrapes; none of them is returned again."""
        errors = await self._api.last_errors() if any(_failed(known[key], due[key]) for key in due) else {}
        pages: list[tuple[Scrape, Page | None]] = []
        for name in ADAPTERS:
            keys = [key for key in due if self._adapter_of(key) == name]
            for first in range(0, len(keys), _BATCH):
                part = keys[first : first + _BATCH]
                series = await self._series(name, part, min(due[key][0] for key in part), at)
                for key in part:
                    pages.extend(self._scrapes(key, known[key], due[key], series.get(key, []), errors))
        self._done.update({key: stamps[-1] for key, stamps in due.items()})
        return pages

    async def _computed(
        self, server: Pushdown, known: Mapping[Key, Instance], at: datetime
    ) -> list[tuple[Scrape, Page | None]]:
        """One page of signals per target, all with this timestamp."""
        stamp = round(at.timestamp() * 1000)
        for instance in known.values():
            newest = max(instance.up)
            instance.up, instance.seconds, instance.samples = (
                {stamp: values.get(newest, 0.0)} for values in (instance.up, instance.seconds, instance.samples)
            )
        errors = await self._api.last_errors() if any(_failed(instance, [stamp]) for instance in known.values()) else {}
        pages: list[tuple[Scrape, Page | None]] = []
        for name in ADAPTERS:
            keys = [key for key in known if self._adapter_of(key) == name]
            jobs = "|".join(sorted({literal(key[0]) for key in keys}))
            answers: dict[Key, list[RawSeries]] = {}
            for series in await server.query_signals(name, f'job=~"{jobs}"', at) if keys else ():
                answers.setdefault(key_of(series.labels), []).append(series)
            for key in keys:
                own = server.as_pages(answers.get(key, []), known[key].labels)
                pages.extend(self._scrapes(key, known[key], [stamp], own, errors))
        return pages

    async def _detect(self, at: datetime) -> None:
        """Detects the adapters of unconfigured jobs, again after every look-back span."""
        if self._guessed_at is not None and at - self._guessed_at < LOOK_BACK:
            return
        self._note_detected(await detect_adapters(self._api, at))
        self._guessed_at = at if self._marked else None

    def _note_detected(self, adapters: Mapping[tuple[str, str], str]) -> None:
        self._marked.update(adapters)
        self._detected.update({job_path: name for job_path, name in adapters.items() if job_path[0] not in self._jobs})

    def _adapter_of(self, key: Key) -> str | None:
        job, _, path = key
        return self._jobs.get(job) or self._detected.get((job, path))

    def _due(self, key: Key, instance: Instance) -> list[int]:
        """Scrape times not yet returned; at the start the last two, so that increases are available at once."""
        stamps = sorted(instance.up)
        done = self._done.get(key, self._since_ms)
        fresh = stamps[-2:] if done is None else [stamp for stamp in stamps if stamp > done]
        return fresh if self._since_ms is not None else fresh[-_MOST_SCRAPES:]

    async def _series(self, name: str, keys: Sequence[Key], first: int, at: datetime) -> dict[Key, list[RawSeries]]:
        names = "|".join(sorted(adapter(name).metric_names))
        jobs = "|".join(sorted({literal(key[0]) for key in keys}))
        instance_names = "|".join(sorted({literal(key[1]) for key in keys}))
        selector = f'{{__name__=~"{names}",job=~"{jobs}",instance=~"{instance_names}"}}'
        span = at - from_unix(first / 1000) + timedelta(seconds=1) + _OWN_STAMPS
        series_by_key: dict[Key, list[RawSeries]] = {}
        for series in await self._api.raw(selector, span, at):
            series_by_key.setdefault(key_of(series.labels), []).append(series)
        return series_by_key

    def _scrapes(
        self,
        key: Key,
        instance: Instance,
        stamps: Sequence[int],
        series: Sequence[RawSeries],
        errors: Mapping[tuple[str, str], str],
    ) -> list[tuple[Scrape, Page | None]]:
        target = self._targets[key]
        good = [stamp for stamp in stamps if instance.up[stamp] == 1]
        pages = dict(zip(good, self._builder.pages(series, instance, good), strict=True))
        scrapes: list[tuple[Scrape, Page | None]] = []
        for stamp in stamps:
            page = pages.get(stamp)
            wrong = None if page is None else self._adapter_mismatch(key, target, page)
            seconds = instance.seconds.get(stamp, 0.0)
            samples = instance.samples.get(stamp)
            error = wrong if page is not None else scrape_error(target, errors.get(key[:2], ""))
            scrape = Scrape(
                target,
                from_unix(stamp / 1000),
                None,
                error,
                seconds,
                samples=None if samples is None else int(samples),
            )
            scrapes.append((scrape, None if wrong else page))
        return scrapes

    def _adapter_mismatch(self, key: Key, target: Target, page: Page) -> CollectError | None:
        """Error of a job that was configured with an adapter but has the signature of another one."""
        other = self._marked.get((key[0], key[2]))
        if page.series or other in (None, target.adapter):
            return None
        return CollectError(
            f"{target.name}: no metric of {target.adapter}; its metrics match {other}",
            reason=CollectReason.NOT_METRICS,
            hint=f"set under collect.prometheus.jobs: {key[0]}: {other}",
        )

    # --- targets ----------------------------------------------------------------------------------

    def _note_targets(self, known: Mapping[Key, Instance], *, partial: bool) -> None:
        """Keeps a target as long as its ``up`` is within the look-back span.

        A partial response removes no target: the missing ones are unseen.
        """
        self._unseen = tuple(target for key, target in self._targets.items() if key not in known) if partial else ()
        if known.keys() != (self._targets.keys() & known.keys() if partial else self._targets.keys()):
            for key, instance in known.items():
                if key not in self._targets:
                    name = self._adapter_of(key)
                    assert name is not None
                    self._targets[key] = target_of_instance(self._cluster, name, key, instance.labels)
            if not partial:
                self._targets = {key: target for key, target in self._targets.items() if key in known}
                self._done = {key: stamp for key, stamp in self._done.items() if key in known}
            self._collector.set_targets(tuple(self._targets.values()))

    async def close(self) -> None:
        """Closes all connections."""
        await self._api.close()
        await self._collector.close()


def _failed(instance: Instance, stamps: Sequence[int]) -> bool:
    return any(instance.up[stamp] != 1 for stamp in stamps)


def _with(collected: Collected, *batches: SampleBatch) -> Collected:
    return replace(collected, batches=(*collected.batches, *batches))


def _slices(
    pages: Sequence[tuple[Scrape, Page | None]], at: datetime, end: datetime
) -> list[tuple[datetime, list[tuple[Scrape, Page | None]]]]:
    """Scrapes of each LOOK_BACK from ``at`` on that has any, by its end, the time of their roll-up."""
    by_slice: dict[int, list[tuple[Scrape, Page | None]]] = {}
    for scrape, page in pages:
        by_slice.setdefault(-((at - scrape.at) // LOOK_BACK), []).append((scrape, page))
    return [(min(end, at + number * LOOK_BACK), by_slice[number]) for number in sorted(by_slice)]
