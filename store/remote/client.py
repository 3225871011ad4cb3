"""HTTP client of a Prometheus-compatible server: sends remote-write bodies, runs PromQL queries.

Failures that may pass (no connection, a timeout, 429, 5xx) are retried with growing waits, or after the wait that the
server requests. Errors of the samples themselves (400, 409, 422) are not retried: they are counted by reason and logged
once. Everything else (401, 403, 404 ...) is a configuration error.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parsedate_to_datetime
from threading import Event, Lock

import httpx

from outrider.clock import SystemClock
from outrider.errors import CollectError, StoreError, StoreUnavailableError
from outrider.vocabulary.units import format_duration
from outrider.wire.http_auth import Access
from store.remote.rejected_samples import RejectedSamples

FIRST_WAIT = timedelta(milliseconds=100)
LONGEST_WAIT = timedelta(seconds=5)
_RETRYABLE = frozenset({408, 425, 429})
_SAMPLE_ERRORS = frozenset({400, 409, 422})
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_COMPLETE_RESULTS = {  # servers ignore the parameters they do not know
    "nocache": "1",  # VictoriaMetrics otherwise shifts spans and leaves out the newest half minute
    "deny_partial_response": "1",  # a VictoriaMetrics cluster and
    "partial_response": "false",  # Thanos otherwise return partial results while a node is unavailable
}
_QUOTED_CHARACTERS = 300  # characters of a response quoted in a message
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Remote:
    """Address of a server, and its request limits.

    ``write_url`` receives remote write (``http://victoria:8428/api/v1/write``); ``/api/v1/query`` is appended to
    ``read_url``. ``owner`` distinguishes the series of several Outriders on one server. ``timeout`` limits a write
    request, ``query_timeout`` a query; ``retry_for`` limits the retries of one write or read. A request has at most
    ``samples`` samples; at most ``connections`` run at once.
    """

    write_url: str
    read_url: str
    owner: str
    access: Access = field(default_factory=Access, repr=False)
    timeout: timedelta = timedelta(seconds=5)
    query_timeout: timedelta = timedelta(minutes=1)
    retry_for: timedelta = timedelta(seconds=3)
    samples: int = 10_000
    connections: int = 4


class Server:
    """A server. Threads may share it; ``close`` ends every wait and releases every connection."""

    def __init__(self, remote: Remote) -> None:
        """Connects on the first request."""
        self.remote = remote
        self.rejected = RejectedSamples()
        self._client: httpx.Client | None = None
        self._trust: ssl.SSLContext | bool = True
        self._lock = Lock()
        self._closed = Event()

    @property
    def retry_deadline(self) -> float:
        """The deadline, on the monotonic clock, for retries of work that starts now."""
        return time.monotonic() + self.remote.retry_for.total_seconds()

    def write(self, body: bytes, samples: int, deadline: float) -> int:
        """Sends one body; returns the number of accepted samples. Raises StoreUnavailableError.

        ``deadline`` is the value of ``retry_deadline`` at the start of the whole write.
        """
        timeout = self.remote.timeout
        response = self._request(self.remote.write_url, deadline, timeout, content=body, headers=_HEADERS)
        if response.is_success:
            return samples
        if response.status_code in _SAMPLE_ERRORS:
            self.rejected.add(f"HTTP {response.status_code}: {_message_of(response)}", samples)
            return 0
        raise self._unusable(self.remote.write_url, response, "store.metrics.url_write")

    def query(self, path: str, fields: Mapping[str, str]) -> bytes:
        """The body of an API response. Raises StoreUnavailableError, or StoreError for a rejected query."""
        url = f"{self.remote.read_url.rstrip('/')}/api/v1/{path}"
        response = self._request(
            url, self.retry_deadline, self.remote.query_timeout, data={**fields, **_COMPLETE_RESULTS}
        )
        if response.is_success:
            return response.content
        if response.status_code in _SAMPLE_ERRORS:
            raise StoreError(
                f"The metric store at {self.remote.read_url} rejected a query: {_message_of(response)}.",
                hint="Query a shorter span or fewer entities, or raise the query limits of the server.",
            )
        raise self._unusable(url, response, "store.metrics.url_read")

    def _request(self, url: str, deadline: float, timeout: timedelta, **request: object) -> httpx.Response:
        """The first response that is not retryable. Raises StoreUnavailableError at the deadline."""
        wait = FIRST_WAIT.total_seconds()
        while True:
            pause = wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter over several connections
            try:
                response = self._post(url, timeout=timeout.total_seconds(), **request)
            except (httpx.TransportError, httpx.DecodingError) as error:
                problem = type(error).__name__
                if isinstance(error, httpx.TimeoutException):
                    problem = f"no answer within {format_duration(timeout)}"
                elif str(error):
                    problem = str(error)
            except httpx.InvalidURL as error:
                raise StoreError(
                    f"{url} is not a valid URL: {error}.", hint="Correct it under store.metrics."
                ) from error
            else:
                if response.status_code not in _RETRYABLE and response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    return response
                problem = f"HTTP {response.status_code}: {_message_of(response)}"
                pause = max(pause, _retry_after(response))
            if time.monotonic() + pause > deadline or self._closed.wait(pause):
                raise StoreUnavailableError(
                    f"The metric store at {url} does not answer: {problem}.",
                    hint="Check that server; unwritten cycles wait in the write buffer.",
                )
            wait = min(2 * wait, LONGEST_WAIT.total_seconds())

    def _post(self, url: str, **request: object) -> httpx.Response:
        access = self.remote.access
        try:
            client, credentials = self._connected(access.trust()), access.sent()
        except CollectError as error:
            raise StoreUnavailableError(
                f"The metric store at {url} cannot be reached: {error.message}.", hint=error.hint
            ) from error
        headers = {**credentials, **request.pop("headers", {})}  # type: ignore[dict-item]
        extensions = {"sni_hostname": access.server_name} if access.server_name else {}
        return client.post(url, headers=headers, extensions=extensions, **request)  # type: ignore[arg-type]

    def _connected(self, trust: ssl.SSLContext | bool) -> httpx.Client:
        """The client for the current certificates; a new one after they changed."""
        with self._lock:
            if self._client is None or self._trust is not trust:
                if self._client is not None:
                    self._client.close()
                limits = httpx.Limits(max_keepalive_connections=2 * self.remote.connections)
                self._client = httpx.Client(
                    verify=trust, limits=limits, trust_env=False, headers={"User-Agent": "outrider"}
                )
                self._trust = trust
            return self._client

    def _unusable(self, url: str, response: httpx.Response, setting: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"The metric store at {url} cannot be used: HTTP {response.status_code}: {_message_of(response)}.",
            hint=f"Check {setting} and its credentials; unwritten cycles wait in the write buffer.",
        )

    def close(self) -> None:
        """Ends every wait and releases every connection."""
        self._closed.set()
        with self._lock:
            if self._client is not None:
                self._client.close()


def _message_of(response: httpx.Response) -> str:
    """The response text on one line."""
    try:
        document = response.json()
        text = str(document.get("error") or document) if isinstance(document, dict) else response.text
    except ValueError:
        text = response.text
    text = " ".join(text.split()) or response.reason_phrase
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}…"


def _retry_after(response: httpx.Response) -> float:
    """Seconds of the server's Retry-After header; 0 without one."""
    value = response.headers.get("Retry-After", "")
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - _CLOCK.now()).total_seconds())
    except (TypeError, ValueError):
        return 0.0
