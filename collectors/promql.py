"""Reads an existing Prometheus instead of scraping: raw samples through the same evaluator.

Nothing is averaged or extrapolated on the server: raw samples of the last scrapes are fetched, the
pages put together again, and normalised as if scraped here. Several scrapes since the last round give
several batches, each with its own instant. There is no engine probe behind a Prometheus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from collectors.batches import about_watch, watch_batch
from collectors.collect import Collector, Pushed, Tap, TargetHealth
from collectors.exposition import Page
from collectors.normalise import Normaliser
from collectors.promapi import PrometheusApi, RawSeries
from collectors.prompages import META, Instance, Key, PageBuilder, instances, key_of
from collectors.promql_rules import literal
from collectors.pushdown import Pushdown
from collectors.registry import ADAPTERS, adapter
from collectors.scraped import Scrape
from collectors.signatures import SIGNATURES
from collectors.targets import Target
from outrider import log
from outrider.access import Access
from outrider.clock import Clock, SystemClock, from_unix
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef, SampleBatch, TrustVerdict
from outrider.ports import Collected
from outrider.topology import Topology

LOOK_BACK = timedelta(minutes=5)
_OWN_STAMPS = timedelta(seconds=60)  # lines with timestamps of their own lag behind their scrape
_BATCH = 100  # targets a query
_MOST_SCRAPES = 40  # of one target handed on in one round
_NAMES = {
    "replica": ("pod", "replica", "name"),
    "node": ("node", "nodename", "hostname"),
    "service": ("service", "name"),
}
_NAMESPACED = {EntityKind.REPLICA, EntityKind.SERVICE, EntityKind.POD, EntityKind.CONTAINER, EntityKind.WORKLOAD}
_REASONS = (
    ("connection refused", CollectReason.REFUSED),
    ("deadline exceeded", CollectReason.TIMEOUT),
    ("no such host", CollectReason.DNS),
    ("x509", CollectReason.TLS),
    ("tls", CollectReason.TLS),
    ("HTTP status", CollectReason.HTTP_STATUS),
    ("connection reset", CollectReason.RESET),
)


class PrometheusSource:
    """Collects from a Prometheus. Its targets are those whose ``up`` it has and whose adapter is known."""

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
        pushed: Pushed | None = None,
        tap: Tap | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """``jobs`` maps a job to its adapter; other jobs are guessed from the metrics they have.

        ``pushdown`` lets the server work out the signals over so long a window, once a round
        (``collectors.pushdown``); None fetches raw samples. ``interval`` is the time between two rounds.
        ``parameters`` go with every query, such as ``partial_response=false`` to Thanos.
        ``since`` is for reading history: every scrape after it is handed on, from the first round on.
        ``tap`` gets every page as it was put together, and what was pushed; nothing with ``pushdown``: what a
        server has worked out is no page.
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
        self._collector = Collector((), normaliser=normaliser, pushed=pushed, tap=None if pushdown else tap)
        self._builder = PageBuilder()
        self._guessed: dict[tuple[str, str], str] = {}
        self._guessed_at: datetime | None = None
        self._targets: dict[Key, Target] = {}
        self._unseen: tuple[Target, ...] = ()  # of the round that is read
        self._done: dict[Key, int] = {}
        self._health = TargetHealth(name, "prometheus", None, None, None, None, None)

    @property
    def health(self) -> list[TargetHealth]:
        """Prometheus itself, then its targets."""
        return [self._health, *self._collector.health]

    @property
    def targets(self) -> tuple[Target, ...]:
        """What Prometheus scrapes for us."""
        return self._collector.targets

    @property
    def watched(self) -> tuple[Target, ...]:
        """The same, and what pushes."""
        return self._collector.watched

    def topology(self, at: datetime) -> Topology:
        """As a collector's."""
        return self._collector.topology(at)

    async def collect(self, at: datetime) -> Collected:
        """Everything scraped since the last round. Never raises: an unreachable Prometheus is a failed scrape."""
        begun = self._clock.monotonic()
        try:
            found = await self._read(at)
        except CollectError as error:
            return await asyncio.to_thread(self._blind, error, at, self._clock.monotonic() - begun)
        seconds = self._clock.monotonic() - begun
        self._health = TargetHealth(self._self.name, "prometheus", True, len(found), seconds, None, at)
        collected = await asyncio.to_thread(self._collector.absorb_pages, found, at)
        scrape = Scrape(self._self, at, None, None, seconds)
        trust = TrustVerdict.PARTIAL if self._api.warned else TrustVerdict.FRESH
        unseen = [batch for one in self._unseen for batch in self._collector.normaliser.unseen(one, at).batches]
        return _with(collected, *unseen, watch_batch(scrape, about_watch(scrape, up=True), None, trust))

    def _blind(self, error: CollectError, at: datetime, seconds: float) -> Collected:
        """Nothing is known this round, of any target; that none of them is said to be down is the point."""
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
        pushed = self._collector.absorb_pages((), at)  # what others send does not depend on it
        return Collected((*batches, *pushed.batches), pushed.events, pushed.edges, pushed.labels)

    # --- reading ----------------------------------------------------------------------------------

    async def _read(self, at: datetime) -> list[tuple[Scrape, Page | None]]:
        self._api.warned = False
        await self._guess(at)
        jobs = "|".join(sorted({literal(job) for job in (*self._jobs, *(job for job, _ in self._guessed))}))
        meta = await self._api.raw(f'{{__name__=~"{"|".join(META)}",job=~"{jobs}"}}', LOOK_BACK, at) if jobs else []
        known = {key: one for key, one in instances(meta).items() if self._adapter_of(key) is not None}
        self._note_targets(known, partial=self._api.warned)
        if self._server is not None:
            return await self._worked_out(self._server, known, at)
        due = {key: self._due(key, one) for key, one in known.items()}
        due = {key: stamps for key, stamps in due.items() if stamps}
        errors = await self._api.last_errors() if any(_failed(known[key], due[key]) for key in due) else {}
        found: list[tuple[Scrape, Page | None]] = []
        for name in ADAPTERS:
            keys = [key for key in due if self._adapter_of(key) == name]
            for first in range(0, len(keys), _BATCH):
                part = keys[first : first + _BATCH]
                series = await self._series(name, part, min(due[key][0] for key in part), at)
                for key in part:
                    found.extend(self._scrapes(key, known[key], due[key], series.get(key, []), errors))
        self._done.update({key: stamps[-1] for key, stamps in due.items()})
        return found

    async def _worked_out(
        self, server: Pushdown, known: Mapping[Key, Instance], at: datetime
    ) -> list[tuple[Scrape, Page | None]]:
        """One page of signals of every target, all of this instant."""
        stamp = round(at.timestamp() * 1000)
        for instance in known.values():
            newest = max(instance.up)
            instance.up, instance.seconds, instance.samples = (
                {stamp: values.get(newest, 0.0)} for values in (instance.up, instance.seconds, instance.samples)
            )
        errors = await self._api.last_errors() if any(_failed(one, [stamp]) for one in known.values()) else {}
        found: list[tuple[Scrape, Page | None]] = []
        for name in ADAPTERS:
            keys = [key for key in known if self._adapter_of(key) == name]
            jobs = "|".join(sorted({literal(key[0]) for key in keys}))
            answers: dict[Key, list[RawSeries]] = {}
            for series in await server.ask(name, f'job=~"{jobs}"', at) if keys else ():
                answers.setdefault(key_of(series.labels), []).append(series)
            for key in keys:
                own = server.as_pages(answers.get(key, []), known[key].labels)
                found.extend(self._scrapes(key, known[key], [stamp], own, errors))
        return found

    async def _guess(self, at: datetime) -> None:
        """Which adapter reads the jobs that nobody named; asked anew every look-back span."""
        if self._guessed_at is not None and at - self._guessed_at < LOOK_BACK:
            return
        guessed: dict[tuple[str, str], str] = {}
        for name, metric in SIGNATURES.items():
            for labels in await self._api.vector(f'count by (job, metrics_path) ({{__name__="{metric}"}})', at):
                job, path = labels.get("job", ""), labels.get("metrics_path", "")
                if job not in self._jobs:
                    guessed.setdefault((job, path), name)
        self._guessed.update(guessed)
        self._guessed_at = at if self._guessed else None

    def _adapter_of(self, key: Key) -> str | None:
        job, _, path = key
        return self._jobs.get(job) or self._guessed.get((job, path))

    def _due(self, key: Key, instance: Instance) -> list[int]:
        """Scrape instants not handed on yet; at the start the last two, so that increases are known at once."""
        stamps = sorted(instance.up)
        done = self._done.get(key, self._since_ms)
        fresh = stamps[-2:] if done is None else [stamp for stamp in stamps if stamp > done]
        return fresh if self._since_ms is not None else fresh[-_MOST_SCRAPES:]

    async def _series(self, name: str, keys: Sequence[Key], first: int, at: datetime) -> dict[Key, list[RawSeries]]:
        names = "|".join(sorted(adapter(name).metric_names))
        jobs = "|".join(sorted({literal(key[0]) for key in keys}))
        places = "|".join(sorted({literal(key[1]) for key in keys}))
        selector = f'{{__name__=~"{names}",job=~"{jobs}",instance=~"{places}"}}'
        span = at - from_unix(first / 1000) + timedelta(seconds=1) + _OWN_STAMPS
        found: dict[Key, list[RawSeries]] = {}
        for series in await self._api.raw(selector, span, at):
            found.setdefault(key_of(series.labels), []).append(series)
        return found

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
        found: list[tuple[Scrape, Page | None]] = []
        for stamp in stamps:
            page = pages.get(stamp)
            seconds = instance.seconds.get(stamp, 0.0)
            samples = instance.samples.get(stamp)
            error = None if page is not None else _why(target, errors.get(key[:2], ""))
            scrape = Scrape(
                target,
                from_unix(stamp / 1000),
                None,
                error,
                seconds,
                samples=None if samples is None else int(samples),
            )
            found.append((scrape, page))
        return found

    # --- targets ----------------------------------------------------------------------------------

    def _note_targets(self, known: Mapping[Key, Instance], *, partial: bool) -> None:
        """A target stays as long as its ``up`` is within the look-back span.

        Of an answer that may lack something nobody is struck off the list: those it lacks are unseen.
        """
        self._unseen = tuple(one for key, one in self._targets.items() if key not in known) if partial else ()
        if known.keys() != (self._targets.keys() & known.keys() if partial else self._targets.keys()):
            for key, instance in known.items():
                if key not in self._targets:
                    name = self._adapter_of(key)
                    assert name is not None
                    self._targets[key] = _target(self._cluster, name, key, instance.labels)
            if not partial:
                self._targets = {key: target for key, target in self._targets.items() if key in known}
                self._done = {key: stamp for key, stamp in self._done.items() if key in known}
            self._collector.set_targets(tuple(self._targets.values()))

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()
        await self._collector.close()


