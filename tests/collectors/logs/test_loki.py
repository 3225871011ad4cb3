"""A scripted Loki HTTP API: paging, resuming, tenants and refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from collectors.events.unresolved_event import FIRST_LOOK
from collectors.logs import loki
from collectors.logs.loki import LokiLogs, origin_of
from collectors.net.http import HttpClient
from outrider.model import EntityKind, EntityRef
from outrider.wire.http_auth import Access
from tests.collectors.server import serving

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB."
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
QUERY = '{namespace="serving"}'


class Loki:
    """Streams and their entries; answers ``query_range`` as Loki 3 does, the line filter included."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, str], str]] = []
        self.requested: list[dict[str, str]] = []
        self.tenants: list[str | None] = []
        self.refuse: tuple[int, str] | None = None
        self.result_type = "streams"

    def say(self, expected: str, seconds: float = -10.0, pod: str = "chat-0", nanoseconds: int = 0) -> None:
        at = int((AT + timedelta(seconds=seconds)).timestamp()) * 10**9 + nanoseconds
        self.entries.append((at, {"namespace": "serving", "pod": pod, "container": "vllm"}, expected))

    async def answer(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.requested.append(query)
        self.tenants.append(request.headers.get("X-Scope-OrgID"))
        if self.refuse is not None:
            return web.Response(status=self.refuse[0], text=self.refuse[1])
        events = [one for one in self.entries if int(query["start"]) <= one[0] < int(query["end"])]
        wanted = re.search(r'\|~ "(.*)"$', query["query"])
        if wanted:
            pattern = re.compile(wanted[1].encode().decode("unicode_escape"))
            events = [one for one in events if pattern.search(one[2])]
        assert query["direction"] == "forward"
        events = sorted(events, key=lambda one: one[0])[: int(query["limit"])]
        streams: dict[str, dict[str, Any]] = {}
        for at, labels, expected in events:
            stream = streams.setdefault(labels["pod"], {"stream": labels, "values": []})
            stream["values"].append([str(at), expected])
        return web.json_response(
            {"status": "success", "data": {"resultType": self.result_type, "result": list(streams.values())}}
        )


def play(scene: Callable[[Loki, LokiLogs], Awaitable[None]], **given: Any) -> None:
    async def whole() -> None:
        server = Loki()
        async with serving([("/loki/api/v1/query_range", server.answer)]) as url:
            access = given.pop("access", Access())
            client = HttpClient("loki", url, timeout=timedelta(seconds=5), access=access)
            source = LokiLogs("loki", client, "c", QUERY, **given)
            try:
                await scene(server, source)
            finally:
                await source.close()

    asyncio.run(whole())


async def codes(source: LokiLogs, at: datetime = AT) -> list[str]:
    events, errors = await source.read(at, [])
    assert errors == []
    return [one.code for one in events]


def test_lines_are_read_once_and_reading_resumes() -> None:
    async def scene(server: Loki, source: LokiLogs) -> None:
        server.say(OOM, -120)
        server.say("INFO nothing of note", -110)
        server.say(DEAD, -100, pod="chat-1")
        assert await codes(source) == ["cuda_oom", "engine_dead"]
        assert int(server.requested[0]["start"]) == int((AT - FIRST_LOOK).timestamp()) * 10**9
        assert await codes(source) == []
        assert int(server.requested[-1]["start"]) > int((AT - timedelta(seconds=111)).timestamp()) * 10**9
        server.say(DEAD, -5)
        server.say("No space left on device", -105)  # came late, and is older than the newest by less than the overlap
        assert sorted(await codes(source)) == ["disk_full", "engine_dead"]
        assert await codes(source) == []

    play(scene)


def test_loki_filters_lines_unless_disabled() -> None:
    async def scene(server: Loki, source: LokiLogs) -> None:
        server.say(OOM)
        server.say("INFO nothing of note")
        assert await codes(source) == ["cuda_oom"]
        assert server.requested[0]["query"].startswith(f"{QUERY} |~ ")

    play(scene)

    async def plain(server: Loki, source: LokiLogs) -> None:
        server.say(OOM)
        assert await codes(source) == ["cuda_oom"]
        assert server.requested[0]["query"] == QUERY

    play(plain, prefilter=False)


def test_paging_loses_no_lines_of_one_nanosecond(monkeypatch: Any) -> None:
    monkeypatch.setattr(loki, "PAGE_LINES", 3)

    async def scene(server: Loki, source: LokiLogs) -> None:
        for number in range(8):
            server.say(OOM, -60, pod=f"chat-{number}", nanoseconds=number // 2)
        events, errors = await source.read(AT, [])
        assert errors == []
        assert sorted(one.entity.name for one in events) == [f"chat-{number}" for number in range(8)]
        assert len(server.requested) > 2

    play(scene)


def test_a_flood_is_continued_in_the_next_cycle(monkeypatch: Any) -> None:
    monkeypatch.setattr(loki, "PAGE_LINES", 2)
    monkeypatch.setattr(loki, "MOST_PAGES", 2)

    async def scene(server: Loki, source: LokiLogs) -> None:
        for number in range(12):
            server.say(OOM, -60 + number / 2, pod=f"chat-{number}")
        seen: set[str] = set()
        for _ in range(20):
            events, _ = await source.read(AT, [])
            seen |= {one.entity.name for one in events}
        assert seen == {f"chat-{number}" for number in range(12)}

    play(scene)


def test_a_tenant_is_a_header() -> None:
    async def scene(server: Loki, source: LokiLogs) -> None:
        await codes(source)
        assert server.tenants == ["team-a"]

    play(scene, access=Access(headers={"X-Scope-OrgID": "team-a"}))


def test_a_refusal_of_loki_is_an_error_with_advice() -> None:
    async def scene(server: Loki, source: LokiLogs) -> None:
        server.say(OOM)
        for status, words in ((400, "LogQL"), (401, "X-Scope-OrgID"), (429, "every"), (500, "log of Loki")):
            server.refuse = (status, "parse error at line 1")
            events, errors = await source.read(AT, [])
            assert events == []
            assert f"HTTP {status}: parse error" in errors[0].message
            assert words in errors[0].hint
        server.refuse = None
        server.result_type = "matrix"
        _, errors = await source.read(AT, [])
        assert "not log lines" in errors[0].message
        server.result_type = "streams"
        assert await codes(source) == ["cuda_oom"]  # nothing was lost

    play(scene)


def test_the_entity_of_a_stream() -> None:
    pod = EntityRef("c", EntityKind.POD, "serving", "chat-0")
    for labels in (
        {"namespace": "serving", "pod": "chat-0"},
        {"k8s_namespace_name": "serving", "k8s_pod_name": "chat-0"},
    ):
        assert origin_of(labels, "c").entity == pod
    service = origin_of({"service_name": "chat", "namespace": "serving"}, "c")
    assert service.entity == EntityRef("c", EntityKind.SERVICE, "serving", "chat")
    assert origin_of({}, "c").entity == EntityRef("c", EntityKind.CLUSTER, None, "c")
