"""What a probe found: one outcome with a number that never changes, and the figures it could take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from outrider.model import EntityRef


class Outcome(StrEnum):
    """Why a probe succeeded or not. The place in this list is the value of ``probe_outcome_code``: append only.

    The first eight have the numbers of ``target_failure_code``.
    """

    OK = "ok"
    REFUSED = "refused"
    TIMEOUT = "timeout"  # nothing came back: no headers, no handshake, no record
    DNS = "dns"
    TLS = "tls"
    HTTP_STATUS = "http_status"  # of gRPC, too: the door answered with an error of its protocol
    WRONG_ANSWER = "wrong_answer"  # not what the protocol says, or not what was expected
    OTHER = "other"
    BROKEN_OFF = "broken_off"  # the connection ended in the middle of the answer
    NO_GENERATION = "no_generation"  # 200, and not one token
    EMPTY = "empty"  # a whole answer without a text
    REPEATED = "repeated"
    GARBLED = "garbled"
    STALLED = "stalled"  # tokens came, then none any more
    SLOW_FIRST_TOKEN = "slow_first_token"  # noqa: S105 - a token of text
    SLOW = "slow"  # whole, later than its limit
    UNFINISHED = "unfinished"  # tokens still came when the time was over
    STREAM_ERROR = "stream_error"  # an error object inside a stream that began with 200
    CERT_EXPIRED = "cert_expired"
    CERT_EXPIRING = "cert_expiring"
    NOT_SERVING = "not_serving"  # gRPC health
    WRONG_RECORDS = "wrong_records"  # the name leads elsewhere
    NOT_SENT = "not_asked"  # our own fault: nothing is known of the service

    @property
    def code(self) -> float:
        """The value of signal ``probe_outcome_code``."""
        return float(tuple(Outcome).index(self))

    @property
    def success(self) -> bool | None:
        """What ``probe_success`` says: connected, answered, generated. None when the door was not asked."""
        return None if self is Outcome.NOT_SENT else self in _SUCCESS


_SUCCESS = frozenset({Outcome.OK, Outcome.SLOW_FIRST_TOKEN, Outcome.SLOW, Outcome.CERT_EXPIRING})
# Nearest to the network first: of several probes of a service the first that failed says most about the others.
_RANK = (
    Outcome.DNS, Outcome.WRONG_RECORDS, Outcome.CERT_EXPIRED, Outcome.TLS, Outcome.REFUSED, Outcome.TIMEOUT,
    Outcome.BROKEN_OFF, Outcome.HTTP_STATUS, Outcome.NOT_SERVING, Outcome.WRONG_ANSWER, Outcome.STREAM_ERROR,
    Outcome.NO_GENERATION, Outcome.STALLED, Outcome.EMPTY, Outcome.GARBLED, Outcome.REPEATED, Outcome.UNFINISHED,
    Outcome.OTHER, Outcome.SLOW_FIRST_TOKEN, Outcome.SLOW, Outcome.CERT_EXPIRING, Outcome.OK, Outcome.NOT_SENT,
)  # fmt: skip


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The one that says most. Raises ValueError for none."""
    return min(outcomes, key=_RANK.index)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One asking. ``at`` is when it began; figures are seconds, None where they could not be taken.

    ``message`` is one sentence, empty when all is well. ``itl_seconds`` is the mean gap between tokens,
    ``cert_expiry_seconds`` negative once the certificate has expired, ``tokens`` those generated.
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
    """One door of one service."""

    @property
    def name(self) -> str:
        """Unique among the probes."""
        ...

    @property
    def service(self) -> EntityRef:
        """The service it speaks for."""
        ...

    @property
    def address(self) -> str:
        """Where it asks, for people."""
        ...

    @property
    def every(self) -> timedelta:
        """The least time between two askings."""
        ...

    @property
    def timeout(self) -> timedelta:
        """The longest an asking takes."""
        ...

    async def run(self, at: datetime) -> ProbeResult:
        """Ask once. Never raises for a fault of the door; over by the timeout whatever happens."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
