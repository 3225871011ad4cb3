"""One HTTP request: whether the door answers, with the status and the text that are expected."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import aiohttp

from collectors.probes.base import CLIENT_ERRORS, ProbeError, ProbeRequest, new_session, probe_error
from collectors.probes.result import Outcome, ProbeResult
from collectors.probes.tls import certificate_seconds_left, expiry_problem

MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExpectedResponse:
    """What a good answer looks like. ``status`` empty means any 2xx; patterns are searched in the text."""

    status: Collection[int] = ()
    body: re.Pattern[str] | None = None
    body_not: re.Pattern[str] | None = None


class HttpProbe:
    """Asks one URL."""

    def __init__(
        self,
        asked: ProbeRequest,
        url: str,
        *,
        method: str = "GET",
        body: str | None = None,
        expected: ExpectedResponse | None = None,
        follow_redirects: bool = False,
    ) -> None:
        """``body`` is sent as it is; name its type among the headers."""
        self._asked, self._method, self._body = asked, method, body
        self._expected = expected or ExpectedResponse()
        self._follow = follow_redirects
        self.name, self.service, self.every, self.timeout = asked.name, asked.service, asked.every, asked.timeout
        self.address = url

    async def run(self, at: datetime) -> ProbeResult:
        """One request over a new connection, with a look at the certificate beside it."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        looking = asyncio.create_task(certificate_seconds_left(self.address, self._asked.access, at))
        fault, status, until = None, None, begun + self.timeout.total_seconds()
        try:
            async with asyncio.timeout_at(until):
                status = await self._request()
        except CLIENT_ERRORS as found:
            fault = probe_error(found, self.address, self.timeout)
            status = fault.status
        except asyncio.CancelledError:
            looking.cancel()
            raise
        finally:
            seconds = loop.time() - begun
            left = await within_time(looking, until - loop.time())
        fault = fault or expiry_problem(left, self._asked.cert_left, self.address)
        outcome, said = (Outcome.OK, "") if fault is None else (fault.outcome, fault.message)
        return ProbeResult(outcome, at, said, seconds, cert_expiry_seconds=left, status=status)

    async def _request(self) -> int:
        access = self._asked.access
        headers, trust = access.sent(), access.trust()
        async with (
            new_session() as client,
            client.request(
                self._method,
                self.address,
                data=self._body,
                headers=headers,
                ssl=trust,
                server_hostname=access.server_name,
                allow_redirects=self._follow,
            ) as response,
        ):
            body = await _bounded(response)
            self._judge(response.status, body)
            return response.status

    def _judge(self, status: int, body: str) -> None:
        wanted, address = self._expected, self.address
        good = status in wanted.status if wanted.status else 200 <= status < 300
        if not good:
            raise ProbeError(Outcome.HTTP_STATUS, f"{address} answered {status}", status)
        if wanted.body is not None and not wanted.body.search(body):
            said = f"the answer of {address} lacks what was expected ({_short(wanted.body)})"
            raise ProbeError(Outcome.WRONG_ANSWER, said, status)
        if wanted.body_not is not None and wanted.body_not.search(body):
            raise ProbeError(Outcome.WRONG_ANSWER, f"the answer of {address} holds {_short(wanted.body_not)}", status)

    async def close(self) -> None:
        """Nothing is kept open."""


async def within_time(looking: asyncio.Task[float | None], seconds: float) -> float | None:
    """What the look at the certificate found, within what is left of the time."""
    try:
        await asyncio.wait((looking,), timeout=max(0.0, seconds))
    finally:
        looking.cancel()
    return looking.result() if looking.done() and not looking.cancelled() else None


async def _bounded(response: aiohttp.ClientResponse) -> str:
    parts, size = [], 0
    async for part in response.content.iter_chunked(64 * 1024):
        size += len(part)
        if size > MOST_BYTES:
            break  # enough to judge; whoever probes a download wants to know that it begins
        parts.append(part)
    return b"".join(parts).decode("utf-8", errors="replace")


def _short(pattern: re.Pattern[str]) -> str:
    return repr(pattern.pattern if len(pattern.pattern) <= 60 else pattern.pattern[:57] + "...")
