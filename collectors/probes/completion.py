"""Completion probe: a short prompt to an OpenAI-compatible endpoint, with a streamed response.

It distinguishes a service that returns 200 without generating (a hung engine behind a live server) from a slow one.
The first token is the first chunk with content; a keep-alive comment does not count. One probe costs at most
``max_tokens`` generated tokens plus those of the prompt.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import aiohttp

from collectors.probes.base import CLIENT_ERRORS, ProbeError, ProbeRequest, new_session, probe_error
from collectors.probes.completion_parser import Completion
from collectors.probes.http import within_time
from collectors.probes.result import Outcome, ProbeResult
from collectors.probes.sse import EventStream
from collectors.probes.tls import certificate_seconds_left, expiry_problem
from collectors.probes.validity import PROMPT, validity_of
from outrider.text.i18n import fill
from outrider.vocabulary.units import format_duration

MOST_BYTES = 1024 * 1024
_MAX_DETAIL = 200


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Request of the probe. ``model`` None: the first one listed by ``/models``.

    ``ttft_limit`` and ``total_limit`` mark a response as slow; ``idle`` is the longest gap between two tokens.
    ``expect`` is searched in the response. ``extra`` is added to the request; a key with None is removed from it.
    """

    model: str | None = None
    prompt: str = PROMPT
    max_tokens: int = 16
    api: Literal["chat", "completions"] = "chat"
    ttft_limit: timedelta | None = None
    total_limit: timedelta | None = None
    idle: timedelta = timedelta(seconds=5)
    expect: re.Pattern[str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Exchange:
    """Progress of one probe, in times of the event loop's clock."""

    begun: float
    answer: Completion
    status: int | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None

    def record_token(self, at: float) -> None:
        self.first = at if self.first is None else self.first
        self.last = at


class CompletionProbe:
    """Probes one model at one endpoint."""

    def __init__(self, request: ProbeRequest, url: str, completion: CompletionRequest | None = None) -> None:
        """``url`` is the base of the API, such as https://chat.example/v1, or the full path."""
        self._settings, self._completion = request, completion or CompletionRequest()
        self.name, self.service, self.every, self.timeout = (
            request.name,
            request.service,
            request.every,
            request.timeout,
        )
        self._base = _base(url)
        self.address = url if _is_whole(url) else self._base + _PATHS[self._completion.api]
        self._model = self._completion.model

    async def run(self, at: datetime) -> ProbeResult:
        """Sends one prompt over a new connection, and checks the certificate beside it."""
        loop = asyncio.get_running_loop()
        exchange = _Exchange(loop.time(), Completion(self.address))
        looking = asyncio.create_task(certificate_seconds_left(self.address, self._settings.access, at))
        error, deadline = None, loop.time() + self.timeout.total_seconds()
        try:
            async with asyncio.timeout_at(deadline):
                await self._exchange(exchange)
        except TimeoutError as cause:
            error = (
                self._timeout_error(exchange)
                if loop.time() >= deadline
                else probe_error(cause, self.address, self.timeout)
            )
        except CLIENT_ERRORS as cause:
            error = probe_error(cause, self.address, self.timeout)
        except asyncio.CancelledError:
            looking.cancel()
            raise
        finally:
            seconds = (exchange.ended or loop.time()) - exchange.begun
            left = await within_time(looking, deadline - loop.time())
        error = (
            error or self._problem(exchange, seconds) or expiry_problem(left, self._settings.cert_left, self.address)
        )
        outcome, message = (Outcome.OK, "") if error is None else (error.outcome, error.message)
        is_successful = exchange.status is not None and exchange.status < 300
        return ProbeResult(
            outcome,
            at,
            message,
            seconds,
            ttft_seconds=None if exchange.first is None else exchange.first - exchange.begun,
            itl_seconds=_gap(exchange),
            tokens=exchange.answer.counted if is_successful else None,
            cert_expiry_seconds=left,
            status=exchange.status,
        )

    async def _exchange(self, exchange: _Exchange) -> None:
        access = self._settings.access
        options: dict[str, Any] = {
            "headers": access.sent(),
            "ssl": access.trust(),
            "server_hostname": access.server_name,
            "allow_redirects": False,
        }
        async with new_session() as client:
            if self._model is None:
                self._model = await self._first_model(client, options)
                exchange.begun = asyncio.get_running_loop().time()  # the model lookup is not part of the response time
            async with client.post(self.address, json=self._request(), **options) as response:
                exchange.status = response.status
                if response.status != 200:
                    self._model = self._completion.model  # the model may have been removed: look it up again
                    raise ProbeError(Outcome.HTTP_STATUS, await _why(response, self.address), response.status)
                if "event-stream" in response.headers.get("Content-Type", ""):
                    await self._stream(response, exchange)
                else:
                    await self._whole(response, exchange)

    def _request(self) -> dict[str, Any]:
        completion = self._completion
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": completion.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        if completion.api == "chat":
            body["messages"] = [{"role": "user", "content": completion.prompt}]
        else:
            body["prompt"] = completion.prompt
        return {name: value for name, value in {**body, **completion.extra}.items() if value is not None}

    async def _first_model(self, client: aiohttp.ClientSession, options: Mapping[str, Any]) -> str:
        url = self._base + "/models"
        async with client.get(url, **options) as response:
            if response.status != 200:
                raise ProbeError(Outcome.HTTP_STATUS, await _why(response, url), response.status)
            body = await response.content.read(MOST_BYTES)
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise ProbeError(Outcome.WRONG_ANSWER, f"{url} lists no model; set model of the probe") from error

    async def _stream(self, response: aiohttp.ClientResponse, exchange: _Exchange) -> None:
        loop, events, answer, size = asyncio.get_running_loop(), EventStream(), exchange.answer, 0
        while not answer.done:
            piece = await self._next(response, exchange)
            now = loop.time()
            size += len(piece)
            if size > MOST_BYTES:
                message = f"{self.address} sends more than {MOST_BYTES} bytes for {self._completion.max_tokens} tokens"
                raise ProbeError(Outcome.WRONG_ANSWER, message)
            for event in events.feed(piece) if piece else events.end():
                if answer.take(event):
                    exchange.record_token(now)
            if not piece:
                break
        exchange.ended = loop.time()

    async def _next(self, response: aiohttp.ClientResponse, exchange: _Exchange) -> bytes:
        """The next chunk; b"" at the end. Raises ProbeError if no more tokens arrive."""
        if exchange.last is None:
            return await response.content.readany()
        idle = self._completion.idle.total_seconds()
        left = exchange.last + idle - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left)):
                return await response.content.readany()
        except TimeoutError as error:
            if exchange.answer.finished:  # only the end marker is missing
                return b""
            pause, count = format_duration(self._completion.idle), exchange.answer.counted
            text = "{address} stopped after {n} [token|tokens] and sent none for {pause}"
            message = fill(text, address=self.address, n=count, pause=pause)
            raise ProbeError(Outcome.STALLED, message) from error

    async def _whole(self, response: aiohttp.ClientResponse, exchange: _Exchange) -> None:
        """A response without streaming: TTFT is not measured."""
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > MOST_BYTES:
                raise ProbeError(Outcome.WRONG_ANSWER, f"{self.address} sends more than {MOST_BYTES} bytes")
        if not body.strip():
            raise ProbeError(Outcome.NO_GENERATION, f"{self.address} returned 200 with an empty body")
        try:
            read = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProbeError(
                Outcome.WRONG_ANSWER, f"{self.address} returned 200 with a body that is not JSON"
            ) from error
        exchange.answer.chunk(read)
        exchange.answer.finished = True
        exchange.ended = asyncio.get_running_loop().time()

    def _timeout_error(self, exchange: _Exchange) -> ProbeError:
        limit = format_duration(self.timeout)
        if exchange.status is None:
            return ProbeError(Outcome.TIMEOUT, f"{self.address} did not respond within {limit}")
        if exchange.first is None:
            return ProbeError(
                Outcome.NO_GENERATION, f"{self.address} returned 200 and generated no token within {limit}"
            )
        text = "{address} was still generating after {limit} ({n} [token|tokens])"
        message = fill(text, address=self.address, limit=limit, n=exchange.answer.counted)
        return ProbeError(Outcome.UNFINISHED, message)

    def _problem(self, exchange: _Exchange, seconds: float) -> ProbeError | None:
        """The problem of a completed response; None if there is none."""
        answer, question, address = exchange.answer, self._completion, self.address
        if not answer.deltas and not (answer.finished or answer.done):
            return ProbeError(Outcome.NO_GENERATION, f"{address} returned 200 and ended without a token")
        if not (answer.finished or answer.done):
            text = "{address} ended its stream early, after {n} [token|tokens]"
            return ProbeError(Outcome.BROKEN_OFF, fill(text, address=address, n=answer.counted))
        validity = Outcome.OK if answer.tool_calls else validity_of(answer.text)
        if validity is not Outcome.OK:
            return ProbeError(validity, f"the response of {address} is {validity.value}")
        if question.expect is not None and not question.expect.search(answer.text):
            return ProbeError(Outcome.WRONG_ANSWER, f"the response of {address} lacks the expected text")
        first = None if exchange.first is None else exchange.first - exchange.begun
        if question.ttft_limit is not None and first is not None and first > question.ttft_limit.total_seconds():
            limit_text = format_duration(question.ttft_limit)
            return ProbeError(Outcome.SLOW_FIRST_TOKEN, f"TTFT of {address} was {first:.2f}s, limit {limit_text}")
        if question.total_limit is not None and seconds > question.total_limit.total_seconds():
            limit_text = format_duration(question.total_limit)
            return ProbeError(Outcome.SLOW, f"the response of {address} took {seconds:.2f}s, limit {limit_text}")
        return None

    async def close(self) -> None:
        """Does nothing: no connection is kept."""


