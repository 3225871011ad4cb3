"""The generation probe: a short question to an OpenAI-compatible door, answered as a stream.

It tells a service that answers 200 and does not generate (a hung engine behind a live server) from one that
is slow. The first token is the first chunk that brings something; a keep-alive comment is none. One asking
costs at most ``max_tokens`` generated tokens and those of the prompt.
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
from outrider.vocabulary.units import format_duration

MOST_BYTES = 1024 * 1024
_MOST_SAID = 200


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What is asked. ``model`` None: the first one that ``/models`` lists.

    ``ttft_limit`` and ``total_limit`` make an answer slow, ``idle`` is the longest gap between two tokens.
    ``expect`` is searched in the answer. ``extra`` goes into the request; a key with None is left out of it.
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
    """How an asking goes: instants of the loop's clock."""

    begun: float
    answer: Completion
    status: int | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None

    def brought(self, at: float) -> None:
        self.first = at if self.first is None else self.first
        self.last = at


class CompletionProbe:
    """Asks one model at one door."""

    def __init__(self, asked: ProbeRequest, url: str, question: CompletionRequest | None = None) -> None:
        """``url`` is the base of the API, such as https://chat.example/v1, or the whole path."""
        self._asked, self._question = asked, question or CompletionRequest()
        self.name, self.service, self.every, self.timeout = asked.name, asked.service, asked.every, asked.timeout
        self._base = _base(url)
        self.address = url if _is_whole(url) else self._base + _PATHS[self._question.api]
        self._model = self._question.model

    async def run(self, at: datetime) -> ProbeResult:
        """One question over a new connection, with a look at the certificate beside it."""
        loop = asyncio.get_running_loop()
        course = _Exchange(loop.time(), Completion(self.address))
        looking = asyncio.create_task(certificate_seconds_left(self.address, self._asked.access, at))
        fault, until = None, loop.time() + self.timeout.total_seconds()
        try:
            async with asyncio.timeout_at(until):
                await self._converse(course)
        except TimeoutError as found:
            fault = (
                self._out_of_time(course) if loop.time() >= until else probe_error(found, self.address, self.timeout)
            )
        except CLIENT_ERRORS as found:
            fault = probe_error(found, self.address, self.timeout)
        except asyncio.CancelledError:
            looking.cancel()
            raise
        finally:
            seconds = (course.ended or loop.time()) - course.begun
            left = await within_time(looking, until - loop.time())
        fault = fault or self._judge(course, seconds) or expiry_problem(left, self._asked.cert_left, self.address)
        outcome, said = (Outcome.OK, "") if fault is None else (fault.outcome, fault.message)
        answered = course.status is not None and course.status < 300
        return ProbeResult(
            outcome,
            at,
            said,
            seconds,
            ttft_seconds=None if course.first is None else course.first - course.begun,
            itl_seconds=_gap(course),
            tokens=course.answer.counted if answered else None,
            cert_expiry_seconds=left,
            status=course.status,
        )

    async def _converse(self, course: _Exchange) -> None:
        access = self._asked.access
        asked: dict[str, Any] = {
            "headers": access.sent(),
            "ssl": access.trust(),
            "server_hostname": access.server_name,
            "allow_redirects": False,
        }
        async with new_session() as client:
            if self._model is None:
                self._model = await self._first_model(client, asked)
                course.begun = asyncio.get_running_loop().time()  # the look-up is no part of the answer
            async with client.post(self.address, json=self._request(), **asked) as response:
                course.status = response.status
                if response.status != 200:
                    self._model = self._question.model  # it may have been taken away: look it up again
                    raise ProbeError(Outcome.HTTP_STATUS, await _why(response, self.address), response.status)
                if "event-stream" in response.headers.get("Content-Type", ""):
                    await self._stream(response, course)
                else:
                    await self._whole(response, course)

    def _request(self) -> dict[str, Any]:
        question = self._question
        asked: dict[str, Any] = {
            "model": self._model,
            "max_tokens": question.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        if question.api == "chat":
            asked["messages"] = [{"role": "user", "content": question.prompt}]
        else:
            asked["prompt"] = question.prompt
        return {name: value for name, value in {**asked, **question.extra}.items() if value is not None}

    async def _first_model(self, client: aiohttp.ClientSession, asked: Mapping[str, Any]) -> str:
        url = self._base + "/models"
        async with client.get(url, **asked) as response:
            if response.status != 200:
                raise ProbeError(Outcome.HTTP_STATUS, await _why(response, url), response.status)
            body = await response.content.read(MOST_BYTES)
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise ProbeError(Outcome.WRONG_ANSWER, f"{url} lists no model; name one under model") from error

    async def _stream(self, response: aiohttp.ClientResponse, course: _Exchange) -> None:
        loop, events, answer, size = asyncio.get_running_loop(), EventStream(), course.answer, 0
        while not answer.done:
            piece = await self._next(response, course)
            now = loop.time()
            size += len(piece)
            if size > MOST_BYTES:
                said = f"{self.address} sends more than {MOST_BYTES} bytes for {self._question.max_tokens} tokens"
                raise ProbeError(Outcome.WRONG_ANSWER, said)
            for event in events.feed(piece) if piece else events.end():
                if answer.take(event):
                    course.brought(now)
            if not piece:
                break
        course.ended = loop.time()

    async def _next(self, response: aiohttp.ClientResponse, course: _Exchange) -> bytes:
        """The next piece; b"" at the end. Raises ProbeError when the tokens stop coming."""
        if course.last is None:
            return await response.content.readany()
        idle = self._question.idle.total_seconds()
        left = course.last + idle - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left)):
                return await response.content.readany()
        except TimeoutError as error:
            if course.answer.finished:  # only the formal end is missing
                return b""
            pause, count = format_duration(self._question.idle), course.answer.counted
            said = f"{self.address} stopped after {count} tokens and sent none for {pause}"
            raise ProbeError(Outcome.STALLED, said) from error

    async def _whole(self, response: aiohttp.ClientResponse, course: _Exchange) -> None:
        """An answer that does not stream: there is no first token to be timed."""
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > MOST_BYTES:
                raise ProbeError(Outcome.WRONG_ANSWER, f"{self.address} sends more than {MOST_BYTES} bytes")
        if not body.strip():
            raise ProbeError(Outcome.NO_GENERATION, f"{self.address} answers 200 with nothing in it")
        try:
            read = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProbeError(
                Outcome.WRONG_ANSWER, f"{self.address} answers 200 with something that is no JSON"
            ) from error
        course.answer.chunk(read)
        course.answer.finished = True
        course.ended = asyncio.get_running_loop().time()

    def _out_of_time(self, course: _Exchange) -> ProbeError:
        limit = format_duration(self.timeout)
        if course.status is None:
            return ProbeError(Outcome.TIMEOUT, f"{self.address} did not answer within {limit}")
        if course.first is None:
            return ProbeError(Outcome.NO_GENERATION, f"{self.address} answers 200 and generated nothing within {limit}")
        said = f"{self.address} was still generating after {limit}, {course.answer.counted} tokens on"
        return ProbeError(Outcome.UNFINISHED, said)

    def _judge(self, course: _Exchange, seconds: float) -> ProbeError | None:
        """What is wrong with an answer that came to its end; None when nothing is."""
        answer, question, address = course.answer, self._question, self.address
        if not answer.deltas and not (answer.finished or answer.done):
            return ProbeError(Outcome.NO_GENERATION, f"{address} answers 200 and ends without a token")
        if not (answer.finished or answer.done):
            return ProbeError(
                Outcome.BROKEN_OFF, f"{address} ended its stream after {answer.counted} tokens, unfinished"
            )
        found = Outcome.OK if answer.tool_calls else validity_of(answer.text)
        if found is not Outcome.OK:
            return ProbeError(found, f"the answer of {address} is {found.value}")
        if question.expect is not None and not question.expect.search(answer.text):
            return ProbeError(Outcome.WRONG_ANSWER, f"the answer of {address} lacks what was expected")
        first = None if course.first is None else course.first - course.begun
        if question.ttft_limit is not None and first is not None and first > question.ttft_limit.total_seconds():
            over = format_duration(question.ttft_limit)
            return ProbeError(
                Outcome.SLOW_FIRST_TOKEN, f"the first token of {address} took {first:.2f}s, more than {over}"
            )
        if question.total_limit is not None and seconds > question.total_limit.total_seconds():
            over = format_duration(question.total_limit)
            return ProbeError(Outcome.SLOW, f"the answer of {address} took {seconds:.2f}s, more than {over}")
        return None

    async def close(self) -> None:
        """Nothing is kept open."""


