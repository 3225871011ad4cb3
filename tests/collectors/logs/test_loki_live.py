"""A real Loki with tenants: lines pushed to it come back as events. Debian has no Loki, so most machines skip this."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml

from collectors.logs.loki import LokiLogs
from collectors.net.http import HttpClient
from outrider.clock import SystemClock
from outrider.wire.http_auth import Access
from tests.support.ports import free_port
from tests.support.waiting import until

PROGRAM = shutil.which("loki")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(PROGRAM is None, reason="no loki on the PATH, and no Debian package brings one"),
]
QUERY = '{namespace="serving", container="vllm"}'
OOM = 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. "quoted" \\ and 100% full'
START = "INFO 11-18 12:01:02 [gpu_model_runner.py:3480] Graph capturing finished in 8 secs, took 0.31 GiB"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("loki")
    port, grpc = free_port(), free_port()
    config = {
        "auth_enabled": True,
        "server": {"http_listen_address": "127.0.0.1", "http_listen_port": port, "grpc_listen_address": "127.0.0.1",
                   "grpc_listen_port": grpc, "log_level": "error"},
        "common": {
            "instance_addr": "127.0.0.1",
            "path_prefix": str(folder),
            "storage": {"filesystem": {"chunks_directory": f"{folder}/chunks", "rules_directory": f"{folder}/rules"}},
            "replication_factor": 1,
            "ring": {"kvstore": {"store": "inmemory"}},
        },
        "schema_config": {"configs": [{
            "from": "2020-10-24", "store": "tsdb", "object_store": "filesystem", "schema": "v13",
            "index": {"prefix": "index_", "period": "24h"},
        }]},
        "analytics": {"reporting_enabled": False},
    }  # fmt: skip
    (folder / "loki.yaml").write_text(yaml.safe_dump(config))
    assert PROGRAM is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, f"-config.file={folder}/loki.yaml"], stdout=log, stderr=log, cwd=folder)
    base = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            return httpx.get(f"{base}/ready").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        until(ready, "Loki is ready")
        yield base
    finally:
        process.kill()
        process.wait()


def push(url: str, at: datetime, *lines: str, pod: str = "chat-0", tenant: str = "team-a") -> None:
    first = int(at.timestamp() * 1e9)
    values = [[str(first + place), expected] for place, expected in enumerate(lines)]
    stream = {"namespace": "serving", "pod": pod, "container": "vllm"}
    body = {"streams": [{"stream": stream, "values": values}]}
    answer = httpx.post(f"{url}/loki/api/v1/push", json=body, headers={"X-Scope-OrgID": tenant})
    assert answer.status_code == 204, answer.text


def reader(url: str, query: str = QUERY, tenant: str = "team-a", **more: bool) -> LokiLogs:
    headers = {"X-Scope-OrgID": tenant} if tenant else {}
    client = HttpClient("loki", url, timeout=timedelta(seconds=10), access=Access(headers=headers))
    return LokiLogs("loki", client, "c", query, **more)


def test_lines_of_a_tenant_are_read_once(url: str) -> None:
    async def whole() -> None:
        source, other, plain = reader(url), reader(url, tenant="team-b"), reader(url, prefilter=False)
        now = SystemClock().now()
        push(url, now - timedelta(seconds=60), "INFO nothing of note", OOM, START)
        push(url, now - timedelta(seconds=50), "vllm.v1.engine.exceptions.EngineDeadError: EngineCore", pod="chat-1")
        try:
            for one in (source, plain):  # with Loki's own filter and without
                events, errors = await one.read(now, [])
                assert errors == []
                assert {(seen.code, seen.entity.name) for seen in events} == {
                    ("cuda_oom", "chat-0"), ("engine_dead", "chat-1"),
                }  # fmt: skip
                assert [(pod, mark.phase) for _, pod, mark in one.lines.drain_marks()] == [("chat-0", "graph_capture")]
            assert await source.read(now, []) == ([], [])
            push(url, now - timedelta(seconds=1), "[Errno 28] No space left on device")
            events, errors = await source.read(SystemClock().now(), [])
            assert ([seen.code for seen in events], errors) == (["disk_full"], [])
            assert await other.read(now, []) == ([], [])
        finally:
            for one in (source, other, plain):
                await one.close()

    asyncio.run(whole())


def test_refusals_of_a_real_loki(url: str) -> None:
    async def whole() -> None:
        now = SystemClock().now()
        for source, expected_text in (
            (reader(url, tenant=""), "X-Scope-OrgID"),
            (reader(url, query="{namespace="), "LogQL"),
            (reader(url, query='sum(rate({namespace="serving"}[1m]))', prefilter=False), "log query"),
        ):
            events, (error,) = await source.read(now, [])
            await source.close()
            assert events == []
            assert expected_text in error.hint

    asyncio.run(whole())
