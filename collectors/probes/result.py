"""Results of probes: an outcome with a fixed number, and measured times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from outrider.model import EntityRef


class Outcome(StrEnum):
    """Outcome of a probe. The position in this list is the value of ``probe_outcome_code``: append only.

    The first eight have the numbers of ``target_failure_code``.
    """

    OK = "ok"
    REFUSED = "refused"
    TIMEOUT = "timeout"  # no response: no headers, no handshake, no record
    DNS = "dns"
    TLS = "tls"
    HTTP_STATUS = "http_status"  # also for gRPC: a protocol error
    WRONG_ANSWER = "wrong_answer"  # violates the protocol or the expectation
    OTHER = "other"
    BROKEN_OFF = "broken_off"  # the connection ended within the response
    NO_GENERATION = "no_generation"  # 200 without a token
    EMPTY = "empty"  # a complete response without text
    REPEATED = "repeated"
    GARBLED = "garbled"
    STALLED = "stalled"  # tokens stopped arriving
    SLOW_FIRST_TOKEN = "slow_first_token"  # noqa: S105 - a token of text
    SLOW = "slow"  # complete, but later than the limit
    UNFINISHED = "unfinished"  # tokens were still arriving at the timeout
    STREAM_ERROR = "stream_error"  # an error object within a stream that started with 200
    CERT_EXPIRED = "cert_expired"
    CERT_EXPIRING = "cert_expiring"
    NOT_SERVING = "not_serving"  # gRPC health
    WRONG_RECORDS = "wrong_records"  # the name resolves to other values
    NOT_SENT = "not_asked"  # local error: the state of the service is unknown

    @property
    def code(self) -> float:
        """The value of signal ``probe_outcome_code``."""
        return float(tuple(Outcome).index(self))

    @property
    def success(self) -> bool | None:
        """The value of ``probe_success``: connected, responded, generated. None if the request was not sent."""
        return None if self is Outcome.NOT_SENT else self in _SUCCESS


_SUCCESS = frozenset({Outcome.OK, Outcome.SLOW_FIRST_TOKEN, Outcome.SLOW, Outcome.CERT_EXPIRING})
# Nearest to the network first: of several failed probes of a service, the first explains most of the others.
_RANK = (
    Outcome.DNS, Outcome.WRONG_RECORDS, Outcome.CERT_EXPIRED, Outcome.TLS, Outcome.REFUSED, Outcome.TIMEOUT,
    Outcome.BROKEN_OFF, Outcome.HTTP_STATUS, Outcome.NOT_SERVING, Outcome.WRONG_ANSWER, Outcome.STREAM_ERROR,
    Outcome.NO_GENERATION, Outcome.STALLED, Outcome.EMPTY, Outcome.GARBLED, Outcome.REPEATED, Outcome.UNFINISHED,
    Outcome.OTHER, Outcome.SLOW_FIRST_TOKEN, Outcome.SLOW, Outcome.CERT_EXPIRING, Outcome.OK, Outcome.NOT_SENT,
)  # fmt: skip


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome that explains most. Raises ValueError for an empty input."""
    return min(outcomes, key=_RANK.index)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One run of a probe. ``at`` is its start; times are in seconds, None if not measured.

    ``message`` is one sentence, empty on success. ``itl_seconds`` is the mean gap between tokens,
    ``cert_expiry_seconds`` is negative once the certificate has expired, ``tokens`` are those generated.
    """

    outcome: Outcome
    at: datetime
    message: str = ""
    e2e_seconds: float | None = None
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    tokens: int | None = None
    cert_expiry_seconds: float | None = None
    status: int | None = None


class Probe(Protocol):
    """A probe of one endpoint of one service."""

    @property
    def name(self) -> str:
        """Unique among the probes."""
        ...

    @property
    def service(self) -> EntityRef:
        """The probed service."""
        ...

    @property
    def address(self) -> str:
        """The endpoint, for display."""
        ...

    @property
    def every(self) -> timedelta:
        """Minimum interval between two runs."""
        ...

    @property
    def timeout(self) -> timedelta:
        """Maximum duration of a run."""
        ...

    async def run(self, at: datetime) -> ProbeResult:
        """Runs the probe once. Never raises for an endpoint's error; ends by the timeout."""
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...
