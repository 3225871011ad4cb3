"""HTTP probe: one request, with checks of status and body."""

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
    """Criteria of a good response. Empty ``status`` means any 2xx; patterns are searched in the body."""

    status: Collection[int] = ()
    body: re.Pattern[str] | None = None
    body_not: re.Pattern[str] | None = None


class HttpProbe:
    """Probes one URL."""

    def __init__(
        self,
        request: ProbeRequest,
        url: str,
        *,
        method: str = "GET",
        body: str | None = None,
        expected: ExpectedResponse | None = None,
        follow_redirects: bool = False,
    ) -> None:
        """``body`` is sent unchanged; set its type in the headers."""
        self._settings, self._method, self._body = request, method, body
        self._expected = expected or ExpectedResponse()
        self._follow = follow_redirects
        self.name, self.service, self.every, self.timeout = (
            request.name,
            request.service,
            request.every,
            request.timeout,
        )
        self.address = url

    async def run(self, at: datetime) -> ProbeResult:
        """Sends one request over a new connection, and checks the certificate beside it."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        looking = asyncio.create_task(certificate_seconds_left(self.address, self._settings.access, at))
        error, status, deadline = None, None, started + self.timeout.total_seconds()
        try:
            async with asyncio.timeout_at(deadline):
                status = await self._request()
        except CLIENT_ERRORS as cause:
            error = probe_error(cause, self.address, self.timeout)
            status = error.status
        except asyncio.CancelledError:
            looking.cancel()
            raise
        finally:
            seconds = loop.time() - started
            left = await within_time(looking, deadline - loop.time())
        error = error or expiry_problem(left, self._settings.cert_left, self.address)
        outcome, message = (Outcome.OK, "") if error is None else (error.outcome, error.message)
        return ProbeResult(outcome, at, message, seconds, cert_expiry_seconds=left, status=status)

    async def _request(self) -> int:
        access = self._settings.access
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
            self._check(response.status, body)
            return response.status

    def _check(self, status: int, body: str) -> None:
        expected, address = self._expected, self.address
        good = status in expected.status if expected.status else 200 <= status < 300
        if not good:
            raise ProbeError(Outcome.HTTP_STATUS, f"{address} returned {status}", status)
        if expected.body is not None and not expected.body.search(body):
            message = f"the response of {address} lacks the expected text ({_short(expected.body)})"
            raise ProbeError(Outcome.WRONG_ANSWER, message, status)
        if expected.body_not is not None and expected.body_not.search(body):
            raise ProbeError(
                Outcome.WRONG_ANSWER, f"the response of {address} contains {_short(expected.body_not)}", status
            )

    async def close(self) -> None:
        """Does nothing: no connection is kept."""


async def within_time(check: asyncio.Task[float | None], seconds: float) -> float | None:
    """Result of the certificate check, if it is ready within the remaining time."""
    try:
        await asyncio.wait((check,), timeout=max(0.0, seconds))
    finally:
        check.cancel()
    return check.result() if check.done() and not check.cancelled() else None


async def _bounded(response: aiohttp.ClientResponse) -> str:
    parts, size = [], 0
    async for part in response.content.iter_chunked(64 * 1024):
        size += len(part)
        if size > MOST_BYTES:
            break  # enough to check; a probe of a download only tests that it starts
        parts.append(part)
    return b"".join(parts).decode("utf-8", errors="replace")


def _short(pattern: re.Pattern[str]) -> str:
    return repr(pattern.pattern if len(pattern.pattern) <= 60 else pattern.pattern[:57] + "...")