_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


def _is_whole(url: str) -> bool:
    return url.split("?", 1)[0].rstrip("/").endswith("/completions")


def _base(url: str) -> str:
    """The base of ``/chat/completions`` and ``/models``; ``/v1`` for a bare host."""
    base = url.split("?", 1)[0].rstrip("/")
    for path in _PATHS.values():
        base = base.removesuffix(path)
    return base if base.count("/") > 2 else base + "/v1"


def _gap(exchange: _Exchange) -> float | None:
    """Mean gap between tokens; None unless they arrived in more than one chunk."""
    if (
        exchange.first is None
        or exchange.last is None
        or exchange.last <= exchange.first
        or exchange.answer.counted < 2
    ):
        return None
    return (exchange.last - exchange.first) / (exchange.answer.counted - 1)


async def _why(response: aiohttp.ClientResponse, address: str) -> str:
    """``... returned 404``, with the endpoint's error message."""
    body = (await response.content.read(4096)).decode("utf-8", errors="replace")
    detail: Any = ""
    try:
        read = json.loads(body)
        detail = read.get("message") or read.get("detail") or read.get("error")
        detail = detail.get("message") if isinstance(detail, Mapping) else detail
    except (ValueError, RecursionError, AttributeError):
        detail = "" if "<" in body else " ".join(body.split())
    text = f": {str(detail)[:_MAX_DETAIL]}" if detail else ""
    return f"{address} returned {response.status}{text}"
