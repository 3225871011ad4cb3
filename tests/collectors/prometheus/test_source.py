"""Reading an existing Prometheus gives the results of scraping."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import structlog
from aiohttp import web

from collectors.mapping import registry
from collectors.mapping.signatures import SIGNATURES
from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.prometheus.client import PrometheusApi, RawSeries
from collectors.prometheus.pages import Instance, PageBuilder, instances
from collectors.prometheus.source import PrometheusSource
from collectors.prometheus.targets import first_marked
from collectors.scrape.result import Scrape
from outrider.clock import SystemClock
from outrider.errors import CollectError, CollectReason, UsageError
from outrider.model import CellStatus, EntityKind, SignalKey, TrustVerdict
from outrider.wire.http_auth import Access
from tests.support.ports import free_port
from tests.support.waiting import until_async

AT = datetime(2026, 3, 1, tzinfo=UTC)
BINARY = shutil.which("prometheus")
LABELS = {"job": "vllm", "instance": "10.0.0.1:8000"}


def raw(name, *samples, **labels):
    return RawSeries({"__name__": name, **LABELS, **labels}, *(tuple(column) for column in zip(*samples, strict=True)))


def test_samples_of_one_time_are_one_page() -> None:
    result = instances([raw("up", (1000, 1.0), (2000, 1.0)), raw("scrape_samples_scraped", (1000, 9.0))])
    ((key, instance),) = result.items()
    assert key == ("vllm", "10.0.0.1:8000", "")
    series = [
        raw("a", (1000, 1.0), (2000, 2.0), engine="0"),
        raw("gone", (1000, 5.0)),
        raw("late", (900, 5.0), (1950, 6.0)),  # lines with timestamps of their own
    ]
    first, second = PageBuilder().pages(series, instance, [1000, 2000])
    assert sorted(one.name for one in first.series) == ["a", "gone", "late"]
    assert sorted(one.name for one in second.series) == ["a", "late"]
    rows = {
        one.name: (value, stamp)
        for one, value, stamp in zip(second.series, second.values, second.timestamps, strict=True)
    }
    assert rows["late"] == (6.0, 1.95)
    assert rows["a"][0] == 2.0
    assert np.isnan(rows["a"][1])
    assert dict(second.series[0].labels) == {"engine": "0"}


def test_labels_added_by_prometheus_are_removed() -> None:
    instance = Instance({**LABELS, "pod": "exporter", "namespace": "monitoring"}, {1000: 1.0})
    common = {"pod": "exporter", "namespace": "monitoring"}
    renamed = [raw("a", (1000, 1.0), **common, exported_pod="p"), raw("a", (1000, 2.0), **common)]
    (page,) = PageBuilder().pages(renamed, instance, [1000])
    assert [dict(one.labels) for one in page.series] == [{"pod": "p"}, {}]
    honoured = [raw("a", (1000, 1.0), pod="p", namespace="monitoring"), raw("a", (1000, 2.0), pod="q", namespace="n")]
    (page,) = PageBuilder().pages(honoured, instance, [1000])
    assert [one.labels["pod"] for one in page.series] == ["p", "q"]


def test_layouts_are_shared_between_cycles() -> None:
    builder, instance = PageBuilder(), Instance(LABELS, {1000: 1.0, 2000: 1.0})
    first, second = builder.pages(
        [raw("a", (1000, 1.0), (2000, 1.0)), raw("b", (1000, 1.0), (2000, 1.0))], instance, [1000, 2000]
    )
    assert first.layout is second.layout


class Api:
    """Serves scripted responses of the HTTP API; ``fault`` makes it fail."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.series: dict[str, list] = {}
        self.requested: list[tuple[dict, str | None]] = []
        self.warnings: list[str] | bool = []
        self.warns_by = "warnings"

    async def query(self, request):
        fields = await request.post()
        self.requested.append((dict(fields), request.headers.get("X-Scope-OrgID")))
        if self.fault == "html":
            return web.Response(text="<html>", content_type="text/html")
        if self.fault == "error":
            return web.json_response({"status": "error", "error": "query timed out"}, status=503)
        if self.fault == "hang":
            await asyncio.Event().wait()
        query = fields["query"]
        if query.startswith("count by"):
            result = {"__name__": "vllm:num_requests_running", "job": "vllm"}
            return self.answer("vector", [{"metric": result, "value": [0, "1"]}])
        return self.answer("matrix", self.series["meta" if "scrape_" in query else "vllm"])

    async def targets(self, request):
        active = [
            {"labels": LABELS, "lastError": 'Get "http://x": dial tcp 10.0.0.1:8000: connect: connection refused'}
        ]
        return web.json_response({"status": "success", "data": {"activeTargets": active}})

    def answer(self, kind, result) -> web.Response:
        warned = {self.warns_by: self.warnings} if self.warnings else {}
        return web.json_response({"status": "success", "data": {"resultType": kind, "result": result}, **warned})