_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


def _is_whole(url: str) -> bool:
    return url.split("?", 1)[0].rstrip("/").endswith("/completions")


def _base(url: str) -> str:
    """The address that ``/chat/completions`` and ``/models`` stand under; ``/v1`` where a bare host is given."""
    found = url.split("?", 1)[0].rstrip("/")
    for path in _PATHS.values():
        found = found.removesuffix(path)
    return found if found.count("/") > 2 else found + "/v1"


def _gap(course: _Exchange) -> float | None:
    """Mean gap between tokens; None unless they came in more than one piece."""
    if course.first is None or course.last is None or course.last <= course.first or course.answer.counted < 2:
        return None
    return (course.last - course.first) / (course.answer.counted - 1)


async def _why(response: aiohttp.ClientResponse, address: str) -> str:
    """``... answered 404``, with what the door says of it."""
    body = (await response.content.read(4096)).decode("utf-8", errors="replace")
    said: Any = ""
    try:
        read = json.loads(body)
        said = read.get("message") or read.get("detail") or read.get("error")
        said = said.get("message") if isinstance(said, Mapping) else said
    except (ValueError, RecursionError, AttributeError):
        said = "" if "<" in body else " ".join(body.split())
    text = f": {str(said)[:_MOST_SAID]}" if said else ""
    return f"{address} answered {response.status}{text}"
