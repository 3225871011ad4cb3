"""Scraping, raw reads and pushed-down queries of Prometheus or VictoriaMetrics give equal signals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import kept_pages  # type: ignore[import-not-found]
import numpy as np
import pytest
from kept_pages import STEP, RecordedScrapes

from collectors.mapping import registry
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.prometheus.source import PrometheusSource
from outrider.model import SUM_BUCKET, CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, SignalKind
from outrider.ports import Collected
from outrider.vocabulary import catalog

WINDOW = timedelta(minutes=4)
Cells = dict[tuple[EntityRef, SignalKey], tuple[float, CellStatus]]
OF_SCRAPES = ("target_scrape_seconds", "target_trust_code", "hw_accel_seen")
# Signals that a server cannot compute (collectors/prometheus/query_builder.py has the reasons).
NOT_BY_SERVERS = {"engine_kv_cache_capacity_tokens", "engine_memory_reserved_ratio"}
# Engine probes ask the engine itself, which is not there any more when a server is read.
NOT_BEHIND_SERVERS = {"engine_health_ok", "engine_inflight_requests"}
COUNTED = {
    name
    for one in registry.ADAPTERS
    for name, rules in registry.adapter(one).rules.items()
    if any(rule.needs_two for rule in rules)
}
SERVERS = {"prometheus": ("prometheus", "promtool"), "victoria": ("victoria-metrics",)}


@pytest.fixture(scope="module")
def kept() -> RecordedScrapes:
    return kept_pages.kept_fleet(rounds=22)


@pytest.fixture(scope="module", params=SERVERS)
def url(request, kept: RecordedScrapes, tmp_path_factory) -> Iterator[str]:
    why = kept_pages.missing(SERVERS[request.param])
    if why is not None:
        pytest.skip(why)
    serve: AbstractContextManager[str] = getattr(kept_pages, request.param)(tmp_path_factory.mktemp("kept"), kept)
    with serve as found:
        yield found


def read(url: str, kept: RecordedScrapes, at: datetime, pushdown: timedelta | None) -> Collected:
    async def run() -> Collected:
        jobs = {one.target.adapter: one.target.adapter for one in kept.scrapes}
        cluster = kept.scrapes[0].target.entity.cluster
        source = PrometheusSource(url, cluster=cluster, jobs=jobs, pushdown=pushdown, interval=STEP)
        try:
            return await source.collect(at)
        finally:
            await source.close()

    return asyncio.run(run())


def scraped(kept: RecordedScrapes, *instants: datetime) -> Collected:
    """Signals of the last scrape at these times."""
    collector = ScrapeManager(list({scrape.target.name: scrape.target for scrape in kept.scrapes}.values()))
    for at in instants:
        found = collector.absorb(kept.round(at), at)
    return found


def cells(batches: Iterable[SampleBatch]) -> Cells:
    """The best value of each cell, without signals of targets, as their names differ."""
    found: Cells = {}
    for batch in batches:
        if batch.kind is EntityKind.WORKLOAD:
            continue
        for row, entity in enumerate(batch.entities):
            for column, key in enumerate(batch.keys):
                expected_text = float(batch.values[row, column]), CellStatus(batch.status[row, column])
                held = found.get((entity, key))
                if key.name not in OF_SCRAPES and (held is None or expected_text[1] < held[1]):
                    found[entity, key] = expected_text
    return found


@pytest.mark.slow
@pytest.mark.live
def test_raw_samples_give_the_signals_of_scraping(url: str, kept: RecordedScrapes) -> None:
    last = kept.instants[-1]
    ours = cells(scraped(kept, *kept.instants[-2:]).batches)
    theirs = cells(one for one in read(url, kept, last, None).batches if one.scraped_at == last)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 2000
    wrong = [
        (str(place[0]), str(place[1]), one, other)
        for place, one in ours.items()
        if (other := theirs[place])[1] != one[1] or not np.isclose(other[0], one[0], rtol=1e-6, atol=0, equal_nan=True)
        if place[1].name not in NOT_BEHIND_SERVERS
    ]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.live
def test_pushed_down_queries_give_the_signals_of_scraping(url: str, kept: RecordedScrapes) -> None:
    last = kept.instants[-1]
    ours = cells(scraped(kept, last - WINDOW, last).batches)
    theirs = cells(read(url, kept, last, WINDOW).batches)
    compared = 0
    for (entity, key), (value, status) in ours.items():
        if key.bucket is not None or key.name in NOT_BY_SERVERS | NOT_BEHIND_SERVERS or _is_merged(entity, key):
            continue
        other, known = theirs.get((entity, key), (np.nan, CellStatus.ABSENT))
        assert known is status or {known, status} == {CellStatus.ABSENT, CellStatus.UNDEFINED}, (str(entity), key)
        if status is CellStatus.PRESENT:
            is_delta = catalog.signal(key.name).kind is SignalKind.DELTA
            expected = value * (STEP / WINDOW) if is_delta else value
            assert other == pytest.approx(expected, rel=_tolerance(key), abs=1e-9), (str(entity), str(key))
            compared += 1
    assert compared > 800


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("signal", ["engine_ttft_seconds", "engine_itl_seconds", "engine_e2e_seconds"])
def test_pushed_down_queries_give_equal_quantiles(url: str, kept: RecordedScrapes, signal: str) -> None:
    last = kept.instants[-1]
    ours = cells(scraped(kept, last - WINDOW, last).batches)
    theirs = cells(read(url, kept, last, WINDOW).batches)
    replicas = {entity for entity, key in ours if key.name == signal and key.bucket is not None}
    assert len(replicas) >= 4
    for replica in replicas:
        counts = [ours[replica, key][0] for key in catalog.signal(signal).bucket_keys if key.bucket != SUM_BUCKET]
        total = ours[replica, SignalKey(signal, bucket=SUM_BUCKET)][0]
        assert theirs[replica, SignalKey(signal)][0] == pytest.approx(total / sum(counts), rel=0.02)
        for share in (0.5, 0.95, 0.99):
            found = theirs[replica, SignalKey(signal, quantile=share)][0]
            assert found == pytest.approx(quantile(catalog.signal(signal).bounds, counts, share), rel=0.02)


def quantile(bounds: tuple[float, ...], counts: list[float], share: float) -> float:
    """Linear within the bucket, as PromQL has it; beyond the last bound that bound."""
    below, rank = 0.0, share * sum(counts)
    for lower, upper, count in zip((0.0, *bounds), bounds, counts, strict=False):
        if below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below += count
    return bounds[-1]


def _is_merged(entity: EntityRef, key: SignalKey) -> bool:
    """Service signals computed from buckets or scrapes of the replicas."""
    return entity.kind is EntityKind.SERVICE and key.name.startswith("svc_")


def _tolerance(key: SignalKey) -> float:
    """Gauges must be equal; values over a window may differ by the handling of its ends."""
    return 0.02 if key.name in COUNTED else 1e-6