def matrix(name, *samples, **labels):
    return {
        "metric": {"__name__": name, **LABELS, **labels},
        "values": [[stamp, str(value)] for stamp, value in samples],
    }


def with_api(use, api, **options):
    async def run():
        app = web.Application()
        app.add_routes([web.post("/api/v1/query", api.query), web.get("/api/v1/targets", api.targets)])
        runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        source = PrometheusSource(f"http://127.0.0.1:{runner.addresses[0][1]}", cluster="test", **options)
        try:
            return await use(source)
        finally:
            await source.close()
            await runner.cleanup()

    return asyncio.run(run())


def cell(result, signal, *, last=True):
    batch = [one for one in result.batches if one.kind is EntityKind.REPLICA][-1 if last else 0]
    column = batch.keys.index(SignalKey(signal))
    status = CellStatus(int(batch.status[0, column]))
    return float(batch.values[0, column]) if status is CellStatus.PRESENT else status


def healthy_api() -> Api:
    api, start = Api(), AT.timestamp()
    api.series["meta"] = [
        matrix("up", (start - 20, 1), (start - 5, 1)),
        matrix("scrape_duration_seconds", (start - 20, 0.25), (start - 5, 0.5)),
        matrix("scrape_samples_scraped", (start - 20, 500), (start - 5, 501)),
    ]
    api.series["vllm"] = [
        matrix("vllm:generation_tokens_total", (start - 20, 100), (start - 5, 250), engine="0"),
        matrix("vllm:num_requests_running", (start - 20, 1), (start - 5, 2), engine="0"),
    ]
    return api


def test_a_cycle_gives_increases_at_once_and_every_scrape_once() -> None:
    api = healthy_api()

    async def use(source):
        first = await source.collect(AT)
        second = await source.collect(AT + timedelta(seconds=5))
        return first, second, source.health

    first, second, health = with_api(use, api)
    assert cell(first, "engine_generation_tokens_total") == 150
    assert cell(first, "engine_generation_tokens_per_second") == 10
    assert cell(first, "target_samples") == 501
    assert cell(first, "target_scrape_seconds") == 0.5
    assert cell(first, "engine_generation_tokens_total", last=False) is CellStatus.ABSENT
    assert not [one for one in second.batches if one.kind is EntityKind.REPLICA]
    assert [(one.target, one.up) for one in health] == [("prometheus", True), ("vllm/10.0.0.1:8000", True)]


def test_a_target_down_in_prometheus_is_a_failed_scrape() -> None:
    api = healthy_api()
    api.series["meta"][0] = matrix("up", (AT.timestamp() - 20, 1), (AT.timestamp() - 5, 0))

    async def use(source):
        return await source.collect(AT), source.health

    result, health = with_api(use, api, jobs={"vllm": "vllm"})
    assert cell(result, "engine_up") == 0
    assert cell(result, "target_failure_code") == 1
    assert health[1].reason == CollectReason.REFUSED


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("html", CollectReason.NOT_METRICS, "without JSON"),
        ("error", CollectReason.HTTP_STATUS, "query timed out"),
        ("hang", CollectReason.TIMEOUT, "did not respond within"),
    ],
)
def test_an_unreachable_prometheus_reports_nothing_of_its_targets(fault, reason, words) -> None:
    api = healthy_api()

    async def use(source):
        await source.collect(AT)
        api.fault = fault
        return await source.collect(AT + timedelta(seconds=15)), source.health

    result, health = with_api(use, api, timeout=timedelta(seconds=1))
    assert cell(result, "engine_up") is CellStatus.ABSENT
    assert cell(result, "target_up") is CellStatus.ABSENT
    watch = next(one for one in result.batches if one.entities[0].name == "prometheus")
    assert watch.values[0, 0] == 0
    assert health[0].reason == reason
    assert words in health[0].error


