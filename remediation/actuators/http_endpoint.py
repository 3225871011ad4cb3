"""One HTTP endpoint outside the cluster's API server: an engine, a webhook, a DNS provider.

Redirects are not followed, because a redirected request would carry the credential to another address. A response has
one time limit and one size limit as a whole.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx

from outrider.errors import ActuationError, CollectError
from outrider.model import ActionRequest
from outrider.wire.http_auth import Access

TIMEOUT = timedelta(seconds=10)
LIMIT_BYTES = 65_536
_LONGEST_WAIT = timedelta(minutes=5)  # a longer Retry-After would outlast the action
_SENTENCE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Reply:
    """A response of status 2xx. ``body`` is its JSON object, empty without one."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""
    text: str = ""


class HttpEndpoint:
    """Sends requests with the credentials of ``access``, whose files are read again for every request."""

    def __init__(
        self, access: Access | None = None, timeout: timedelta = TIMEOUT, *, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """``timeout`` bounds a request from the connection to the last byte; ``limit_bytes`` bounds a response."""
        self._access, self._timeout, self._limit_bytes = access or Access(), timeout, limit_bytes

    def get(self, url: str) -> Reply:
        """Returns the response to a GET. Raises ActuationError."""
        return self.send(ActionRequest("GET", url))

    def send(
        self, request: ActionRequest, headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> Reply:
        """Returns the response. ``content`` replaces the JSON of the body. Raises ActuationError.

        A timeout, a lost connection and the statuses 409, 429 and 5xx are retryable.
        """
        if content is None and request.body is not None:
            content = json.dumps(request.body).encode()
        host = host_of(request.url)
        sent = {"Accept": "application/json", **({"Content-Type": request.content_type} if content else {})}
        try:
            sent |= {**self._access.sent(), **(headers or {})}
            status, given, text = self._exchanged(request, sent, content)
        except CollectError as error:
            raise ActuationError(error.message, retryable=False, hint=error.hint) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ActuationError(f"{request.url!r} is not a URL", retryable=False) from error
        except httpx.TimeoutException as error:
            seconds = self._timeout.total_seconds()
            raise ActuationError(f"{host} did not respond within {seconds:g} s", retryable=True) from error
        except httpx.HTTPError as error:
            raise ActuationError(f"{host} cannot be reached ({type(error).__name__})", retryable=True) from error
        if status // 100 != 2:
            raise _refusal(request, status, given, text)
        return Reply(status, _object(text), given.get("Location", ""), text)

    def _exchanged(
        self, request: ActionRequest, headers: Mapping[str, str], content: bytes | None
    ) -> tuple[int, httpx.Headers, str]:
        """Returns status, headers and text. Raises httpx.HTTPError, CollectError."""
        seconds = self._timeout.total_seconds()
        ends = time.monotonic() + seconds
        verify: ssl.SSLContext | bool = self._access.trust()
        with (
            httpx.Client(verify=verify, timeout=seconds, follow_redirects=False) as client,
            client.stream(request.method, request.url, headers=dict(headers), content=content) as response,
        ):
            received = bytearray()
            for part in response.iter_bytes():
                received += part
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout("the response took too long")
                if len(received) > self._limit_bytes:
                    raise httpx.RemoteProtocolError("the response is too long")
        return response.status_code, response.headers, received.decode("utf-8", errors="replace")


def host_of(url: str) -> str:
    """Returns host and port of a URL, for messages: a path may contain a secret."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url
    except ValueError:
        return url


def origin_of(url: str) -> str:
    """Returns ``scheme://host:port`` of a URL; empty for another text."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme and parts.netloc else ""


def _object(text: str) -> dict[str, Any]:
    try:
        result = json.loads(text)
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}


def _refusal(request: ActionRequest, status: int, headers: httpx.Headers, text: str) -> ActuationError:
    """The error of a status other than 2xx."""
    host = host_of(request.url)
    if status // 100 == 3:
        sentence = f"{host} redirects with {status}; redirects are not followed"
        return ActuationError(sentence, retryable=False, hint="configure the final URL", status=status)
    body = _object(text)
    message = str(body.get("message") or body.get("error") or body.get("detail") or text)
    sentence = re.sub(r"\s+", " ", message).strip()[:_SENTENCE_CHARACTERS]
    retry = status >= 500 or status in (409, 429)
    return ActuationError(
        f"{request.method} {host} returned {status}" + (f": {sentence}" if sentence else ""),
        retryable=retry,
        status=status,
        hint="check its credentials" if status in (401, 403) else "",
        retry_after=_retry_after(headers.get("Retry-After", "")) if retry else None,
    )


def _retry_after(text: str) -> timedelta | None:
    """The wait in seconds that the server requested; a date or another text counts as none."""
    return min(timedelta(seconds=int(text)), _LONGEST_WAIT) if text.isdecimal() and len(text) < 10 else None
