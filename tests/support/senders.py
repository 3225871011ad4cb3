"""Hand-made request bodies of senders, and a small API and engine to receive them."""

from __future__ import annotations

import asyncio
import struct
from datetime import UTC, datetime, timedelta

import cramjam
import httpx

from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.receive.consumer import PushReceiver, ReceiveLimits
from collectors.receive.kpi import KpiValues
from outrider.clock import ManualClock
from outrider.wire.remote_write import Request, WriteRequest
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings, IngestSettings
from store.memory import MemoryIngestBuffer, MemoryMetricStore, MemoryStateStore

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
TOKEN = "correct horse"
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
VLLM = {"job": "vllm", "instance": "10.0.0.1:8000"}
V2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def write_request(series) -> bytes:
    """Builds a remote-write 1.0 body from [(labels with __name__, [(ms, value), ...]), ...], uncompressed."""
    request = WriteRequest()
    for labels, samples in series:
        one = request.timeseries.add()
        for name, value in sorted(labels.items()):
            one.labels.add(name=name, value=value)
        for stamp, value in samples:
            one.samples.add(value=value, timestamp=stamp)
    return request.SerializeToString()


def request_v2(series) -> bytes:
    """Builds a remote-write 2.0 body from the same arguments."""
    request = Request(symbols=[""])
    numbers = {"": 0}
    for labels, samples in series:
        refs = []
        for text in (part for pair in sorted(labels.items()) for part in pair):
            if text not in numbers:
                numbers[text] = len(request.symbols)
                request.symbols.append(text)
            refs.append(numbers[text])
        one = request.timeseries.add(labels_refs=refs)
        for stamp, value in samples:
            one.samples.add(value=value, timestamp=stamp)
    return request.SerializeToString()


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def series(name, at, value, **labels):
    return {"__name__": name, **VLLM, **labels}, [(ms(at), value)]


def vllm_page(at: datetime, tokens: float, **labels):
    """Returns the series that Prometheus sends for one scrape of a vLLM server."""
    engine = {"engine": "0", "model_name": "m", **labels}
    return [
        series("up", at, 1.0, **labels),
        series("scrape_duration_seconds", at, 0.02, **labels),
        series("scrape_samples_scraped", at, 90.0, **labels),
        series("vllm:num_requests_running", at, 2.0, **engine),
        series("vllm:num_requests_waiting", at, 1.0, **engine),
        series("vllm:generation_tokens_total", at, tokens, **engine),
        series("vllm:request_success_total", at, tokens / 100, **engine, finished_reason="stop"),
    ]


class PushWorld:
    """The API and the engine's collector with one ingest buffer in memory."""

    def __init__(
        self, *, limits: ReceiveLimits | None = None, kpis: KpiValues | None = None, spool=None, **settings_of_ingest
    ) -> None:
        self.clock = ManualClock(START)
        self.spool = spool or MemoryIngestBuffer()
        self.state, self.metrics = MemoryStateStore(), MemoryMetricStore()
        ingest_settings = IngestSettings(**{"kpi_services": ("shop",), **settings_of_ingest})
        self.extras = ApiExtras(clock=self.clock, ingest_buffer=self.spool)
        settings = ApiSettings(token=TOKEN, cluster="c", ingest=ingest_settings)
        self.app = create_app(self.state, self.metrics, settings, self.extras)
        self.received = PushReceiver(self.spool, "c", self.clock, rules=ingest_settings.rules, limits=limits, kpis=kpis)
        self.collector = ScrapeManager((), pushed=self.received)

    def post(self, path: str, body: bytes, headers=None, token: str = TOKEN) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                authorized = {"Authorization": f"Bearer {token}"} if token else {}
                return await client.post(f"/api/v1{path}", content=body, headers={**authorized, **(headers or {})})

        return asyncio.run(ask())

    def write(self, series, **headers) -> httpx.Response:
        return self.post(
            "/write",
            snappy(write_request(series)),
            {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf", **headers},
        )

    def cycle(self, after: timedelta = STEP):
        """Collects one cycle after ``after`` and writes it to the store."""
        self.clock.advance(after)
        collected = asyncio.run(self.collector.collect(self.clock.now()))
        self.metrics.write(self.clock.now(), collected.batches, collected.events)
        return collected

    def page(self) -> str:
        async def ask() -> str:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return (await client.get("/metrics")).text

        return asyncio.run(ask())