def _success(data: str) -> bytes:
    return b'{"status": "success", "data": ' + data.encode() + b"}"


MALFORMED = (
    *(b"[" * 200_000, b"null", b"[]", b"7", _success("[]"), _success("null"), _success("{}"), b'{"status": "success"}'),
    *(_success(f'{{"resultType": "{kind}"}}') for kind in ("matrix", "vector")),
    *(
        _success(f'{{"resultType": "{kind}", "result": {result}}}')
        for kind in ("matrix", "vector")
        for result in ("[1]", "{}", '"x"', "null", "[{}]", '[{"metric": []}]', '[{"metric": {"job": 1}}]')
    ),
    *(
        _success(f'{{"resultType": "matrix", "result": [{{"metric": {{"job": "vllm"}}, "values": {values}}}]}}')
        for values in ("1", "[1]", "[[1]]", '[["x", "1"]]', '[[1, "x"]]', "[[1, []]]", '[[1e999, "1"]]')
    ),
)


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: body[:90].decode()[30:])
@pytest.mark.parametrize("at_query", ["count by", "scrape_", "generation"])
def test_a_malformed_response_is_one_error(body, at_query) -> None:
    api = healthy_api()
    sound = api.query

    async def query(request):
        requested = (await request.post())["query"]
        return (
            web.Response(body=body, content_type="application/json") if at_query in requested else await sound(request)
        )

    api.query = query

    async def use(source):
        result = await source.collect(AT)
        with pytest.raises(CollectError):
            await source.newest_pages(AT)
        return result, source.health[0]

    result, health = with_api(use, api)
    watch = next(one for one in result.batches if one.entities[0].name == "prometheus")
    assert watch.values[0, 0] == 0
    assert (health.up, health.reason) == (False, CollectReason.NOT_METRICS)
    assert health.error.startswith("Prometheus at http://127.0.0.1:")
    assert "\n" not in health.error


def test_a_malformed_target_list_loses_only_the_reasons() -> None:
    api = healthy_api()
    api.series["meta"][0] = matrix("up", (AT.timestamp() - 20, 1), (AT.timestamp() - 5, 0))

    async def targets(request):
        return web.json_response({"status": "success", "data": {"activeTargets": [{"labels": []}]}})

    api.targets = targets

    async def use(source):
        return await source.collect(AT)

    assert cell(with_api(use, api, jobs={"vllm": "vllm"}), "engine_up") == 0


def test_a_missing_prometheus_is_reported() -> None:
    async def one():
        source = PrometheusSource("http://127.0.0.1:9", cluster="test", jobs={"a": "vllm"})
        try:
            return await source.collect(AT), source.health[0]
        finally:
            await source.close()

    result, health = asyncio.run(one())
    assert (health.up, health.reason) == (False, CollectReason.REFUSED)
    assert result.batches[0].values[0, 0] == 0


def test_the_first_signature_identifies_the_adapter_of_a_job() -> None:
    both = [{"job": "a", "__name__": name} for name in ("vllm:num_requests_running", "nv_inference_request_success")]
    other = {"job": "b", "metrics_path": "/m", "__name__": "tgi_queue_size"}
    result = first_marked([*both, other, {"job": "c", "__name__": "something"}])
    assert result == {("a", ""): "triton", ("b", "/m"): "tgi"}


def test_a_one_off_read_returns_the_newest_page_of_each_target() -> None:
    async def use(source):
        return await source.newest_pages(AT)

    (look,) = with_api(use, healthy_api())
    assert look.scrape.at == AT - timedelta(seconds=5)
    assert sorted(look.page.names) == ["vllm:generation_tokens_total", "vllm:num_requests_running"]


def test_a_job_with_the_wrong_adapter_is_not_a_healthy_engine() -> None:
    api = healthy_api()
    api.series["vllm"] = []  # the requested series do not exist

    async def use(source):
        return await source.collect(AT), source.health

    result, health = with_api(use, api, jobs={"vllm": "tgi"})
    assert cell(result, "engine_up") == 0
    assert "no metric of tgi; its metrics match vllm" in health[1].error
    assert "vllm: vllm" in health[1].hint


