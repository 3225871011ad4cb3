"""Logs of model servers: selected pods, patterns, bursts, restarts and permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.events.unresolved_event import EntityResolver, UnresolvedEvent
from collectors.logs.engine_log import EngineLogs, PodLog, pod_log, stamped
from collectors.logs.patterns import packaged
from outrider.model import EntityKind, EntityRef, EventKind
from outrider.topology import Topology
from tests.collectors.api_server import ApiServer, api_server

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
POD = EntityRef("c", EntityKind.POD, "serving", "chat-0")
PODS, LOG = "/api/v1/pods", "/api/v1/namespaces/serving/pods/chat-0/log"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 212.50 MiB is free. Including non-PyTorch memory, this process has 78.89 GiB memory in use. Of the "
    "allocated memory 77.30 GiB is allocated by PyTorch, and {} is reserved by PyTorch but unallocated."
)
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."


def pod(restarts: int = 0, uid: str = "p1", name: str = "chat-0", limit: str = "nvidia.com/gpu") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "serving", "uid": uid},
        "spec": {
            "containers": [
                {"name": "proxy"},
                {"name": "vllm", "resources": {"limits": {limit: "2"}}},
            ]
        },
        "status": {
            "containerStatuses": [
                {"name": "proxy", "restartCount": 9, "state": {"running": {}}},
                {"name": "vllm", "restartCount": restarts, "state": {"running": {}}},
            ]
        },
    }


def line(text: str, seconds: float = 0.0) -> str:
    return f"{AT + timedelta(seconds=seconds - 60):%Y-%m-%dT%H:%M:%S.%f}000Z {text}\n"


def play(scene: Callable[[ApiServer, EngineLogs], Awaitable[None]], **given_: Any) -> None:
    async def whole() -> None:
        async with api_server() as (server, api):
            await scene(server, EngineLogs("engine_log", api, "c", **given_))

    asyncio.run(whole())


async def read(source: EngineLogs) -> list[UnresolvedEvent]:
    result, errors = await source.read(AT, [])
    assert errors == []
    return result


# --- lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        (OOM.format("341.02 MiB"), "cuda_oom"),
        (OOM.format("9.71 GiB"), "memory_fragmented"),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB", "cuda_oom"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, N=1)", "nccl_timeout"),
        ("RuntimeError: NCCL error: unhandled system error", "nccl_error"),
        (DEAD, "engine_dead"),
        ("AsyncEngineDeadError: Background loop has errored already.", "engine_dead"),
        ("Scheduler hit an exception: Traceback (most recent call last):", "engine_dead"),
        ("OSError: Error no file named model.safetensors found in directory /models", "weights_missing"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/m/model-00001.safetensors'", "weights_missing"),
        ("safetensors_rust.SafetensorError: Error while deserializing header", "weights_corrupt"),
        ("ValueError: Model architectures ['NewLM'] are not supported for now.", "weights_wrong"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_error"),
        ("RuntimeError: No CUDA GPUs are available", "gpu_missing"),
        ("vllm: error: unrecognized arguments: --max-num-seq", "flags_wrong"),
        ("INFO 11-18 12:00:00 [loggers.py:123] Engine 000: Avg generation throughput: 812.4 tokens/s", None),
        ('INFO: 10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 200 OK', None),
        ("WARNING: prompt mentions out of memory and NCCL", None),
    ],
)  # fmt: skip
def test_log_lines_match_their_patterns(expected: str, code: str | None) -> None:
    result = packaged("engine_log").find(expected)
    assert (result[0] if result else None) == code


def test_numbers_of_a_log_line_become_attributes() -> None:
    result = packaged("engine_log").find(OOM.format("341.02 MiB"))
    assert result == ("cuda_oom", {"asked": "1.25 GiB", "free": "212.50 MiB", "unallocated": "341.02 MiB"})


@given(st.text())
def test_arbitrary_logs_do_not_raise(text: str) -> None:
    log = PodLog(POD, "p1", "vllm", 0)
    for one in log.new_events(text + "\n" + line(text), AT):
        assert one.at <= AT
    assert list(stamped(""))[:0] == []


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x), max_leaves=8))  # fmt: skip  # noqa: E501
def test_arbitrary_pods_do_not_raise(anything: Any) -> None:
    for result in (
        {"metadata": anything, "spec": anything, "status": anything},
        {**pod(), "spec": {"containers": [{"name": "vllm", "resources": anything}]}},
        {**pod(), "status": {"containerStatuses": [{"name": "vllm", "state": anything, "restartCount": anything}]}},
    ):
        pod_log(result, "c")


def test_a_burst_is_one_event_and_the_next_failure_is_another() -> None:
    log = PodLog(POD, "p1", "vllm", 0)
    text = line(DEAD, 0) + line(DEAD, 0.5) + line(OOM.format("1.00 MiB"), 1) + line(DEAD, 30)
    assert [one.code for one in log.new_events(text, AT)] == ["engine_dead", "cuda_oom"]
    later = AT + timedelta(minutes=5)
    assert [one.code for one in log.new_events(line(DEAD, 300), later)] == ["engine_dead"]


# --- pods -----------------------------------------------------------------------------------------


def test_logs_of_gpu_pods_give_events_of_their_replica() -> None:
    async def scene(server: ApiServer, source: EngineLogs) -> None:
        server.objects = {PODS: [pod(), pod(uid="p2", name="web-0", limit="cpu"), pod(uid="p3", name="npu-0", limit="huawei.com/Ascend910")]}  # fmt: skip  # noqa: E501
        server.logs = {LOG: line("fine", 0) + line(DEAD, 1)}
        (event,) = await read(source)
        assert (event.kind, event.code, event.at) == (EventKind.LOG, "engine_dead", AT - timedelta(seconds=59))
        assert event.attributes["text"] == DEAD
        replica = EntityRef("c", EntityKind.REPLICA, "serving", "chat-0")
        other = EntityRef("c", EntityKind.REPLICA, "serving", "10.0.0.1:8000")
        assert EntityResolver().entity(event) == replica
        assert EntityResolver(Topology.build([(POD, other)])).entity(event) == other
        requested = {path: query for path, query in server.requested if path.endswith("/log")}
        assert {path.split("/")[-2] for path in requested} == {"chat-0", "npu-0"}
        assert requested[LOG]["container"] == "vllm"
        assert requested[LOG]["sinceTime"] == "2026-11-18T11:15:00Z"

    play(scene)


def test_repeated_lines_are_read_once() -> None:
    async def scene(server: ApiServer, source: EngineLogs) -> None:
        server.objects = {PODS: [pod()]}
        server.logs = {LOG: line("fine", 0.2) + line(DEAD, 0.4)}
        assert len(await read(source)) == 1
        server.logs = {LOG: line(DEAD, 0.4) + line(OOM.format("1.00 MiB"), 0.4) + line("NCCL error", 0.9)}
        assert [one.code for one in await read(source)] == ["cuda_oom", "nccl_error"]
        assert await read(source) == []
        assert server.requested[-1][1]["sinceTime"] == "2026-11-18T11:59:00Z"

    play(scene)


def test_the_log_of_the_previous_process_is_read_after_a_restart() -> None:
    async def scene(server: ApiServer, source: EngineLogs) -> None:
        server.objects = {PODS: [pod()]}
        server.logs = {LOG: line("fine", 0)}
        assert await read(source) == []
        server.tell(PODS, "MODIFIED", pod(restarts=1))
        server.logs = {LOG: line("starting", 9), LOG + "?previous": line("fine", 0) + line(DEAD, 5)}
        assert [one.code for one in await read(source)] == ["engine_dead"]
        assert await read(source) == []
        previous = [query for _, query in server.requested if query.get("previous")]
        assert len(previous) == 1

    play(scene)


def test_each_pod_has_its_own_log() -> None:
    async def scene(server: ApiServer, source: EngineLogs) -> None:
        server.objects = {PODS: [pod()]}
        server.logs = {LOG: line(DEAD, 0)}
        first = await read(source)
        server.tell(PODS, "DELETED", pod())
        server.tell(PODS, "ADDED", pod(uid="p2"))
        server.logs = {LOG: line(DEAD, 1)}
        second = await read(source)
        assert len(first) == len(second) == 1
        assert first[0].key != second[0].key
        server.logs = {}
        assert await read(source) == []
        requested = len(server.requested)
        assert await read(source) == []
        assert len(server.requested) == requested + 1  # the pod is known to be gone

    play(scene)


def test_a_selector_and_a_container_limit_the_logs() -> None:
    async def scene(server: ApiServer, source: EngineLogs) -> None:
        server.objects = {"/api/v1/namespaces/a/pods": [pod(limit="cpu")]}
        server.logs = {LOG: line(DEAD, 0)}
        assert len(await read(source)) == 1
        assert server.requested[0] == ("/api/v1/namespaces/a/pods", {"labelSelector": "app=chat", "limit": "500"})
        assert {query["container"] for _, query in server.requested[1:]} == {"proxy"}

    play(scene, namespaces=["a"], label_selector="app=chat", container="proxy")


def test_a_forbidden_log_is_reported_and_waiting_pods_are_not() -> None:
    async def scene(server: ApiServer, source: EngineLogs) -> None:
        waiting = pod(uid="p2", name="chat-1")
        waiting["status"] = {"containerStatuses": [{"name": "vllm", "state": {"waiting": {}}, "lastState": {}}]}
        server.objects = {PODS: [pod(), waiting]}
        server.forbidden = {LOG}
        result, (error,) = await source.read(AT, [])
        assert result == []
        assert "the log request of pod chat-0 returned HTTP 403" in error.message
        assert "pods/log" in error.hint

    play(scene)
