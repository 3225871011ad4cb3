"""Speaks with a Prometheus-compatible server: bodies of remote write go out, PromQL answers come back.

What may succeed later (no connection, a time-out, 429, 5xx) is tried again with growing waits, or after
the wait that the server asks for. What is wrong with the samples themselves (400, 409, 422) is not: it
is counted by reason and told once. Everything else (401, 403, 404 ...) is a setting to put right.
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
_AGAIN = frozenset({408, 425, 429})
_OF_SAMPLES = frozenset({400, 409, 422})
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_WHOLE = {  # what servers do not know of these they ignore
    "nocache": "1",  # VictoriaMetrics otherwise shifts spans, and leaves out the newest half minute
    "deny_partial_response": "1",  # a VictoriaMetrics cluster and
    "partial_response": "false",  # Thanos otherwise answer with what they have while a node is away
}
_SAID = 300  # characters of an answer that a message repeats
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a server is and how it is asked.

    ``write_url`` takes remote write (``http://victoria:8428/api/v1/write``); ``read_url`` is what
    ``/api/v1/query`` is appended to. ``owner`` tells the series of several Outriders on one server apart.
    ``timeout`` is for one request that writes, ``query_timeout`` for one that reads; ``retry_for`` is how
    long one write or read goes on trying. A request has ``samples`` samples at most, and ``connections``
    of them are under way at once.
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
    """One server. Threads may share it; ``close`` ends every wait and releases every connection."""

    def __init__(self, remote: Remote) -> None:
        """Connects at the first request."""
        self.remote = remote
        self.refusals = RejectedSamples()
        self._client: httpx.Client | None = None
        self._trust: ssl.SSLContext | bool = True
        self._lock = Lock()
        self._closed = Event()

    @property
    def patience(self) -> float:
        """The instant on the monotonic clock until which work that begins now is tried again."""
        return time.monotonic() + self.remote.retry_for.total_seconds()

    def write(self, body: bytes, samples: int, until: float) -> int:
        """Send one body; return how many samples were taken. Raises StoreUnavailableError.

        ``until`` is what ``patience`` gave when the whole write began.
        """
        timeout = self.remote.timeout
        answer = self._asked(self.remote.write_url, until, timeout, content=body, headers=_HEADERS)
        if answer.is_success:
            return samples
        if answer.status_code in _OF_SAMPLES:
            self.refusals.add(f"HTTP {answer.status_code}: {_said(answer)}", samples)
            return 0
        raise self._unusable(self.remote.write_url, answer, "store.metrics.url_write")

    def query(self, path: str, fields: Mapping[str, str]) -> bytes:
        """The body of an answer of the Prometheus API. Raises StoreUnavailableError, and StoreError for a refused query."""
        url = f"{self.remote.read_url.rstrip('/')}/api/v1/{path}"
        answer = self._asked(url, self.patience, self.remote.query_timeout, data={**fields, **_WHOLE})
        if answer.is_success:
            return answer.content
        if answer.status_code in _OF_SAMPLES:
            raise StoreError(
                f"The metric store at {self.remote.read_url} refused a query: {_said(answer)}.",
                hint="Ask for a shorter span or fewer entities, or raise the server's limits of queries.",
            )
        raise self._unusable(url, answer, "store.metrics.url_read")

    def _asked(self, url: str, until: float, timeout: timedelta, **request: object) -> httpx.Response:
        """The first answer that is not "later". Raises StoreUnavailableError when none came in time."""
        wait = FIRST_WAIT.total_seconds()
        while True:
            pause = wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the tries of several connections
            try:
                answer = self._post(url, timeout=timeout.total_seconds(), **request)
            except (httpx.TransportError, httpx.DecodingError) as error:
                problem = type(error).__name__
                if isinstance(error, httpx.TimeoutException):
                    problem = f"no answer within {format_duration(timeout)}"
                elif str(error):
                    problem = str(error)
            except httpx.InvalidURL as error:
                raise StoreError(f"{url} is no URL: {error}.", hint="Correct it under store.metrics.") from error
            else:
                if answer.status_code not in _AGAIN and answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                    return answer
                problem = f"HTTP {answer.status_code}: {_said(answer)}"
                pause = max(pause, _retry_after(answer))
            if time.monotonic() + pause > until or self._closed.wait(pause):
                raise StoreUnavailableError(
                    f"The metric store at {url} does not answer: {problem}.",
                    hint="Look at that server; what could not be written waits for it.",
                )
            wait = min(2 * wait, LONGEST_WAIT.total_seconds())

    def _post(self, url: str, **request: object) -> httpx.Response:
        access = self.remote.access
        try:
            client, sent = self._connected(access.trust()), access.sent()
        except CollectError as error:
            raise StoreUnavailableError(
                f"The metric store at {url} cannot be asked: {error.message}.", hint=error.hint
            ) from error
        headers = {**sent, **request.pop("headers", {})}  # type: ignore[dict-item]
        named = {"sni_hostname": access.server_name} if access.server_name else {}
        return client.post(url, headers=headers, extensions=named, **request)  # type: ignore[arg-type]

    def _connected(self, trust: ssl.SSLContext | bool) -> httpx.Client:
        """The client of these certificates; a new one when they changed."""
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

    def _unusable(self, url: str, answer: httpx.Response, setting: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"The metric store at {url} cannot be used: HTTP {answer.status_code}: {_said(answer)}.",
            hint=f"Check {setting} and the credentials beside it; what could not be written waits.",
        )

    def close(self) -> None:
        """End every wait and release every connection."""
        self._closed.set()
        with self._lock:
            if self._client is not None:
                self._client.close()


def _said(answer: httpx.Response) -> str:
    """What the server says, on one line."""
    try:
        document = answer.json()
        text = str(document.get("error") or document) if isinstance(document, dict) else answer.text
    except ValueError:
        text = answer.text
    text = " ".join(text.split()) or answer.reason_phrase
    return text if len(text) <= _SAID else f"{text[:_SAID]}…"


def _retry_after(answer: httpx.Response) -> float:
    """Seconds that the server asks to be left alone; 0 when it does not say."""
    given = answer.headers.get("Retry-After", "")
    if given.isdigit():
        return float(given)
    try:
        return max(0.0, (parsedate_to_datetime(given) - _CLOCK.now()).total_seconds())
    except (TypeError, ValueError):
        return 0.0
