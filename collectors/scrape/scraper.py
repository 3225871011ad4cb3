"""Fetches metrics pages: all targets concurrently, each within its own deadline."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Self

import aiohttp

from collectors.mapping.target import Target
from collectors.scrape.engine_health import Probe, probe
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason
from outrider.vocabulary.units import format_duration

_CHUNK_BYTES = 64 * 1024
# OpenMetrics is not requested: the plain format is cheaper to parse and carries the same data.
_ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_NOT_METRICS = ("text/html", "application/json", "application/xhtml", "image/", "application/problem+json")
_HINTS = {
    401: "credentials are required: set bearer_token_file or basic_auth of the target",
    403: "the credentials lack permission for this page: grant it, or use others",
    404: "check the path of the URL; most targets serve their metrics under /metrics",
    405: "GET is not allowed at this path; most targets serve their metrics under /metrics",
    429: "the target limits the request rate: increase collect.interval",
    502: "a proxy responded: check that the target behind it is running",
    503: "the target is not ready, or its proxy cannot reach it: check that it runs, and check its log",
    504: "the target did not respond to its proxy in time: check whether it hangs",
}
try:
    import resource
except ImportError:  # pragma: no cover (not on this platform)
    resource = None  # type: ignore[assignment]


class Scraper:
    """HTTP client for metrics pages. Keeps connections open between rounds; call ``close`` at the end."""

    def __init__(self, *, health_timeout: timedelta | None = None) -> None:
        """``health_timeout`` is the time limit of the engine's health endpoints, from the start of its scrape.

        A complete page does not wait longer for them. None: the target's timeout.
        """
        self._health_timeout = health_timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def scrape(self, targets: Sequence[Target], *, at: datetime) -> list[Scrape]:
        """Scrapes all targets concurrently; results in the order of ``targets``. Never raises for a target's error."""
        return list(await asyncio.gather(*(self.scrape_one(target, at=at) for target in targets)))

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        """Makes one attempt, with the engine probe beside it; ends by the target's timeout.

        A silent endpoint costs only its own result, neither the page's nor the other endpoint's.
        ``at`` is recorded as the time of the scrape; the deadline runs on real time. Never raises: an error is
        ``Scrape.error``, one sentence.
        """
        session, loop = self._open(), asyncio.get_running_loop()
        started = loop.time()
        probing = asyncio.create_task(self._probe(session, target)) if target.probe else None
        try:
            body, error, is_open = await self._page(session, target)
            duration = loop.time() - started
            health = await probing if probing is not None else Probe()
        finally:
            if probing is not None:
                probing.cancel()
        return Scrape(
            target=target,
            at=at,
            body=body,
            error=error,
            duration_seconds=duration,
            health=health.health,
            load=health.load,
            probed=probing is not None,
            openmetrics=is_open,
        )

    async def _page(
        self, session: aiohttp.ClientSession, target: Target
    ) -> tuple[bytes | None, CollectError | None, bool | None]:
        try:
            async with asyncio.timeout(target.timeout.total_seconds()):
                body, is_open = await _fetch(session, target)
        except TimeoutError:
            return None, _timeout_error(target), None
        except CollectError as fault:
            return None, fault, None
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            return None, _explain(target, fault), None
        return body, None, is_open

    async def _probe(self, session: aiohttp.ClientSession, target: Target) -> Probe:
        within = target.timeout if self._health_timeout is None else min(target.timeout, self._health_timeout)
        with suppress(CollectError):
            return await probe(session, target, _request_options(target), within)
        return Probe()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            _allow_many_files()
            # No limit on connections: with one, a hundred hanging targets would delay the others.
            connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=60)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Accept": _ACCEPT, "User-Agent": "outrider"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_CHUNK_BYTES,
            )
        return self._session

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _fetch(session: aiohttp.ClientSession, target: Target) -> tuple[bytes, bool | None]:
    async with session.get(target.url, allow_redirects=False, **_request_options(target)) as response:
        _check_answer(target, response)
        parts, size = [], 0
        async for part in response.content.iter_chunked(_CHUNK_BYTES):
            size += len(part)
            if size > target.limit_bytes:
                raise CollectError(
                    f"{target.name}: the page exceeds {target.limit_bytes} bytes",
                    reason=CollectReason.TOO_LARGE,
                    hint="increase limit_bytes of the target, or drop series at the exporter",
                )
            parts.append(part)
        kind = response.headers.get("Content-Type", "")
        return b"".join(parts), ("openmetrics" in kind) if kind else None


