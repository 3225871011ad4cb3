"""The completion probe against a streaming server and against each kind of failure."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from collectors.probes.base import ProbeRequest
from collectors.probes.completion import CompletionProbe, CompletionRequest
from collectors.probes.result import Outcome, ProbeResult
from outrider.model import EntityKind, EntityRef
from outrider.wire.http_auth import Access

AT = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)
SERVICE = EntityRef("test", EntityKind.SERVICE, "serving", "chat")
WORDS = ("January", ", February", ", March", ", April", ", May")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def endpoint(handler: Handler, **more: Handler):
    """A server whose ``/v1/chat/completions`` is ``handler``; yields the base of its API."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    app.router.add_post("/v1/completions", handler)
    for name, extra in more.items():
        app.router.add_get(f"/v1/{name}", extra)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def chunk(delta: object = None, *, finish: str | None = None, **more: object) -> bytes:
    """One line of a completion stream."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice], **more}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":%d}}\n\n'
DONE = b"data: [DONE]\n\n"
GOOD = (
    chunk({"role": "assistant", "content": ""}),
    *(chunk({"content": word}) for word in WORDS),
    chunk(finish="stop"),
    USAGE % 5,
    DONE,
)


def streaming(*pieces: bytes | float, hang: bool = False, slam: bool = False) -> Handler:
    """Sends pieces; a number is a pause in seconds."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for piece in pieces:
            if isinstance(piece, bytes):
                await response.write(piece)
            await asyncio.sleep(0 if isinstance(piece, bytes) else piece)
        if slam:
            assert request.transport is not None
            request.transport.abort()
        if hang:
            await asyncio.Event().wait()
        return response

    return handler


def run_probe(
    handler: Handler, *, seconds: float = 5, question: CompletionRequest | None = None, times: int = 1, **more
) -> ProbeResult:
    async def whole() -> ProbeResult:
        async with endpoint(handler, **more) as url:
            probe_request = ProbeRequest("chat", SERVICE, timeout=timedelta(seconds=seconds))
            probe = CompletionProbe(probe_request, url, question or CompletionRequest(model="m"))
            result = [await probe.run(AT) for _ in range(times)]
            return result[-1]

    return asyncio.run(whole())


def idle(seconds: float, **more) -> CompletionRequest:
    return CompletionRequest(model="m", idle=timedelta(seconds=seconds), **more)


def test_a_valid_completion_is_timed_per_token() -> None:
    result = run_probe(streaming(GOOD[0], 0.05, *(part for piece in GOOD[1:6] for part in (piece, 0.02)), *GOOD[6:]))
    assert (result.outcome, result.message, result.tokens, result.status) == (Outcome.OK, "", 5, 200)
    assert result.ttft_seconds is not None
    assert result.itl_seconds is not None
    assert result.e2e_seconds is not None
    assert 0.05 <= result.ttft_seconds < result.e2e_seconds
    assert result.itl_seconds >= 0.02
    assert result.e2e_seconds >= result.ttft_seconds + 4 * result.itl_seconds - 0.001
    assert result.at == AT


def test_the_request_is_short_streamed_and_counted() -> None:
    seen: list[dict] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        seen.append({"token": request.headers.get("Authorization"), "path": request.path})
        return await streaming(*GOOD)(request)

    async def whole() -> None:
        async with endpoint(handler) as url:
            access = Access(headers={"Authorization": "Bearer x"})
            extra = {"stream_options": None, "top_k": 1}
            probe = CompletionProbe(
                ProbeRequest("a", SERVICE, access=access), url, CompletionRequest("m", max_tokens=7, extra=extra)
            )
            assert (await probe.run(AT)).outcome is Outcome.OK
            text = CompletionProbe(
                ProbeRequest("a", SERVICE), url, CompletionRequest("m", api="completions", prompt="Once")
            )
            await text.run(AT)

    asyncio.run(whole())
    chat, first, text, second = seen
    assert chat == {
        "model": "m",
        "max_tokens": 7,
        "stream": True,
        "temperature": 0,
        "top_k": 1,
        "messages": [{"role": "user", "content": "Name the months of the year."}],
    }
    assert first == {"token": "Bearer x", "path": "/v1/chat/completions"}
    assert (text["prompt"], text["stream_options"]) == ("Once", {"include_usage": True})
    assert second["path"] == "/v1/completions"


async def refuses(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "The engine is dead."}}, status=503)


