"""TLS probe: issuer, name and expiry of an endpoint's certificate.

Only the leaf is checked. Its expiry is read even from an untrusted certificate: a second handshake trusts exactly
that certificate, regardless of its date and name.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from collectors.probes.base import CLIENT_ERRORS, ProbeError, ProbeRequest, probe_error
from collectors.probes.result import Outcome, ProbeResult
from outrider.vocabulary.units import format_duration
from outrider.wire.http_auth import Access

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME


class TlsProbe:
    """Completes a handshake and checks the certificate."""

    def __init__(self, request: ProbeRequest, host: str, port: int) -> None:
        """``host`` is also the expected name in the certificate, unless ``access.tls.server_name`` is set."""
        self._settings, self._host, self._port = request, host, port
        self.name, self.service, self.every, self.timeout = (
            request.name,
            request.service,
            request.every,
            request.timeout,
        )
        self.address = f"{host}:{port}"

    async def run(self, at: datetime) -> ProbeResult:
        """Makes one handshake, two if the certificate is not trusted."""
        loop = asyncio.get_running_loop()
        started, error = loop.time(), None
        expiry: datetime | None = None
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                try:
                    expiry = await expiry_of(self._host, self._port, self._settings.access)
                except CLIENT_ERRORS as cause:
                    error = probe_error(cause, self.address, self.timeout)
                    if error.outcome in (Outcome.TLS, Outcome.CERT_EXPIRED):
                        with suppress(*CLIENT_ERRORS):
                            expiry = await _last_day(self._host, self._port)
        except TimeoutError as cause:
            error = error or probe_error(cause, self.address, self.timeout)
        seconds = loop.time() - started
        left = None if expiry is None else (expiry - at).total_seconds()
        error = error or expiry_problem(left, self._settings.cert_left, self.address)
        outcome, message = (Outcome.OK, "") if error is None else (error.outcome, error.message)
        return ProbeResult(outcome, at, message, seconds, cert_expiry_seconds=left)

    async def close(self) -> None:
        """Does nothing: no connection is kept."""


def expiry_problem(left: float | None, least: timedelta, address: str) -> ProbeError | None:
    """Error for a certificate valid for ``left`` more seconds; None if that is sufficient."""
    if left is None or left >= least.total_seconds():
        return None
    if left <= 0:
        return ProbeError(Outcome.CERT_EXPIRED, f"the certificate of {address} has expired")
    rest = format_duration(timedelta(seconds=round(left)))
    return ProbeError(Outcome.CERT_EXPIRING, f"the certificate of {address} expires in {rest}")


async def certificate_seconds_left(url: str, access: Access, at: datetime) -> float | None:
    """Seconds until the certificate of an https URL expires; None if none can be read.

    Never raises for an endpoint's error; the caller's deadline bounds it.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        return None
    host, port = parts.hostname, parts.port or 443
    with suppress(*CLIENT_ERRORS):
        return (await expiry_of(host, port, access) - at).total_seconds()
    with suppress(*CLIENT_ERRORS):
        return (await _last_day(host, port) - at).total_seconds()
    return None


async def expiry_of(host: str, port: int, access: Access) -> datetime:
    """Expiry of a trusted certificate. Raises the errors of the handshake."""
    trust = access.trust()
    context = trust if isinstance(trust, ssl.SSLContext) else ssl.create_default_context()
    if context.verify_mode is ssl.CERT_NONE:  # then Python does not parse the certificate
        return await _last_day(host, port)
    tls = await _handshake(host, port, context, access.server_name or host)
    return _not_after(tls)


async def _last_day(host: str, port: int) -> datetime:
    careless = ssl.create_default_context()
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    certificate = (await _handshake(host, port, careless, host)).getpeercert(binary_form=True)
    if certificate is None:
        raise ProbeError(Outcome.TLS, f"{host}:{port} presented no certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    context.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    return _not_after(await _handshake(host, port, context, host))


async def _handshake(host: str, port: int, context: ssl.SSLContext, name: str) -> ssl.SSLObject:
    _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    try:
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return tls
    finally:
        writer.transport.abort()


def _not_after(tls: ssl.SSLObject) -> datetime:
    certificate = tls.getpeercert() or {}
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
