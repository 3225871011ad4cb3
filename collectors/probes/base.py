"""Common parts of all probes, and the mapping of client errors to outcomes."""

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
    """Settings common to all probes: name, service, interval, timeout and credentials.

    ``cert_left`` is the minimum remaining validity of a certificate.
    """

    name: str
    service: EntityRef
    every: timedelta = timedelta(seconds=30)
    timeout: timedelta = timedelta(seconds=10)
    access: Access = field(default_factory=Access)
    cert_left: timedelta = timedelta(days=14)


class ProbeError(Exception):
    """A probe ended with this outcome."""

    def __init__(self, outcome: Outcome, message: str, status: int | None = None) -> None:
        """``message`` is one sentence; ``status`` the HTTP code if there was one."""
        super().__init__(message)
        self.outcome, self.message, self.status = outcome, message, status


def probe_error(fault: BaseException, address: str, timeout: timedelta) -> ProbeError:
    """Maps any error of a probe to an outcome and one sentence."""
    if isinstance(fault, ProbeError):
        return fault
    if isinstance(fault, CollectError):  # own credential or certificate: the request was not sent
        return ProbeError(Outcome.NOT_SENT, fault.message)
    if isinstance(fault, TimeoutError):
        return ProbeError(Outcome.TIMEOUT, f"{address} did not respond within {format_duration(timeout)}")
    inner = getattr(fault, "os_error", None) or fault
    if isinstance(inner, socket.gaierror) or isinstance(fault, aiohttp.ClientConnectorDNSError):
        return ProbeError(Outcome.DNS, f"the host name of {address} cannot be resolved")
    tls_error = getattr(fault, "certificate_error", None) or inner
    if isinstance(tls_error, ssl.SSLCertVerificationError):
        if tls_error.verify_code == _EXPIRED:
            return ProbeError(Outcome.CERT_EXPIRED, f"the certificate of {address} has expired")
        return ProbeError(Outcome.TLS, f"the certificate of {address} is not trusted: {tls_error.verify_message}")
    if isinstance(tls_error, ssl.SSLError | aiohttp.ClientSSLError):
        return ProbeError(Outcome.TLS, f"TLS handshake with {address} failed")
    if isinstance(inner, ConnectionRefusedError):
        return ProbeError(Outcome.REFUSED, f"{address} refuses connections")
    if isinstance(fault, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionError | EOFError):
        return ProbeError(Outcome.BROKEN_OFF, f"{address} closed the connection early")
    if isinstance(fault, aiohttp.ClientConnectorError | OSError):
        return ProbeError(Outcome.REFUSED, f"{address} cannot be reached ({inner})")
    if isinstance(fault, aiohttp.ClientResponseError):
        return ProbeError(Outcome.WRONG_ANSWER, f"{address} returned a response that is not HTTP")
    if isinstance(fault, ValueError):  # an invalid header or address: a configuration error
        return ProbeError(Outcome.NOT_SENT, f"request to {address} cannot be sent: {fault}")
    return ProbeError(Outcome.OTHER, f"request to {address} failed ({type(fault).__name__})")


CLIENT_ERRORS = (
    ProbeError,
    CollectError,
    aiohttp.ClientError,
    OSError,
    ValueError,
    EOFError,
)  # TimeoutError is an OSError


def failed_result(
    fault: BaseException, request: ProbeRequest, address: str, at: datetime, started: float
) -> ProbeResult:
    """Result of a probe that failed without further data."""
    error = probe_error(fault, address, request.timeout)
    return ProbeResult(error.outcome, at, error.message, asyncio.get_running_loop().time() - started)


def new_session() -> aiohttp.ClientSession:
    """A client without kept connections: each probe connects anew, as a new client would."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=4, use_dns_cache=False),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": "outrider-probe"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )
