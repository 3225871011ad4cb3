"""Data from a Prometheus and from the ingest endpoints is recorded too, and replays to the same values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import kept_pages  # type: ignore[import-not-found]
import numpy as np
import pytest
from kept_pages import STEP, RecordedScrapes
from senders import START, PushWorld, vllm_page  # type: ignore[import-not-found]

from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.prometheus.source import PrometheusSource
from collectors.recording import reader
from collectors.recording.ring_buffer import FlightRing
from outrider.clock import ManualClock
from outrider.errors import CollectReason, UnavailableError
from outrider.model import CellStatus, EntityKind, EntityRef, SignalKey
from outrider.ports import Collected
from service.config.settings import Settings
from service.ops import replay
from service.recorder import flight_recorder
from store import factory

ROUNDS = 3
NODE = {"kind": "node", "name": "node-0"}
SERVERS = {"prometheus": ("prometheus", "promtool"), "victoria": ("victoria-metrics",)}


def silent(stage: str, share: float) -> None:
    assert 0 < share <= 1


class StepClock(ManualClock):
    """Sleeping takes no time and may do something."""

    def __init__(self, at, act: Callable[[], object] = lambda: None) -> None:
        super().__init__(at)
        self._act = act

    async def sleep(self, duration: timedelta) -> None:
        self.advance(duration)
        await asyncio.to_thread(self._act)


def present(collected: Collected) -> dict[tuple[EntityRef, SignalKey], float]:
    return {
        (entity, key): float(batch.values[row, column])
        for batch in collected.batches
        if batch.kind is not EntityKind.WORKLOAD
        for row, entity in enumerate(batch.entities)
        for column, key in enumerate(batch.keys)
        if batch.status[row, column] == CellStatus.PRESENT
    }


def replayed(folder: Path) -> Collected:
    """The last round of a recording."""
    fleet = reader.read_fleet(folder)
    collector = ScrapeManager(fleet.targets)
    for group in replay.group_cycles(list(fleet.scrapes()), STEP):
        found = collector.absorb(group, group[-1].at)
    return found


def all_of(folder: Path) -> dict[tuple[EntityRef, SignalKey], float]:
    """The newest value of each signal of a recording."""
    fleet = reader.read_fleet(folder)
    collector, found = ScrapeManager(fleet.targets), dict[tuple[EntityRef, SignalKey], float]()
    for group in replay.group_cycles(list(fleet.scrapes()), STEP):
        found |= present(collector.absorb(group, group[-1].at))
    return found


# --- a Prometheus ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept() -> RecordedScrapes:
    return kept_pages.kept_fleet(rounds=8)


@pytest.fixture(scope="module", params=SERVERS)
def url(request, kept: RecordedScrapes, tmp_path_factory) -> Iterator[str]:
    why = kept_pages.missing(SERVERS[request.param])
    if why is not None:
        pytest.skip(why)
    serve: AbstractContextManager[str] = getattr(kept_pages, request.param)(tmp_path_factory.mktemp("kept"), kept)
    with serve as found:
        yield found


def configured(url: str, kept: RecordedScrapes, **more) -> Settings:
    jobs = {one.target.adapter: one.target.adapter for one in kept.scrapes}
    cluster = kept.scrapes[0].target.entity.cluster
    return Settings.model_validate({"cluster": cluster, "collect": {"prometheus": {"url": url, "jobs": jobs, **more}}})


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("pushdown", [None, "5m"])
def test_a_recording_of_a_prometheus_replays_to_the_same_values(
    url: str, kept: RecordedScrapes, tmp_path: Path, pushdown
) -> None:
    settings = configured(url, kept, **({"pushdown": pushdown} if pushdown else {}))
    clock = StepClock(kept.instants[-ROUNDS])
    answer = asyncio.run(flight_recorder.record(settings, ROUNDS * STEP, tmp_path / "new", clock, silent))
    names = {scrape.target.name for scrape in kept.scrapes}
    assert answer["targets"] == len(names)
    assert answer["scrapes"] == len(names) * (ROUNDS + 1), "the first round brings the scrape before it too"

    async def direct() -> Collected:
        prometheus = settings.collect.prometheus
        assert prometheus is not None
        source = PrometheusSource(url, cluster=settings.cluster, jobs=prometheus.jobs)
        try:
            for at in kept.instants[-ROUNDS:]:
                found = await source.collect(at)
            return found
        finally:
            await source.close()

    ours, theirs = present(replayed(tmp_path / "new")), present(asyncio.run(direct()))
    assert len(ours) > 2000
    assert ours.keys() == theirs.keys()
    wrong = {place: (value, theirs[place]) for place, value in ours.items() if not np.isclose(value, theirs[place])}
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.live
def test_scrapes_before_an_incident_are_recorded_from_a_prometheus(
    url: str, kept: RecordedScrapes, tmp_path: Path
) -> None:
    ring = FlightRing(tmp_path / "ring")

    async def read() -> PrometheusSource:
        prometheus = configured(url, kept).collect.prometheus
        assert prometheus is not None
        source = PrometheusSource(url, cluster="c", jobs=prometheus.jobs, tap=ring.add)
        for at in kept.instants[-ROUNDS:]:
            await source.collect(at)
            ring.flush()
        await source.close()
        return source

    source = asyncio.run(read())
    count = ring.export_recording(tmp_path / "out", "c", source.watched, kept.instants[0], kept.instants[-1])
    assert count == len(source.watched) * (ROUNDS + 1)
    assert len(present(replayed(tmp_path / "out"))) > 2000


def test_an_unreachable_prometheus_is_reported(tmp_path: Path) -> None:
    settings = Settings.model_validate({"collect": {"prometheus": {"url": "http://127.0.0.1:9"}}})
    with pytest.raises(UnavailableError, match="unreachable"):
        asyncio.run(flight_recorder.record(settings, STEP, tmp_path / "new", StepClock(START), silent))


# --- ingest endpoints -----------------------------------------------------------------------------


def test_pushed_samples_are_recorded_and_not_consumed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/o.db"
    spool = factory.open_ingest_buffer(factory.urls_of(store)[0])
    world = PushWorld(spool=spool)
    written = {"cluster": "c", "store": {"url": store}, "receive": {"enabled": True, "kpi_services": ["shop"]}}

    def kpi(*values: int) -> None:
        entries = [
            {"name": name, "service": "shop", "value": value}
            for name, value in zip(("orders", "carts"), values, strict=False)
        ]
        world.post("/kpis", json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def push() -> None:
        """Every half round; the world's clock goes with the recorder's."""
        world.clock.set(clock.now())
        if not (clock.now() - START) % STEP:
            elapsed = (clock.now() - START) / STEP
            assert world.write(vllm_page(clock.now(), 1000.0 + 300 * elapsed)).status_code == 204
            kpi(int(elapsed))

    clock = StepClock(START, push)
    answer = asyncio.run(
        flight_recorder.record(Settings.model_validate(written), 6 * STEP, tmp_path / "new", clock, silent)
    )
    assert "left_out" not in answer
    fleet = reader.read_fleet(tmp_path / "new")
    assert {(one.adapter, one.entity.kind) for one in fleet.targets} == {
        ("vllm", EntityKind.REPLICA),
        ("sdk", EntityKind.SERVICE),
    }
    values = {key.name: value for (_, key), value in all_of(tmp_path / "new").items()}
    assert values["engine_generation_tokens_total"] == 300
    assert values["engine_requests_running"] == 2
    assert values["svc_kpi_value"] == 5
    assert spool.waiting().blocks == 10, "five pages and five KPIs wait for the engine"
    assert spool.counted() == {}

    world.clock.set(START)
    clock = StepClock(START, lambda: (world.clock.set(clock.now()), kpi(1, 2)))
    answer = asyncio.run(
        flight_recorder.record(Settings.model_validate(written), 2 * STEP, tmp_path / "two", clock, silent)
    )
    assert answer["left_out"] == [
        "KPIs carts, orders of shop: a recording holds only the main KPI of a service, see receive.main_kpi"
    ]
    spool.close()


def test_a_scrape_that_failed_at_its_sender_is_an_error_in_the_recording(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/o.db"
    spool = factory.open_ingest_buffer(factory.urls_of(store)[0])
    world = PushWorld(spool=spool)

    def push() -> None:
        world.clock.set(clock.now())
        if (clock.now() - START) % STEP:
            return
        page = vllm_page(clock.now(), 1000.0)
        (labels, ((stamp, _),)), *rest = page
        down = clock.now() >= START + 2 * STEP
        world.write([(labels, [(stamp, 0.0)])] if down else [(labels, [(stamp, 1.0)]), *rest])

    clock = StepClock(START, push)
    settings = Settings.model_validate({"cluster": "c", "store": {"url": store}, "receive": {"enabled": True}})
    asyncio.run(flight_recorder.record(settings, 6 * STEP, tmp_path / "new", clock, silent))
    scrapes = list(reader.read_fleet(tmp_path / "new").scrapes())
    assert scrapes[0].error is None
    assert scrapes[-1].error is not None
    assert scrapes[-1].error.reason == CollectReason.OTHER
    spool.close()


# --- what cannot be kept --------------------------------------------------------------------------


def test_sources_that_cannot_be_recorded_are_listed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/o.db"
    factory.open_ingest_buffer(factory.urls_of(store)[0]).close()
    settings = Settings.model_validate(
        {
            "store": {"url": store},
            "collect": {"targets": [{"name": "n", "adapter": "dcgm", "url": "http://127.0.0.1:9/", "entity": NODE}]},
            "probes": [{"type": "http", "name": "home", "url": "http://127.0.0.1:9/", "service": "chat"}],
            "events": [{"type": "kubernetes", "url": "http://127.0.0.1:9"}],
        }
    )
    answer = asyncio.run(flight_recorder.record(settings, STEP, tmp_path / "new", StepClock(START), silent))
    assert answer["left_out"] == [
        "probe home: probe results are not recorded",
        "kubernetes: events are recorded; signals and topology of the Kubernetes API are not",
    ]