@pytest.mark.parametrize(("fault", "spans"), [("error", 3), ("hang", 3)])
def test_history_requests_less_after_a_refusal_and_reports_the_reason(fault, spans) -> None:
    api = healthy_api()
    api.fault = fault

    async def use(source):
        return [one async for one in source.history(AT + timedelta(hours=1))]

    with pytest.raises(CollectError, match=r"timed out|did not respond within"):
        with_api(use, api, since=AT, timeout=timedelta(seconds=0.2))
    assert len(api.requested) == spans  # an hour, a quarter of it, five minutes


def test_unknown_adapters_in_jobs_are_rejected() -> None:
    with pytest.raises(UsageError, match="unknown adapter 'vlm'"):
        PrometheusSource("http://x", cluster="c", jobs={"a": "vlm"})


# --- a real Prometheus ----------------------------------------------------------------------------


class Pages:
    """Serves an engine page with growing counters and records the served pages."""

    def __init__(self) -> None:
        self.served: list[bytes] = []

    async def metrics(self, request):
        n = len(self.served)
        stamp = int(time.time() * 1000) + 5  # never the very instant at which the scrape began, which says nothing
        text = "".join(
            f"{line} {stamp}\n"
            for line in (
                f'vllm:num_requests_running{{engine="0",model_name="m"}} {n % 3}',
                f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {100.5 * n}',
                f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {4 * n}',
                f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1"}} {n}',
                f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {2 * n}',
                f'vllm:time_to_first_token_seconds_sum{{engine="0"}} {n / 3}',
                f'vllm:time_to_first_token_seconds_count{{engine="0"}} {2 * n}',
                'vllm:cache_config_info{block_size="16",num_gpu_blocks="64"} 1',
            )
        )
        self.served.append(text.encode())
        return web.Response(body=self.served[-1], content_type="text/plain")


@contextmanager
def running(pages):
    loop, ready, port = asyncio.new_event_loop(), threading.Event(), free_port()

    async def start():
        app = web.Application()
        app.add_routes([web.get("/metrics", pages.metrics)])
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        ready.set()
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(runner.cleanup())
        loop.close()


