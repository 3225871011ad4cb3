"""The examples run, and ``outrider collect once`` reads their pages."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import httpx
import pytest

from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from service.ops import signal_listing
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "sdk" / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'sdk'}{os.pathsep}{ROOT}", "NO_COLOR": "1"}


@contextmanager
def started(*command):
    process = subprocess.Popen(
        [sys.executable, *command], cwd=EXAMPLES, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def collected(url):
    """Values that ``outrider collect once`` reports for a page: signal -> value."""
    command = [sys.executable, "-m", "service.cli", "collect", "once", "--page", f"sdk={url}", "-o", "json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return {one["signal"]: one["value"] for one in json.loads(done.stdout)["signals"] if one["value"] is not None}


def between(before, after):
    """Values of two scrapes 15 s apart: signal -> value."""
    collector = ScrapeManager([target_of("c", {"name": "page", "adapter": "sdk"})])
    for number, text in enumerate((before, after)):
        at = datetime(2026, 11, 21, tzinfo=UTC) + number * timedelta(seconds=15)
        found = collector.absorb([Scrape(collector.targets[0], at, text.encode(), None, 0.0)], at)
    return {one["signal"]: one["value"] for one in signal_listing.signals(found)}


def responds(url):
    with suppress(httpx.TransportError):
        return httpx.get(url).status_code > 0


@pytest.mark.slow
def test_the_fastapi_example_serves_counts_and_is_read():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with started("-m", "uvicorn", "fastapi_app:app", "--port", str(port), "--log-level", "warning"):
        until(lambda: responds(f"{url}/metrics"), "the example responds")
        before, acme = httpx.get(f"{url}/metrics").text, {"X-Tenant": "acme"}
        answer = httpx.post(f"{url}/answer", params={"prompt": "one two three"}, headers=acme)
        assert answer.json() == {"text": "three two one"}
        assert httpx.post(f"{url}/answer", params={"prompt": ""}).status_code == 200
        assert httpx.post(f"{url}/stream", params={"prompt": "a b c d"}, headers=acme).text == "a b c d "
        assert httpx.post(f"{url}/vote", params={"up": True}).status_code == 200
        page = httpx.get(f"{url}/metrics").text
        known = collected(f"{url}/metrics")
    assert 'outrider_sdk_requests_total{model="echo-1",outcome="ok",tenant="acme"} 2.0' in page
    assert 'outrider_sdk_tokens_total{kind="output",model="echo-1",tenant="acme"} 7.0' in page
    assert 'outrider_sdk_invalid_answers_total{model="echo-1",reason="empty",tenant="none"} 1.0' in page
    assert 'outrider_sdk_stage_seconds_count{model="echo-1",stage="queue"} 2.0' in page
    assert known["svc_inflight_requests"] == 0
    assert known["svc_queue_requests"] == 0
    assert known["svc_latency_seconds"] > 0
    assert known["svc_ttft_seconds"] > 0
    signals = between(before, page)
    assert signals["svc_requests_total"] == 3
    assert signals["svc_failed_total"] == 0
    assert signals["svc_requests_per_second"] == pytest.approx(0.2)
    assert signals["svc_generation_tokens_total"] == 7
    assert signals["svc_success_ratio"] == 1
    assert signals["svc_output_invalid_ratio"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_the_grpc_example_streams_counts_and_is_read():
    with started("grpc_app.py") as process:
        line = process.stdout.readline()
        rpc, url = re.fullmatch(r"grpc (\S+) metrics (\S+)\n", line).groups()
        before = httpx.get(url).text
        with grpc.insecure_channel(rpc) as channel:
            generate = channel.unary_stream(
                "/Model/Generate", request_serializer=str.encode, response_deserializer=bytes.decode
            )
            assert list(generate("un deux trois", metadata=(("tenant", "acme"),))) == ["un ", "deux ", "trois "]
            with pytest.raises(grpc.RpcError):
                list(generate(""))
        page = httpx.get(url).text
        known = collected(url)
    assert 'outrider_sdk_requests_total{model="echo-1",outcome="ok",tenant="acme"} 1.0' in page
    assert 'outrider_sdk_requests_total{model="echo-1",outcome="rejected",tenant="none"} 1.0' in page
    assert known["svc_inflight_requests"] == 0
    assert known["svc_tpot_seconds"] > 0
    signals = between(before, page)
    assert signals["svc_requests_total"] == 2
    assert signals["svc_failed_total"] == 0
    assert signals["svc_generation_tokens_total"] == 3
