"""HTTP client for event sources: one server, a deadline per response, one-sentence errors."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import aiohttp

from outrider.errors import CollectError, CollectReason
from outrider.vocabulary.units import format_duration
from outrider.wire.http_auth import Access

MOST_BYTES = 256 * 1024 * 1024
MOST_CONNECTIONS = 32
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response of any status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Client of one server. Call ``close`` at the end."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        timeout: timedelta = timedelta(seconds=5),
        access: Access | None = None,
    ) -> None:
        """``timeout`` applies to a complete response."""
        self.name, self.url, self.timeout = name, url.rstrip("/"), timeout
        self._access = access or Access()
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> HttpResponse:
        """GETs ``url + path``. Raises CollectError if no complete response arrives in time."""
        try:
            async with asyncio.timeout(self.timeout.total_seconds()), self.stream(path, params) as response:
                parts, size = [], 0
                async for part in response.content.iter_chunked(_CHUNK_BYTES):
                    size += len(part)
                    if size > MOST_BYTES:
                        raise self.fault("the response is too large", CollectReason.TOO_LARGE, "request less data")
                    parts.append(part)
                return HttpResponse(response.status, response.headers, b"".join(parts))
        except TimeoutError as error:
            message = f"{self.url} gave no complete response within {format_duration(self.timeout)}"
            raise self.fault(
                message, CollectReason.TIMEOUT, "increase the timeout of the source if it is busy"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.explain(error) from error

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str] | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the response before its body is read.

        Raises the client library's errors, and CollectError for an unreadable credential.
        """
        try:
            headers, trust = self._access.sent(), self._access.trust()
        except CollectError as error:
            raise self.fault(error.message, error.reason, error.hint) from error
        session, url, name = self._open(), f"{self.url}{path}", self._access.server_name
        async with session.get(
            url, params=params, headers=headers, ssl=trust, server_hostname=name, allow_redirects=False
        ) as response:
            yield response

    def fault(self, message: str, reason: str, hint: str = "") -> CollectError:
        """Returns an error that names this source."""
        return CollectError(f"{self.name}: {message}", reason=reason, hint=hint)

    def explain(self, error: Exception) -> CollectError:
        """Maps an error of the client library to a CollectError."""
        hint = "check the address of the source"
        if isinstance(getattr(error, "os_error", None), socket.gaierror):
            return self.fault(f"the host name of {self.url} cannot be resolved", CollectReason.DNS, hint)
        if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
            hint = "check tls.ca_file, and that the port serves HTTPS"
            return self.fault(
                f"TLS handshake with {self.url} failed (certificate or protocol)", CollectReason.TLS, hint
            )
        if isinstance(error, aiohttp.ClientConnectorError):
            hint = "check that the server runs and listens on that port"
            return self.fault(f"{self.url} refuses connections", CollectReason.REFUSED, hint)
        if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionError):
            return self.fault(f"{self.url} closed the connection early", CollectReason.RESET, "check the server's log")
        return self.fault(f"request to {self.url} failed ({type(error).__name__})", CollectReason.OTHER, hint)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, ttl_dns_cache=60)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"User-Agent": "outrider"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