@contextmanager
def prometheus(folder, target_port):
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "engines", "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    process = subprocess.Popen(
        [
            BINARY,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.skipif(BINARY is None, reason="missing: prometheus (Debian package of that name)")
def test_a_real_prometheus_gives_the_results_of_scraping(tmp_path) -> None:
    pages, clock = Pages(), SystemClock()

    async def read(url):
        source = PrometheusSource(url, cluster="test")
        result = []
        try:
            async with asyncio.timeout(60):
                while len(result) < 4:
                    collected = await source.collect(clock.now())
                    replicas = [batch for batch in collected.batches if batch.kind is EntityKind.REPLICA]
                    # A Prometheus on a busy machine misses a scrape: the values between are stale.
                    result += [batch for batch in replicas if not (batch.status == CellStatus.STALE).any()]
                    await asyncio.sleep(0.3)  # not more often: a collection may come before a scrape is complete
        finally:
            await source.close()
        return result, collected.topology

    with running(pages) as port, prometheus(tmp_path, port) as url:
        theirs, topology = asyncio.run(read(url))
    # Our own reading of the very pages that were served, at the instants Prometheus names.
    assert theirs[0].entities[0].name == f"127.0.0.1:{port}"
    assert [str(one) for one in topology.of_kind(EntityKind.SERVICE)] == ["service/default/engines"]
    stamps = [int(page.split()[-1]) / 1000 for page in pages.served]
    collector = ScrapeManager([target_of("test", {"name": "r", "adapter": "vllm"})])
    for batch in theirs:
        began = batch.scraped_at.timestamp()
        served = next(page for page, stamp in zip(pages.served, stamps, strict=True) if stamp >= began - 0.001)
        scrape = Scrape(collector.targets[0], batch.scraped_at, served, None, 0.0)
        (mine, *_) = collector.absorb([scrape], batch.scraped_at).batches
        engine = [column for column, key in enumerate(mine.keys) if key.name.startswith("engine_")]
        assert batch.status[0, engine].tolist() == mine.status[0, engine].tolist()
        assert batch.values[0, engine].tolist() == pytest.approx(mine.values[0, engine].tolist(), abs=1e-6, nan_ok=True)
    tokens = SignalKey("engine_generation_tokens_total")
    assert [batch.values[0, batch.keys.index(tokens)] for batch in theirs[1:]] == [100.5] * len(theirs[1:])


def test_every_adapter_with_a_unique_name_is_detected() -> None:
    unnamed = {"mindie", "nim", "obi"}
    packaged = (Path(registry.__file__).parents[1] / "adapters").glob("*.yaml")
    assert set(SIGNATURES) == {path.stem for path in packaged} - unnamed
    for name, metric in SIGNATURES.items():
        known = registry.adapter(name).metric_names
        assert any(re.fullmatch(one.removeprefix("~"), metric) for one in known), (name, metric)


def test_parameters_and_the_tenant_go_with_every_query() -> None:
    api = healthy_api()
    parameters = {"partial_response": "false", "max_source_resolution": "0"}
    with_api(
        lambda source: source.collect(AT), api, parameters=parameters, access=Access(headers={"X-Scope-OrgID": "team"})
    )
    assert len(api.requested) >= 3
    assert all(parameters.items() <= fields.items() and tenant == "team" for fields, tenant in api.requested)


@pytest.mark.parametrize(
    ("warns_by", "warning", "reported"),
    [
        ("warnings", ["receive: store 10.0.0.9 is unreachable"], "receive: store 10.0.0.9 is unreachable"),
        ("isPartial", True, "the response is partial"),
    ],
)
def test_a_partial_response_removes_no_target(warns_by, warning, reported) -> None:
    api = healthy_api()
    api.warns_by = warns_by
    other = [matrix("up", (AT.timestamp() - 5, 1), instance="10.0.0.2:8000")]
    api.series["meta"] += other

    async def use(source):
        await source.collect(AT)
        assert [one.name for one in source.targets] == ["vllm/10.0.0.1:8000", "vllm/10.0.0.2:8000"]
        del api.series["meta"][-1]
        api.warnings = warning
        with structlog.testing.capture_logs() as logs:
            partial = [await source.collect(AT + timedelta(seconds=number)) for number in (5, 10)]
        assert [one["warning"] for one in logs if one["event"] == "prometheus_warned"] == [reported]
        api.warnings = []
        return partial[-1], len(source.targets), await source.collect(AT + timedelta(seconds=15)), len(source.targets)

    partial, kept, whole, left = with_api(use, api)
    assert (kept, left) == (2, 1)
    lacking = [one for one in partial.batches if one.source == "vllm/10.0.0.2:8000"]
    assert lacking
    assert all(one.trust is TrustVerdict.FAILED for one in lacking)
    trusts = [next(one.trust for one in result.batches if one.source == "prometheus") for result in (partial, whole)]
    assert trusts == [TrustVerdict.PARTIAL, TrustVerdict.FRESH]


def test_native_histograms_are_skipped() -> None:
    api = healthy_api()
    sample = [AT.timestamp() - 5, {"count": "3", "sum": "1", "buckets": [[0, "0", "1", "3"]]}]
    native = {"metric": {"__name__": "vllm:num_requests_running", **LABELS, "engine": "9"}, "histograms": [sample]}
    api.series["vllm"].append(native)
    result = with_api(lambda source: source.collect(AT), api)
    assert cell(result, "engine_requests_running") == 2


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.skipif(BINARY is None, reason="missing: prometheus (Debian package of that name)")
def test_a_real_prometheus_ignores_unknown_parameters(tmp_path) -> None:
    async def read(url):
        async def up(**parameters):
            api = PrometheusApi(url, parameters=parameters)
            try:
                return await api.raw("up", timedelta(minutes=5), SystemClock().now())
            finally:
                await api.close()

        async def first_scrape():
            with contextlib.suppress(CollectError):
                return await up(partial_response="false", max_source_resolution="0", dedup="true")

        event = await until_async(first_scrape, "Prometheus has scraped the page")
        with pytest.raises(CollectError, match='invalid parameter "timeout"'):
            await up(timeout="1ns")
        return event

    with running(Pages()) as port, prometheus(tmp_path, port) as url:
        (event,) = asyncio.run(read(url))
    assert set(event.values) == {1.0}
