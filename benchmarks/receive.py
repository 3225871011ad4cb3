"""Throughput of pushed samples through the ingest endpoint and from the buffer into batches, one core.

A Prometheus sends the recorded pages of 50 vLLM servers with its default of 2,000 series per request. The endpoint
decodes, matches and encodes; the engine decodes, assembles pages and normalises. The peer of both together scrapes the
same pages: it parses and normalises them as text.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cramjam

from benchmarks.common import Result, main, result
from collectors.exposition.parser import Page, Parser
from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.receive import block, remote_write
from collectors.receive.consumer import PushReceiver
from collectors.receive.protocol import unpack
from collectors.receive.routing import AdapterRouter
from collectors.scrape.result import Scrape
from outrider import gc_tuning, log
from outrider.clock import ManualClock
from outrider.records.ingest_buffer import PushedBlock
from outrider.wire.remote_write import WriteRequest
from store.memory import MemoryIngestBuffer

RECORDING = Path(__file__).resolve().parent.parent / "tests/recordings/c_ramp.metrics.jsonl.gz"
SERVERS, ROUNDS, PER_REQUEST = 50, 6, 2000
# 10,000 devices of 20 metrics, 1,250 nodes of 100 and 1,250 replicas of 375, every 15 s
TARGET = (10_000 * 20 + 1_250 * (100 + 375)) / 15
START, STEP = datetime(2026, 11, 21, tzinfo=UTC), timedelta(seconds=15)


def pages() -> list[tuple[bytes, Page]]:
    """Returns scrapes of one server, as text and parsed."""
    parser = Parser()
    with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
        texts = [text.encode() for line in lines if (text := json.loads(line).get("text"))]
    return [(text, parser.parse(text)) for text in texts[-ROUNDS:]]


def requests(page: Page, at: datetime) -> list[bytes]:
    """Returns the remote-write requests of one scrape of every server."""
    stamp = round(at.timestamp() * 1000)
    results, request = [], WriteRequest()
    for server in range(SERVERS):
        target = {"job": "vllm", "instance": f"10.0.0.{server}:8000", "namespace": "serving", "pod": f"chat-{server}"}
        for series, value in [*zip(page.series, page.values.tolist(), strict=True), (None, 1.0)]:
            time_series = request.timeseries.add()
            labels = {"__name__": "up"} if series is None else {"__name__": series.name, **series.labels}
            for name, text in sorted({**labels, **target}.items()):
                time_series.labels.add(name=name, value=text)
            time_series.samples.add(value=value, timestamp=stamp)
            if len(request.timeseries) == PER_REQUEST:
                results.append(bytes(cramjam.snappy.compress_raw(request.SerializeToString())))
                request = WriteRequest()
    return [*results, bytes(cramjam.snappy.compress_raw(request.SerializeToString()))]


def pushed(recorded: Sequence[tuple[bytes, Page]]) -> tuple[float, float, int]:
    """Returns seconds at the endpoint, seconds in the engine, samples sent; the first cycle warms up."""
    clock, spool, matcher = ManualClock(START), MemoryIngestBuffer(), AdapterRouter()
    collector = ScrapeManager((), pushed=PushReceiver(spool, "c", clock))
    endpoint = engine = 0.0
    samples = 0
    for number, (_, page) in enumerate(recorded):
        bodies = requests(page, START + number * STEP)
        begun = perf_counter()
        for body in bodies:
            decoded = remote_write.decode(unpack(body, "snappy", 1 << 28), 1)
            assigned = matcher.assign(decoded)
            spool.put(PushedBlock("remote_write", "s", clock.now(), 1, block.encode(assigned, decoded.about)), 1 << 30)
        middle = perf_counter()
        clock.advance(STEP)
        collected = collector.absorb_pages((), clock.now())
        assert len(collected.batches) >= SERVERS
        if number:
            endpoint, engine = endpoint + middle - begun, engine + perf_counter() - middle
            samples += SERVERS * (page.samples + 1)
    return endpoint, engine, samples


def scraped(recorded: Sequence[tuple[bytes, Page]]) -> float:
    """Returns the seconds for the same pages as text."""
    targets = [target_of("c", {"name": f"r-{number}", "adapter": "vllm"}) for number in range(SERVERS)]
    collector, total = ScrapeManager(targets), 0.0
    for number, (text, _) in enumerate(recorded):
        at = START + number * STEP
        begun = perf_counter()
        collector.absorb([Scrape(target, at, text, None, 0.0) for target in targets], at)
        total += perf_counter() - begun if number else 0.0
    return total


def run() -> list[Result]:
    """Returns samples/s at the endpoint and in the engine; the peer is scraping."""
    log.configure(level="error")
    recorded = pages()
    gc_tuning.settle()  # as both processes do
    endpoint, engine, samples = pushed(recorded)
    peer = samples / scraped(recorded)
    at_endpoint, in_engine = samples / endpoint, samples / engine
    name = "scraping the same pages"
    return [
        result("receive_door", at_endpoint, "samples/s", TARGET, at_endpoint >= TARGET, name, peer, at_endpoint / peer),
        result(
            "receive_engine",
            in_engine,
            "samples/s",
            TARGET,
            in_engine >= TARGET,
            name,
            peer,
            in_engine / peer,
        ),
    ]


if __name__ == "__main__":
    main(run)