def _check_answer(target: Target, response: aiohttp.ClientResponse) -> None:
    if 300 <= response.status < 400:
        location = response.headers.get("Location", "another URL")[:120]
        raise CollectError(
            f"{target.name}: {target.url} redirects to {location}",
            reason=CollectReason.REDIRECT,
            hint="configure the final URL; redirects are not followed, so that no header leaks to another host",
        )
    if response.status != 200:
        hint = _HINTS.get(response.status, "check the target's log")
        raise CollectError(
            f"{target.name}: {target.url} returned HTTP {response.status}",
            reason=CollectReason.HTTP_STATUS,
            hint=hint,
            retry_after=_retry_after(response),
        )
    if response.content_type.startswith(_NOT_METRICS) and "Content-Type" in response.headers:
        raise CollectError(
            f"{target.name}: {target.url} returned {response.content_type} instead of metrics",
            reason=CollectReason.NOT_METRICS,
            hint="check the path of the URL; most targets serve their metrics under /metrics",
        )


def _retry_after(response: aiohttp.ClientResponse) -> timedelta | None:
    """Parses seconds only: a date would depend on the server's clock."""
    seconds = response.headers.get("Retry-After", "")
    return (
        timedelta(seconds=int(seconds))
        if response.status in {429, 503} and seconds.isdecimal() and len(seconds) < 9
        else None
    )


def _request_options(target: Target) -> dict[str, Any]:
    """Request options of a target. Raises CollectError for an unreadable credential."""
    try:
        access = target.access
        return {"headers": access.sent(), "ssl": access.trust(), "server_hostname": access.server_name}
    except CollectError as error:
        raise CollectError(f"{target.name}: {error.message}", reason=error.reason, hint=error.hint) from error


def _timeout_error(target: Target) -> CollectError:
    return CollectError(
        f"{target.name}: {target.url} gave no complete page within {format_duration(target.timeout)}",
        reason=CollectReason.TIMEOUT,
        hint="check whether the target is overloaded or hangs; increase its timeout if its page is large",
    )


def _explain(target: Target, error: Exception) -> CollectError:
    """Maps a client error to a CollectError of one sentence."""
    subject, reason, hint = f"{target.name}: {target.url}", CollectReason.OTHER, "check the address of the target"
    if isinstance(error, aiohttp.ClientConnectorDNSError) or isinstance(
        getattr(error, "os_error", None), socket.gaierror
    ):
        message, reason = "has a host name that cannot be resolved", CollectReason.DNS
    elif isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        message, reason = "failed the TLS handshake (certificate or protocol)", CollectReason.TLS
        hint = "check the certificate, and that the port serves HTTPS"
    elif isinstance(error, aiohttp.ClientConnectorError):
        message, reason = "refuses connections", CollectReason.REFUSED
        hint = "check that the process runs and listens on that port"
    elif isinstance(error, aiohttp.ClientPayloadError):
        message, reason = "closed the connection within the page", CollectReason.TRUNCATED
        hint = "check the target's log for a crash"
    elif isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError | aiohttp.ClientOSError):
        message, reason = "closed the connection without a response", CollectReason.RESET
        hint = "check the target's log for a crash"
    elif isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        message, hint = "is not a valid URL", "write it as http://host:port/metrics"
    else:
        message, hint = f"cannot be read ({type(error).__name__})", "check the target's log"
    return CollectError(f"{subject} {message}", reason=reason, hint=hint)


def _allow_many_files() -> None:
    """Raises the soft limit on open files to the hard limit: a target takes up to three connections."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
            with suppress(ValueError, OSError):
                wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
