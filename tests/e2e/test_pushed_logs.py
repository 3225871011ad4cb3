"""Logs from the official OpenTelemetry exporter, over a real socket, in the change log."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import uvicorn
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from outrider.clock import SystemClock
from outrider.model import EntityKind
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings
from store.memory import MemoryChangeLog, MemoryMetricStore, MemoryStateStore

ABOUT = {"k8s.namespace.name": "serving", "k8s.pod.name": "chat-0", "k8s.container.name": "vllm"}


@pytest.fixture
def ledger() -> MemoryChangeLog:
    return MemoryChangeLog()


@pytest.fixture
def url(ledger: MemoryChangeLog) -> Iterator[str]:
    app = create_app(MemoryStateStore(), MemoryMetricStore(), ApiSettings(token="secret"), ApiExtras(change_log=ledger))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    with contextlib.closing(server.config.bind_socket()) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/api/v1/otlp/v1/logs"
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_logs_of_the_official_exporter_are_received(
    url: str, ledger: MemoryChangeLog, compression: Compression
) -> None:
    exporter = OTLPLogExporter(url, headers={"Authorization": "Bearer secret"}, compression=compression)
    provider = LoggerProvider(resource=Resource(ABOUT))
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    now = SystemClock().now()
    stamp = int(now.timestamp() * 1e9)
    for line in ("INFO all is well", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB."):
        provider.get_logger("vllm").emit(LogRecord(timestamp=stamp, body=line))
    provider.shutdown()
    ((_, event),) = ledger.posted(0, now - timedelta(minutes=1))
    assert (event.code, event.source, event.attributes["asked"]) == ("cuda_oom", "otlp_logs", "1.25 GiB")
    assert (event.entity.kind, event.entity.namespace, event.entity.name) == (EntityKind.POD, "serving", "chat-0")
    assert abs(event.at - now) < timedelta(seconds=1)
