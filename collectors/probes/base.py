"""What every probe has, and how faults of client libraries become outcomes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import aiohttp

from collectors.probes.result import Outcome, ProbeResult
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityRef
from outrider.vocabulary.units import format_duration
from outrider.wire.http_auth import Access

_OF_REASON = {
    CollectReason.REFUSED: Outcome.REFUSED,
    CollectReason.TIMEOUT: Outcome.TIMEOUT,
    CollectReason.DNS: Outcome.DNS,
    CollectReason.TLS: Outcome.TLS,
}
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What all probes have: a name, the service they speak for, their pace, how the door is asked.

    ``cert_left`` is the least time that a certificate must still be valid.
    """

    name: str
    service: EntityRef
    every: timedelta = timedelta(seconds=30)
    timeout: timedelta = timedelta(seconds=10)
    access: Access = field(default_factory=Access)
    cert_left: timedelta = timedelta(days=14)


class ProbeError(Exception):
    """An asking ended with this outcome."""

    def __init__(self, outcome: Outcome, said: str, status: int | None = None) -> None:
        """``message`` is one sentence; ``status`` the HTTP code where there was one."""
        super().__init__(said)
        self.outcome, self.message, self.status = outcome, said, status


def probe_error(fault: BaseException, address: str, timeout: timedelta) -> ProbeError:
    """One outcome and one sentence for whatever went wrong at a door."""
    if isinstance(fault, ProbeError):
        return fault
    if isinstance(fault, CollectError):  # a credential or certificate of ours: the door was never asked
        return ProbeError(Outcome.NOT_SENT, fault.message)
    if isinstance(fault, TimeoutError):
        return ProbeError(Outcome.TIMEOUT, f"{address} did not answer within {format_duration(timeout)}")
    inner = getattr(fault, "os_error", None) or fault
    if isinstance(inner, socket.gaierror) or isinstance(fault, aiohttp.ClientConnectorDNSError):
        return ProbeError(Outcome.DNS, f"{address} has a host name that cannot be resolved")
    told = getattr(fault, "certificate_error", None) or inner
    if isinstance(told, ssl.SSLCertVerificationError):
        if told.verify_code == _EXPIRED:
            return ProbeError(Outcome.CERT_EXPIRED, f"the certificate of {address} has expired")
        return ProbeError(Outcome.TLS, f"the certificate of {address} is not to be trusted: {told.verify_message}")
    if isinstance(told, ssl.SSLError | aiohttp.ClientSSLError):
        return ProbeError(Outcome.TLS, f"{address} does not complete a TLS handshake")
    if isinstance(inner, ConnectionRefusedError):
        return ProbeError(Outcome.REFUSED, f"{address} refuses connections")
    if isinstance(fault, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionError | EOFError):
        return ProbeError(Outcome.BROKEN_OFF, f"{address} broke off its answer")
    if isinstance(fault, aiohttp.ClientConnectorError | OSError):
        return ProbeError(Outcome.REFUSED, f"{address} cannot be reached ({inner})")
    if isinstance(fault, aiohttp.ClientResponseError):
        return ProbeError(Outcome.WRONG_ANSWER, f"{address} answers something that is no HTTP")
    if isinstance(fault, ValueError):  # a header with a line end in it, an address that is none: ours to mend
        return ProbeError(Outcome.NOT_SENT, f"{address} cannot be asked: {fault}")
    return ProbeError(Outcome.OTHER, f"{address} cannot be asked ({type(fault).__name__})")


CLIENT_ERRORS = (
    ProbeError,
    CollectError,
    aiohttp.ClientError,
    OSError,
    ValueError,
    EOFError,
)  # TimeoutError is an OSError


def failed_result(fault: BaseException, asked: ProbeRequest, address: str, at: datetime, begun: float) -> ProbeResult:
    """The result of an asking that failed without more to tell."""
    found = probe_error(fault, address, asked.timeout)
    return ProbeResult(found.outcome, at, found.message, asyncio.get_running_loop().time() - begun)


def new_session() -> aiohttp.ClientSession:
    """A client that keeps no connection: each asking connects anew, as a new client would."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=4, use_dns_cache=False),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": "outrider-probe"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )
