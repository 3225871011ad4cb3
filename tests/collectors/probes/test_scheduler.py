"""Concurrent probes: intervals, cycles that do not wait, one row per service, no value if unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from collectors.probes.base import ProbeRequest
from collectors.probes.result import Outcome, ProbeResult
from collectors.probes.scheduler import ProbeScheduler
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey

START = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
CHAT = EntityRef("test", EntityKind.SERVICE, "serving", "chat")
CODE = EntityRef("test", EntityKind.SERVICE, "serving", "code")


class Endpoint:
    """A scripted probe: it returns ``result``, and ``gate`` delays it."""

    def __init__(self, name: str, service: EntityRef = CHAT, *, every: float = 15, **result) -> None:
        probe_request = ProbeRequest(name, service, timedelta(seconds=every), timedelta(seconds=10))
        self.name, self.service, self.every, self.timeout = (
            probe_request.name,
            probe_request.service,
            probe_request.every,
            probe_request.timeout,
        )
        self.address = name
        self.result = ProbeResult(Outcome.OK, START, **{"e2e_seconds": 0.5, **result})
        self.gate: asyncio.Event | None = None
        self.probe_request: list[datetime] = []
        self.breaks = False
        self.closed = False

    async def run(self, at: datetime) -> ProbeResult:
        self.probe_request.append(at)
        if self.gate is not None:
            await self.gate.wait()
        if self.breaks:
            raise KeyError("mistake")
        return replace(self.result, at=at)

    async def close(self) -> None:
        self.closed = True


def row(batches: tuple[SampleBatch, ...], service: EntityRef = CHAT) -> dict[str, float]:
    """The PRESENT cells of a service."""
    (batch,) = [one for one in batches if one.entities == (service,)]
    assert np.isnan(batch.values[batch.status != CellStatus.PRESENT]).all()
    assert np.isfinite(batch.values[batch.status == CellStatus.PRESENT]).all()
    return {
        key.name: float(batch.values[0, column])
        for column, key in enumerate(batch.keys)
        if batch.status[0, column] == CellStatus.PRESENT
    }


def up(batches: tuple[SampleBatch, ...]) -> dict[str, float | None]:
    (batch,) = [one for one in batches if one.kind is EntityKind.WORKLOAD]
    column = batch.values[:, batch.keys.index(SignalKey("target_up"))]
    return {one.name: None if np.isnan(up) else float(up) for one, up in zip(batch.entities, column, strict=True)}


def rounds(probes: ProbeScheduler, count: int = 1, first: datetime = START) -> tuple[SampleBatch, ...]:
    async def whole() -> tuple[SampleBatch, ...]:
        batches: tuple[SampleBatch, ...] = ()
        for number in range(count):
            batches = await probes.collect(first + number * STEP)
        return batches

    return asyncio.run(whole())


def test_probes_of_one_service_are_one_row() -> None:
    endpoints = [
        Endpoint("names", e2e_seconds=0.01),
        Endpoint("page", cert_expiry_seconds=9e5, e2e_seconds=0.1),
        Endpoint("cert", cert_expiry_seconds=8e5),
        Endpoint("talk", ttft_seconds=0.2, itl_seconds=0.03, tokens=16, e2e_seconds=0.7),
    ]
    batches = rounds(ProbeScheduler(endpoints))
    assert row(batches) == {
        "probe_success": 1, "probe_outcome_code": 0, "probe_e2e_seconds": 0.7, "probe_ttft_seconds": 0.2,
        "probe_itl_seconds": 0.03, "probe_generated_tokens": 16, "probe_cert_expiry_seconds": 8e5,
    }  # fmt: skip
    assert up(batches) == {f"probe/{endpoint.name}": 1 for endpoint in endpoints}


def test_one_failed_probe_fails_the_service_with_its_reason() -> None:
    endpoints = [Endpoint("page"), Endpoint("talk", tokens=0), Endpoint("other", CODE)]
    endpoints[1].result = replace(endpoints[1].result, outcome=Outcome.NO_GENERATION, message="no token")
    probes = ProbeScheduler(endpoints)
    batches = rounds(probes)
    assert row(batches)["probe_success"] == 0
    assert row(batches)["probe_outcome_code"] == Outcome.NO_GENERATION.code
    assert row(batches, CODE)["probe_success"] == 1
    health = {one.target: one for one in probes.health}
    assert (health["talk"].up, health["talk"].reason, health["talk"].error) == (False, "no_generation", "no token")
    assert health["page"].up is True
    assert up(batches)["probe/talk"] == 1, "the probe works; it is the service that does not"


def test_a_slow_service_is_up_and_reported_as_slow() -> None:
    endpoint = Endpoint("talk")
    endpoint.result = replace(endpoint.result, outcome=Outcome.SLOW)
    assert row(rounds(ProbeScheduler([endpoint])))["probe_success"] == 1


def test_a_local_error_is_not_a_service_failure() -> None:
    endpoint, broken = Endpoint("talk"), Endpoint("mistake")
    endpoint.result = replace(endpoint.result, outcome=Outcome.NOT_SENT, message="no token file")
    broken.breaks = True
    batches = rounds(ProbeScheduler([endpoint, broken]))
    assert row(batches) == {}
    assert up(batches) == {"probe/talk": 0, "probe/mistake": 0}


def test_each_probe_has_its_own_interval_and_keeps_its_result() -> None:
    often, seldom = Endpoint("often"), Endpoint("seldom", CODE, every=60)
    batches = rounds(ProbeScheduler([often, seldom]), 5)
    assert len(often.probe_request) == 5
    assert seldom.probe_request == [START, START + 4 * STEP]
    assert row(batches, CODE)["probe_success"] == 1


def test_a_backward_clock_step_repeats_the_probe() -> None:
    endpoint = Endpoint("seldom", every=3600)
    probes = ProbeScheduler([endpoint])
    rounds(probes)
    rounds(probes, first=START - timedelta(hours=2))
    assert len(endpoint.probe_request) == 2


def test_a_slow_probe_delays_no_other_and_runs_once() -> None:
    async def whole() -> None:
        slow, quick = Endpoint("slow", every=30), Endpoint("quick", CODE)
        slow.gate = asyncio.Event()
        probes = ProbeScheduler([slow, quick], deadline=timedelta(seconds=0.02))
        for number in range(3):
            batches = await probes.collect(START + number * STEP)
            assert row(batches) == {}
            assert row(batches, CODE)["probe_success"] == 1
        assert (len(slow.probe_request), len(quick.probe_request)) == (1, 3)
        assert [one.late for one in probes.health] == [True, False]
        slow.gate.set()
        batches = await probes.collect(START + 3 * STEP)
        (batch,) = [one for one in batches if one.entities == (CHAT,)]
        assert row(batches)["probe_success"] == 1
        assert batch.scraped_at == START, "the instant of the asking, not of the round"
        await probes.close()
        assert slow.closed

    asyncio.run(whole())


def test_an_expired_result_is_dropped() -> None:
    async def whole() -> None:
        endpoint = Endpoint("talk", every=15)
        probes = ProbeScheduler([endpoint], deadline=timedelta(seconds=0.01))
        assert row(await probes.collect(START))["probe_success"] == 1
        endpoint.gate = asyncio.Event()
        assert row(await probes.collect(START + 2 * STEP))["probe_success"] == 1
        batches = await probes.collect(START + 3 * STEP)
        assert row(batches) == {}
        assert up(batches) == {"probe/talk": None}
        await probes.close()

    asyncio.run(whole())


def test_probes_are_spread_over_the_interval() -> None:
    endpoints = [Endpoint(f"endpoint-{number}") for number in range(8)]
    rounds(ProbeScheduler(endpoints, spread=timedelta(seconds=0.05)), 2)
    moments = {endpoint.probe_request[0] - START for endpoint in endpoints}
    assert len(moments) == 8
    assert all(timedelta(0) <= one < timedelta(seconds=0.05) for one in moments)
    assert all(endpoint.probe_request[1] - STEP == endpoint.probe_request[0] for endpoint in endpoints)
