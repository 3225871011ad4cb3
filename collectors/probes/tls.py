"""The certificate of a door: who signed it, for whom, and until when.

Only the leaf is looked at. Its last day is read even from a certificate that is not to be trusted: a second
handshake trusts just that certificate, whatever its date and name.
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
    """Completes a handshake and looks at the certificate."""

    def __init__(self, asked: ProbeRequest, host: str, port: int) -> None:
        """``host`` is also the name the certificate must be for, unless ``access.tls.server_name`` is another."""
        self._asked, self._host, self._port = asked, host, port
        self.name, self.service, self.every, self.timeout = asked.name, asked.service, asked.every, asked.timeout
        self.address = f"{host}:{port}"

    async def run(self, at: datetime) -> ProbeResult:
        """One handshake, two when the certificate is not to be trusted."""
        loop = asyncio.get_running_loop()
        begun, fault = loop.time(), None
        expiry: datetime | None = None
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                try:
                    expiry = await expiry_of(self._host, self._port, self._asked.access)
                except CLIENT_ERRORS as found:
                    fault = probe_error(found, self.address, self.timeout)
                    if fault.outcome in (Outcome.TLS, Outcome.CERT_EXPIRED):
                        with suppress(*CLIENT_ERRORS):
                            expiry = await _last_day(self._host, self._port)
        except TimeoutError as found:
            fault = fault or probe_error(found, self.address, self.timeout)
        seconds = loop.time() - begun
        left = None if expiry is None else (expiry - at).total_seconds()
        fault = fault or expiry_problem(left, self._asked.cert_left, self.address)
        outcome, said = (Outcome.OK, "") if fault is None else (fault.outcome, fault.message)
        return ProbeResult(outcome, at, said, seconds, cert_expiry_seconds=left)

    async def close(self) -> None:
        """Nothing is kept open."""


def expiry_problem(left: float | None, least: timedelta, address: str) -> ProbeError | None:
    """What to say of a certificate that is valid for ``left`` seconds more; None when that is enough."""
    if left is None or left >= least.total_seconds():
        return None
    if left <= 0:
        return ProbeError(Outcome.CERT_EXPIRED, f"the certificate of {address} has expired")
    rest = format_duration(timedelta(seconds=round(left)))
    return ProbeError(Outcome.CERT_EXPIRING, f"the certificate of {address} expires in {rest}")


async def certificate_seconds_left(url: str, access: Access, at: datetime) -> float | None:
    """Seconds until the certificate of an https URL expires; None when there is none that can be read.

    Never raises for a fault of the door; the caller's deadline bounds it.
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
    """The last instant of a certificate that is to be trusted. Raises what the handshake raises."""
    trust = access.trust()
    context = trust if isinstance(trust, ssl.SSLContext) else ssl.create_default_context()
    if context.verify_mode is ssl.CERT_NONE:  # then Python does not read what the certificate says
        return await _last_day(host, port)
    found = await _handshake(host, port, context, access.server_name or host)
    return _not_after(found)


async def _last_day(host: str, port: int) -> datetime:
    careless = ssl.create_default_context()
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    shown = (await _handshake(host, port, careless, host)).getpeercert(binary_form=True)
    if shown is None:
        raise ProbeError(Outcome.TLS, f"{host}:{port} shows no certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=shown)
    context.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    return _not_after(await _handshake(host, port, context, host))


async def _handshake(host: str, port: int, context: ssl.SSLContext, name: str) -> ssl.SSLObject:
    _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    try:
        found: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return found
    finally:
        writer.transport.abort()


def _not_after(shaken: ssl.SSLObject) -> datetime:
    told = shaken.getpeercert() or {}
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(told["notAfter"])), UTC)
