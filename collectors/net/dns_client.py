"""DNS queries: the system's resolver for addresses, dnspython for all other record types.

Queries go over UDP, and over TCP if the response is truncated. The time is shared between the name servers:
a silent one does not use up the others' share.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import dns.asyncbackend
import dns.asyncquery
import dns.exception
import dns.inet
import dns.message
import dns.rcode
import dns.rdata
import dns.rdatatype
from dns.rdtypes.ANY.MX import MX
from dns.rdtypes.ANY.TXT import TXT
from dns.rdtypes.IN.SRV import SRV

from outrider.errors import CollectError, CollectReason
from outrider.vocabulary.units import format_duration

KINDS = ("A", "AAAA", "CNAME", "MX", "NS", "PTR", "SRV", "TXT")
RESOLV_CONF = Path("/etc/resolv.conf")
_PORT = 53
_FAMILIES = {"A": socket.AF_INET, "AAAA": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class Record:
    """One record: an address, a name or a text. Of an SRV record: the target's name and its port."""

    kind: str
    value: str
    port: int | None = None


@dataclass(frozen=True, slots=True)
class NameServer:
    """Address of a name server."""

    host: str
    port: int = _PORT

    @staticmethod
    def parse(text: str) -> NameServer:
        """Parses ``10.0.0.10``, ``10.0.0.10:5353``, ``[fd00::a]:53`` or ``fd00::a``. Raises ValueError otherwise."""
        host, port = text, str(_PORT)
        if text.startswith("["):
            host, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif text.count(":") == 1:
            host, port = text.split(":")
        ipaddress.ip_address(host)
        if not 0 < int(port) < 65536:
            raise ValueError(f"{port} is not a port")
        return NameServer(host, int(port))


async def lookup(
    name: str, kind: str, *, within: timedelta = timedelta(seconds=5), servers: Sequence[NameServer] = ()
) -> tuple[Record, ...]:
    """Returns all records of a type, in the order of the response; at least one.

    Without ``servers``, addresses are resolved by the system (hosts file, search domains). Other types are queried
    at the name servers of /etc/resolv.conf. Raises CollectError with reason DNS (no such name or record),
    TIMEOUT or REFUSED (no name server listens).
    """
    seconds = within.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            if not servers and kind in _FAMILIES:
                records = await _by_system(name, kind)
            else:
                records = await _by_query(name, kind, tuple(servers) or system_servers(), seconds)
    except TimeoutError as error:
        message = f"DNS lookup of {name} ({kind}) timed out after {format_duration(within)}"
        raise CollectError(message, reason=CollectReason.TIMEOUT, hint="check that the name servers respond") from error
    if not records:
        raise CollectError(f"{name} has no {kind} record", reason=CollectReason.DNS, hint="check the name")
    return records


async def _by_system(name: str, kind: str) -> tuple[Record, ...]:
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(name, None, family=_FAMILIES[kind], type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        message = f"{name} has no {kind} record that the system can resolve"
        raise CollectError(message, reason=CollectReason.DNS, hint="check the name") from error
    return tuple(dict.fromkeys(Record(kind, str(address[4][0])) for address in addresses))


def system_servers(path: Path = RESOLV_CONF) -> tuple[NameServer, ...]:
    """Returns the name servers of this host; 127.0.0.1 if none is configured, as resolvers do."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    servers = []
    for words in (line.split() for line in lines):
        if len(words) > 1 and words[0] == "nameserver":
            try:
                servers.append(NameServer.parse(f"[{words[1].split('%')[0]}]"))
            except ValueError:
                continue
    return tuple(servers) or (NameServer("127.0.0.1"),)


async def _by_query(name: str, kind: str, servers: Sequence[NameServer], seconds: float) -> tuple[Record, ...]:
    """Queries the servers in turn, two rounds, until one responds."""
    try:
        query = dns.message.make_query(name, kind)
        query.to_wire()
    except (dns.exception.DNSException, ValueError) as error:
        raise CollectError(f"{name!r} is not a valid DNS name", reason=CollectReason.DNS) from error
    refused: OSError | None = None
    silent = False
    for server in (*servers, *servers):
        try:
            async with asyncio.timeout(seconds / (2 * len(servers))):
                return _records(await _exchange(query, server), name, kind)
        except TimeoutError:
            silent = True
        except OSError as error:
            refused = error
    if refused is not None and not silent:
        address = f"{servers[0].host} port {servers[0].port}"
        raise CollectError(f"no name server responds at {address}", reason=CollectReason.REFUSED) from refused
    raise TimeoutError


def _records(response: dns.message.Message, name: str, kind: str) -> tuple[Record, ...]:
    if response.rcode() != dns.rcode.NOERROR:
        code = dns.rcode.to_text(response.rcode())
        raise CollectError(f"DNS lookup of {name} ({kind}) failed with {code}", reason=CollectReason.DNS)
    wanted = dns.rdatatype.from_text(kind)  # other types are the CNAMEs in between
    records = (_record(kind, rdata) for rrset in response.answer if rrset.rdtype == wanted for rdata in rrset)
    return tuple(dict.fromkeys(records))


def _record(kind: str, rdata: dns.rdata.Rdata) -> Record:
    if isinstance(rdata, SRV):
        return Record(kind, str(rdata.target).rstrip("."), int(rdata.port))
    if isinstance(rdata, TXT):
        return Record(kind, b"".join(rdata.strings).decode("utf-8", errors="replace"))
    if isinstance(rdata, MX):
        return Record(kind, str(rdata.exchange).rstrip("."))
    return Record(kind, rdata.to_text().rstrip("."))


async def _exchange(query: dns.message.Message, server: NameServer) -> dns.message.Message:
    """Sends a query and returns its response. Raises OSError if nothing listens or the connection breaks."""
    try:
        try:
            return await _over_udp(query, server)
        except dns.message.Truncated:
            return await dns.asyncquery.tcp(query, server.host, port=server.port, ignore_trailing=True)
    except (EOFError, dns.exception.DNSException) as error:
        raise ConnectionResetError("the name server sent an incomplete or unrelated response") from error


async def _over_udp(query: dns.message.Message, server: NameServer) -> dns.message.Message:
    """Raises Truncated if the response does not fit a datagram. Unrelated datagrams are ignored."""
    backend = dns.asyncbackend.get_default_backend()
    family, address = dns.inet.af_for_address(server.host), (server.host, server.port)
    # a connected socket: only then the kernel reports that the port is closed
    async with await backend.make_socket(family, socket.SOCK_DGRAM, 0, None, address) as sock:  # type: ignore[no-untyped-call]
        return await dns.asyncquery.udp(
            query,
            server.host,
            port=server.port,
            sock=sock,
            ignore_unexpected=True,
            ignore_errors=True,
            ignore_trailing=True,
            raise_on_truncation=True,
        )