async def old_style(request: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "error", "message": "no such model"}, status=404)


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def page(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>Welcome</html>", content_type="text/html")


async def nothing(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"", content_type="application/json")


def test_no_response_differs_from_a_response_without_tokens() -> None:
    silent = run_probe(never, seconds=0.2)
    hung = run_probe(streaming(chunk({"role": "assistant", "content": ""}), b": ping\n\n", hang=True), seconds=1)
    assert silent.outcome is Outcome.TIMEOUT
    assert (silent.status, silent.tokens) == (None, None)
    assert hung.outcome is Outcome.NO_GENERATION
    assert (hung.status, hung.tokens, hung.ttft_seconds) == (200, 0, None)
    assert "returned 200 and generated no token within 1s" in hung.message


def test_keep_alive_comments_are_not_tokens() -> None:
    pings = [part for _ in range(20) for part in (b": ping\n\n", 0.02)]
    assert run_probe(streaming(*pings, hang=True), seconds=1).outcome is Outcome.NO_GENERATION
    stalled = run_probe(streaming(chunk({"content": "January"}), *pings, hang=True), question=idle(0.15))
    assert stalled.outcome is Outcome.STALLED
    assert "stopped after 1 token and" in stalled.message


def test_a_stream_that_stops_after_some_tokens_has_stalled() -> None:
    result = run_probe(streaming(*GOOD[:4], hang=True), question=idle(0.15))
    assert result.outcome is Outcome.STALLED
    assert result.tokens == 3
    assert result.ttft_seconds is not None


def test_a_stream_still_running_at_the_timeout() -> None:
    slow = [part for number in range(100) for part in (chunk({"content": f"w{number} "}), 0.05)]
    result = run_probe(streaming(*slow), seconds=1.5, question=idle(1))
    assert result.outcome is Outcome.UNFINISHED
    assert result.tokens is not None
    assert result.tokens > 1
    assert result.outcome.success is False


def test_a_slow_completion_is_a_reported_success() -> None:
    late = streaming(0.15, *GOOD)
    first = run_probe(late, question=CompletionRequest("m", ttft_limit=timedelta(seconds=0.1)))
    whole = run_probe(late, question=CompletionRequest("m", total_limit=timedelta(seconds=0.1)))
    assert (first.outcome, whole.outcome) == (Outcome.SLOW_FIRST_TOKEN, Outcome.SLOW)
    assert first.outcome.success is True
    assert run_probe(late, question=CompletionRequest("m", ttft_limit=timedelta(seconds=5))).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("handler", "outcome", "expected"),
    [
        (refuses, Outcome.HTTP_STATUS, "returned 503: The engine is dead."),
        (old_style, Outcome.HTTP_STATUS, "returned 404: no such model"),
        (page, Outcome.WRONG_ANSWER, "not JSON"),
        (nothing, Outcome.NO_GENERATION, "returned 200 with an empty body"),
        (streaming(), Outcome.NO_GENERATION, "ended without a token"),
        (streaming(chunk({"content": ""}), chunk(finish="stop"), DONE), Outcome.EMPTY, "is empty"),
        (streaming(DONE), Outcome.EMPTY, "is empty"),
        (streaming(*GOOD[:3]), Outcome.BROKEN_OFF, "ended its stream early, after 2 tokens"),
        (streaming(*GOOD[:3], slam=True), Outcome.BROKEN_OFF, "closed the connection early"),
        (streaming(b"data: {nonsense\n\n"), Outcome.WRONG_ANSWER, "not JSON"),
        (streaming(b"data: [1]\n\n"), Outcome.WRONG_ANSWER, "not a completion"),
        (streaming(GOOD[1], b'data: {"error":{"message":"EngineCore died","code":500}}\n\n', DONE),
         Outcome.STREAM_ERROR, "EngineCore died"),
        (streaming(b'event: error\ndata: {"message":"overloaded"}\n\n'), Outcome.STREAM_ERROR, "overloaded"),
        (streaming(b"event: error\ndata: gone\n\n"), Outcome.STREAM_ERROR, "gone"),
        (streaming(chunk({"content": "!" * 60}), chunk(finish="length"), DONE), Outcome.REPEATED, "repeated"),
        (streaming(chunk({"content": "ab\ufffd\ufffd\ufffd\ufffd\ufffd"}), chunk(finish="stop")),
         Outcome.GARBLED, "garbled"),
        (streaming(*[chunk({"content": "x" * 60_000})] * 30), Outcome.WRONG_ANSWER, "more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_each_failure_has_its_outcome(handler: Handler, outcome: Outcome, expected: str) -> None:
    result = run_probe(handler)
    assert (result.outcome, result.outcome.success) == (outcome, False)
    assert expected in result.message
    assert "\n" not in result.message


@pytest.mark.parametrize(
    "pieces",
    [
        [b"".join(GOOD).replace(b"\n", b"\r\n")],
        [b"\xef\xbb\xbf" + b"".join(GOOD)],
        [bytes([byte]) for byte in b"".join(GOOD)],
        [b": OPENROUTER PROCESSING\n\n", *GOOD],
        [b"".join(GOOD).removesuffix(b"\n\n")],  # the last event without its empty line
        [b"id: 1\nevent: message\nretry: 10\n" + GOOD[1], *GOOD[2:]],
        [GOOD[1].replace(b', "delta"', b',\ndata: "delta"'), *GOOD[2:]],  # one event in two data lines
        list(GOOD[:-1]),  # no [DONE], but a reason to finish
        [chunk({"reasoning_content": "Let me think of months."}), chunk(finish="length"), DONE],
        [chunk({"reasoning": "Let me think of months."}), chunk(finish="length"), DONE],
        [chunk({"tool_calls": [{"index": 0, "function": {"name": "months", "arguments": ""}}]}),
         chunk(finish="tool_calls"), DONE],
        [b'data: {"choices":[{"text":"January, February"}]}\n\n', DONE],
    ],
)  # fmt: skip
def test_streams_of_every_dialect_are_read(pieces: list[bytes]) -> None:
    assert run_probe(streaming(*pieces)).outcome is Outcome.OK


def test_a_response_without_streaming_has_no_ttft() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        message = {"role": "assistant", "content": "January, February, March"}
        choice = {"message": message, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": 6}})

    result = run_probe(handler)
    assert (result.outcome, result.tokens, result.ttft_seconds, result.itl_seconds) == (Outcome.OK, 6, None, None)


def test_a_single_chunk_has_no_inter_token_latency() -> None:
    assert run_probe(streaming(b"".join(GOOD))).itl_seconds is None


def test_expected_text_in_the_completion() -> None:
    assert (
        run_probe(streaming(*GOOD), question=CompletionRequest("m", expect=re.compile("(?i)february"))).outcome
        is Outcome.OK
    )
    assert (
        run_probe(streaming(*GOOD), question=CompletionRequest("m", expect=re.compile("Paris"))).outcome
        is Outcome.WRONG_ANSWER
    )


def test_the_first_listed_model_is_the_default() -> None:
    probe_request: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        probe_request.append((await request.json())["model"])
        return await streaming(*GOOD)(request)

    listed: list[int] = []

    async def models(request: web.Request) -> web.StreamResponse:
        listed.append(1)
        return web.json_response({"data": [{"id": "llama-70b"}, {"id": "lora"}]})

    assert run_probe(handler, question=CompletionRequest(), models=models, times=3).outcome is Outcome.OK
    assert (probe_request, len(listed)) == (["llama-70b"] * 3, 1)

    async def none(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": []})

    result = run_probe(handler, question=CompletionRequest(), models=none)
    assert (result.outcome, "set model of the probe" in result.message) == (Outcome.WRONG_ANSWER, True)


def test_refused_connection_and_unknown_host() -> None:
    async def whole(url: str, access: Access | None = None) -> ProbeResult:
        probe_request = ProbeRequest("a", SERVICE, timeout=timedelta(seconds=5), access=access or Access())
        return await CompletionProbe(probe_request, url, CompletionRequest("m")).run(AT)

    assert asyncio.run(whole("http://127.0.0.1:1/v1")).outcome is Outcome.REFUSED
    assert asyncio.run(whole("http://no-such-host.invalid/v1")).outcome is Outcome.DNS


def test_an_unreadable_local_token_is_not_a_service_failure(tmp_path) -> None:
    async def whole() -> ProbeResult:
        access = Access(bearer_token_file=tmp_path / "no-token")
        return await CompletionProbe(
            ProbeRequest("a", SERVICE, access=access), "http://127.0.0.1:1", CompletionRequest("m")
        ).run(AT)

    result = asyncio.run(whole())
    assert (result.outcome, result.outcome.success) == (Outcome.NOT_SENT, None)
    assert "no-token" in result.message


def test_probe_addresses() -> None:
    def address(url: str, **more) -> str:
        return CompletionProbe(ProbeRequest("a", SERVICE), url, CompletionRequest("m", **more)).address

    assert address("https://chat.example") == "https://chat.example/v1/chat/completions"
    assert address("https://chat.example/v1/") == "https://chat.example/v1/chat/completions"
    assert address("https://chat.example/api", api="completions") == "https://chat.example/api/completions"
    assert address("https://chat.example/x/chat/completions") == "https://chat.example/x/chat/completions"