def _target(cluster: str, adapter_name: str, key: Key, labels: Mapping[str, str]) -> Target:
    job, instance, path = key
    kind = adapter(adapter_name).target
    name = next((labels[one] for one in _NAMES.get(kind.value, ()) if labels.get(one)), "")
    if kind is EntityKind.CLUSTER:
        entity = EntityRef(cluster, kind, None, cluster)
    else:
        host = instance.rsplit(":", 1)[0] if kind is EntityKind.NODE else instance
        namespace = labels.get("namespace", "default") if kind in _NAMESPACED else None
        entity = EntityRef(cluster, kind, namespace, name or host)
    known = {one: labels[one] for one in ("node", "pod", "service", "gpu_type", "model", "version") if labels.get(one)}
    if kind is EntityKind.REPLICA:
        known.setdefault("service", job)
    else:
        known = {one: value for one, value in known.items() if one == "node"}
    suffix = f"{path}" if path not in {"", "/metrics"} else ""
    return Target(f"{job}/{instance}{suffix}", adapter_name, f"prometheus:{job}/{instance}{suffix}", entity, known)


def _failed(instance: Instance, stamps: Sequence[int]) -> bool:
    return any(instance.up[stamp] != 1 for stamp in stamps)


def _why(target: Target, said: str) -> CollectError:
    reason = next((reason for words, reason in _REASONS if words in said), CollectReason.OTHER)
    return CollectError(
        f"{target.name}: Prometheus cannot scrape it" + (f": {said}" if said else ""),
        reason=reason,
        hint="look at the target's page in Prometheus",
    )


def _with(collected: Collected, *batches: SampleBatch) -> Collected:
    return Collected((*collected.batches, *batches), collected.events, collected.edges, collected.labels)
