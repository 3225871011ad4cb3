"""Fetches pages: every target at once, each within its own deadline, none at another's expense."""

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
# OpenMetrics is not asked for: the plain format costs less to read and says the same.
_ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_NOT_METRICS = ("text/html", "application/json", "application/xhtml", "image/", "application/problem+json")
_HINTS = {
    401: "it wants credentials: give the target in the configuration bearer_token_file, or basic_auth",
    403: "the credentials are known and may not read this page: give them the right, or use others",
    404: "check the path of the URL; most targets serve their metrics under /metrics",
    405: "it takes no GET at this path; most targets serve their metrics under /metrics",
    429: "it is asked too often: lengthen collect.interval",
    502: "a proxy answers for it: see whether the target runs behind it",
    503: "it is not ready, or a proxy finds it away: see whether it runs, and look at its log",
    504: "a proxy waits for it in vain: see whether the target hangs",
}
try:
    import resource
except ImportError:  # pragma: no cover (not on this platform)
    resource = None  # type: ignore[assignment]


class Scraper:
    """An HTTP client for pages. Open connections are kept between rounds; ``close`` it at the end."""

    def __init__(self, *, doors: timedelta | None = None) -> None:
        """``doors`` is how long an engine's doors are waited for from the beginning of its scrape.

        A page that is there goes on without them. None: as long as the target's timeout.
        """
        self._doors = doors
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def scrape(self, targets: Sequence[Target], *, at: datetime) -> list[Scrape]:
        """Scrape all at once, in the order of ``targets``. Never raises for a target's fault."""
        return list(await asyncio.gather(*(self.scrape_one(target, at=at) for target in targets)))

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        """One attempt, with the engine probe beside it; over by the target's timeout whatever happens.

        A door that is silent costs its own answer alone, not the page's nor the other door's.

        ``at`` is recorded as the instant of the scrape; the deadline runs on real time. Never raises: a
        fault is ``Scrape.error``, one sentence.
        """
        session, loop = self._open(), asyncio.get_running_loop()
        begun = loop.time()
        probing = asyncio.create_task(self._probe(session, target)) if target.probe else None
        try:
            body, error, is_open = await self._page(session, target)
            duration = loop.time() - begun
            answered = await probing if probing is not None else Probe()
        finally:
            if probing is not None:
                probing.cancel()
        return Scrape(
            target=target,
            at=at,
            body=body,
            error=error,
            duration_seconds=duration,
            health=answered.health,
            load=answered.load,
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
            return None, _slow(target), None
        except CollectError as fault:
            return None, fault, None
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            return None, _explain(target, fault), None
        return body, None, is_open

    async def _probe(self, session: aiohttp.ClientSession, target: Target) -> Probe:
        within = target.timeout if self._doors is None else min(target.timeout, self._doors)
        with suppress(CollectError):
            return await probe(session, target, _asked(target), within)
        return Probe()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            _allow_many_files()
            # No limit on connections: with one, a hundred hanging targets would hold up the others.
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
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _fetch(session: aiohttp.ClientSession, target: Target) -> tuple[bytes, bool | None]:
    async with session.get(target.url, allow_redirects=False, **_asked(target)) as response:
        _check_answer(target, response)
        parts, size = [], 0
        async for part in response.content.iter_chunked(_CHUNK_BYTES):
            size += len(part)
            if size > target.limit_bytes:
                raise CollectError(
                    f"{target.name}: the page is larger than {target.limit_bytes} bytes",
                    reason=CollectReason.TOO_LARGE,
                    hint="raise limit_bytes of the target, or drop series at the exporter",
                )
            parts.append(part)
        kind = response.headers.get("Content-Type", "")
        return b"".join(parts), ("openmetrics" in kind) if kind else None


def _check_answer(target: Target, response: aiohttp.ClientResponse) -> None:
    if 300 <= response.status < 400:
        where = response.headers.get("Location", "another place")[:120]
        raise CollectError(
            f"{target.name}: {target.url} redirects to {where}",
            reason=CollectReason.REDIRECT,
            hint="configure the final URL; redirects are not followed, so that no header leaks to another host",
        )
    if response.status != 200:
        hint = _HINTS.get(response.status, "look at the target's log")
        raise CollectError(
            f"{target.name}: {target.url} answered HTTP {response.status}",
            reason=CollectReason.HTTP_STATUS,
            hint=hint,
            retry_after=_retry_after(response),
        )
    if response.content_type.startswith(_NOT_METRICS) and "Content-Type" in response.headers:
        raise CollectError(
            f"{target.name}: {target.url} answered {response.content_type} instead of metrics",
            reason=CollectReason.NOT_METRICS,
            hint="check the path of the URL; most targets serve their metrics under /metrics",
        )


def _retry_after(response: aiohttp.ClientResponse) -> timedelta | None:
    """Seconds only: a date would be that of the server's clock."""
    said = response.headers.get("Retry-After", "")
    return (
        timedelta(seconds=int(said)) if response.status in {429, 503} and said.isdecimal() and len(said) < 9 else None
    )


def _asked(target: Target) -> dict[str, Any]:
    """How a request to the target is made. Raises CollectError for a credential that cannot be read."""
    try:
        access = target.access
        return {"headers": access.sent(), "ssl": access.trust(), "server_hostname": access.server_name}
    except CollectError as error:
        raise CollectError(f"{target.name}: {error.message}", reason=error.reason, hint=error.hint) from error


def _slow(target: Target) -> CollectError:
    return CollectError(
        f"{target.name}: {target.url} gave no whole page within {format_duration(target.timeout)}",
        reason=CollectReason.TIMEOUT,
        hint="see whether the target is overloaded or hangs; raise its timeout if its page is large",
    )


def _explain(target: Target, fault: Exception) -> CollectError:
    """One clear sentence for a client error."""
    where, reason, hint = f"{target.name}: {target.url}", CollectReason.OTHER, "check the address of the target"
    if isinstance(fault, aiohttp.ClientConnectorDNSError) or isinstance(
        getattr(fault, "os_error", None), socket.gaierror
    ):
        said, reason = "has a host name that cannot be resolved", CollectReason.DNS
    elif isinstance(fault, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        said, reason = "has a TLS fault (certificate or protocol)", CollectReason.TLS
        hint = "check the certificate, and whether the port speaks https"
    elif isinstance(fault, aiohttp.ClientConnectorError):
        said, reason = "refuses connections", CollectReason.REFUSED
        hint = "see whether the process runs and listens on that port"
    elif isinstance(fault, aiohttp.ClientPayloadError):
        said, reason = "broke off in the middle of its page", CollectReason.TRUNCATED
        hint = "look at the target's log for a crash"
    elif isinstance(fault, aiohttp.ServerDisconnectedError | ConnectionResetError | aiohttp.ClientOSError):
        said, reason = "closed the connection without an answer", CollectReason.RESET
        hint = "look at the target's log for a crash"
    elif isinstance(fault, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        said, hint = "is no URL that can be fetched", "write it as http://host:port/metrics"
    else:
        said, hint = f"cannot be read ({type(fault).__name__})", "look at the target's log"
    return CollectError(f"{where} {said}", reason=reason, hint=hint)


def _allow_many_files() -> None:
    """Raise the soft limit on open files to the hard one: a target takes up to three connections."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
            with suppress(ValueError, OSError):
                wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
