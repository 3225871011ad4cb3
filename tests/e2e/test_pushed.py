"""Real senders push to a running ``outrider serve``; their values are in its store."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BINARY = shutil.which("prometheus")


class Platform:
    """A running ``outrider serve`` that scrapes nothing."""

    def __init__(self, folder) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = {
            "cluster": "c",
            "store": {"url": f"sqlite:///{folder}/store/outrider.db"},
            "collect": {"interval": "1s"},
            "receive": {"settle": "1s", "kpi_services": ["shop"]},
            "api": {"port": self.port},
            "dashboard": {"enabled": False},
        }
        (folder / "outrider.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "service.cli", "serve", "--config", str(folder / "outrider.yaml")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def ready(self):
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/-/ready", timeout=5).status_code == 200

    @property
    def token_file(self):
        return self.folder / "store" / "admin.token"

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}

    def newest(self, signal_name, entity):
        """Returns the newest value of a signal of an entity, or None."""
        response = httpx.get(f"{self.url}/api/v1/signals/{signal_name}/series", params={"step": "1s"}, timeout=10)
        for series in response.json().get("series", []):
            if series["entity"]["name"] == entity:
                return next((value for value in reversed(series["values"]) if value is not None), None)
        return None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    running = Platform(tmp_path_factory.mktemp("pushed"))
    until(running.ready, "the platform is ready")
    yield running
    running.stop()


@contextmanager
def engine_page():
    """An engine page whose token counter grows by 50 per scrape."""

    class Page(BaseHTTPRequestHandler):
        scrapes = 0

        def do_GET(self):
            Page.scrapes += 1
            text = (
                'vllm:num_requests_running{engine="0",model_name="m"} 7\n'
                f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {50 * Page.scrapes}\n'
                f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} {Page.scrapes}\n'
                f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {2 * Page.scrapes}\n'
                f'vllm:time_to_first_token_seconds_sum{{engine="0"}} {Page.scrapes}\n'
                f'vllm:time_to_first_token_seconds_count{{engine="0"}} {2 * Page.scrapes}\n'
                "something_nobody_reads 1\n"
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.live
@pytest.mark.skipif(BINARY is None, reason="missing: prometheus (Debian package of that name)")
def test_values_of_prometheus_remote_write_are_stored(platform, tmp_path):
    with engine_page() as target_port:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "external_labels": {"prometheus_replica": "a"}},
            "scrape_configs": [
                {
                    "job_name": "engines",
                    "static_configs": [{"targets": [f"127.0.0.1:{target_port}"], "labels": {"service": "chat"}}],
                }
            ],
            "remote_write": [
                {
                    "url": f"{platform.url}/api/v1/write",
                    "authorization": {"credentials_file": str(platform.token_file)},
                    "queue_config": {"batch_send_deadline": "500ms"},
                    "metadata_config": {"send": True, "send_interval": "1s"},
                }
            ],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        port = free_port()
        sender = subprocess.Popen(
            [
                BINARY, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            name = f"127.0.0.1:{target_port}"
            tokens = until(lambda: platform.newest("engine_generation_tokens_total", name), "its counter is stored")
            assert tokens % 50 == 0
            assert tokens > 0
            assert platform.newest("engine_requests_running", name) == 7
            ttft = until(lambda: platform.newest("engine_ttft_seconds", name), "its histogram is stored")
            assert ttft > 0
            assert until(lambda: platform.newest("svc_ready_backends", "chat"), "its service is rolled up") == 1
            failed = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
            line = next(
                row for row in failed.splitlines() if row.startswith("prometheus_remote_storage_samples_failed")
            )
            assert line.endswith(" 0")
        finally:
            sender.terminate()
            sender.wait()


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_values_of_the_opentelemetry_sdk_are_stored(platform, temporality):
    from opentelemetry.sdk.metrics import Counter, Histogram

    kind = AggregationTemporality.DELTA if temporality == "delta" else AggregationTemporality.CUMULATIVE
    exporter = OTLPMetricExporter(
        endpoint=f"{platform.url}/api/v1/otlp/v1/metrics",
        headers=platform.headers,
        preferred_temporality={Counter: kind, Histogram: kind},
    )
    service = f"answers-{temporality}"
    provider = MeterProvider(
        [PeriodicExportingMetricReader(exporter, export_interval_millis=700)],
        resource=Resource.create({"service.name": service, "service.instance.id": "1"}),
        views=[View(instrument_name="*_seconds", aggregation=ExponentialBucketHistogramAggregation())],
    )
    meter = provider.get_meter("test")
    answers = meter.create_counter("outrider_sdk_answers")
    invalid = meter.create_counter("outrider_sdk_invalid_answers")
    kpi = meter.create_gauge("outrider_sdk_kpi")

    def ratio():
        answers.add(4)
        invalid.add(1, {"reason": "empty"})
        kpi.set(12.5, {"kpi": "conversion"})
        return platform.newest("svc_output_invalid_ratio", service)

    try:
        assert until(ratio, "the ratio of its counters is stored") == pytest.approx(0.25)
        assert platform.newest("svc_kpi_value", service) == 12.5
    finally:
        provider.shutdown()


def test_a_posted_kpi_is_stored_and_an_invalid_one_is_reported(platform):
    body = [{"name": "orders", "service": "shop", "value": 42}, {"name": "orders", "service": "shop", "value": "many"}]
    response = httpx.post(f"{platform.url}/api/v1/kpis", json=body, headers=platform.headers, timeout=10)
    assert response.status_code == 207
    assert [entry["index"] for entry in response.json()["refused"]] == [1]
    assert until(lambda: platform.newest("kpi_orders", "shop"), "the KPI is stored") == 42
    assert platform.newest("svc_kpi_value", "shop") == 42


def test_own_metrics_count_received_requests(platform):
    page = httpx.get(f"{platform.url}/metrics", timeout=10).text
    assert 'outrider_received_requests_total{door="kpi",outcome="taken"}' in page
    assert "outrider_received_waiting_bytes" in page
    assert httpx.post(f"{platform.url}/api/v1/write", content=b"", timeout=10).status_code == 401
