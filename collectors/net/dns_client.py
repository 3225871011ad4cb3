"""Look-ups of DNS records: by the system's resolver for addresses, by messages of our own for all else.

Messages are built and read by dnslib and sent over UDP, over TCP when an answer is cut. Every name server has
its share of the time, so that one that is silent does not cost the others their turn.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dnslib import QTYPE, RCODE, DNSError, DNSQuestion, DNSRecord

from outrider.errors import CollectError, CollectReason
from outrider.vocabulary.units import format_duration

KINDS = ("A", "AAAA", "CNAME", "MX", "NS", "PTR", "SRV", "TXT")
RESOLV_CONF = Path("/etc/resolv.conf")
_PORT = 53
_FAMILIES = {"A": socket.AF_INET, "AAAA": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class Record:
    """One record: an address, a name or a text; of an SRV record the target's name, with its port."""

    kind: str
    value: str
    port: int | None = None


@dataclass(frozen=True, slots=True)
class NameServer:
    """Where a question is sent."""

    host: str
    port: int = _PORT

    @staticmethod
    def parse(text: str) -> NameServer:
        """``10.0.0.10``, ``10.0.0.10:5353``, ``[fd00::a]:53`` or ``fd00::a``. Raises ValueError for anything else."""
        host, port = text, str(_PORT)
        if text.startswith("["):
            host, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif text.count(":") == 1:
            host, port = text.split(":")
        ipaddress.ip_address(host)
        if not 0 < int(port) < 65536:
            raise ValueError(f"{port} is no port")
        return NameServer(host, int(port))


async def lookup(
    name: str, kind: str, *, within: timedelta = timedelta(seconds=5), servers: Sequence[NameServer] = ()
) -> tuple[Record, ...]:
    """Every record of a kind, in the order they came; at least one.

    Without ``servers`` addresses are looked up as the system does (hosts file, search domains), other kinds
    at the name servers of /etc/resolv.conf. Raises CollectError with reason DNS (no such name or record),
    TIMEOUT or REFUSED (no name server listens).
    """
    seconds = within.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            if not servers and kind in _FAMILIES:
                found = await _by_system(name, kind)
            else:
                found = await _by_messages(name, kind, tuple(servers) or system_servers(), seconds)
    except TimeoutError as error:
        said = f"the look-up of {name} ({kind}) had no answer within {format_duration(within)}"
        raise CollectError(said, reason=CollectReason.TIMEOUT, hint="see whether the name servers answer") from error
    if not found:
        raise CollectError(f"{name} has no {kind} record", reason=CollectReason.DNS, hint="check the name")
    return found


async def _by_system(name: str, kind: str) -> tuple[Record, ...]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, None, family=_FAMILIES[kind], type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        said = f"{name} has no {kind} record that the system can find"
        raise CollectError(said, reason=CollectReason.DNS, hint="check the name") from error
    return tuple(dict.fromkeys(Record(kind, str(one[4][0])) for one in found))


def system_servers(path: Path = RESOLV_CONF) -> tuple[NameServer, ...]:
    """The name servers of this machine; its own one when none is named, as resolvers do."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    found = []
    for words in (line.split() for line in lines):
        if len(words) > 1 and words[0] == "nameserver":
            try:
                found.append(NameServer.parse(f"[{words[1].split('%')[0]}]"))
            except ValueError:
                continue
    return tuple(found) or (NameServer("127.0.0.1"),)


async def _by_messages(name: str, kind: str, servers: Sequence[NameServer], seconds: float) -> tuple[Record, ...]:
    """Ask the servers one after the other, twice around, until one answers."""
    try:
        question = DNSRecord(q=DNSQuestion(name, getattr(QTYPE, kind)))
        question.header.id = secrets.randbelow(2**16)
        sent = question.pack()
    except (DNSError, ValueError, UnicodeError) as error:
        raise CollectError(f"{name!r} is no name that can be looked up", reason=CollectReason.DNS) from error
    refused: OSError | None = None
    silent = False
    for server in (*servers, *servers):
        try:
            async with asyncio.timeout(seconds / (2 * len(servers))):
                return _read(await _exchange(sent, server), name, kind)
        except TimeoutError:
            silent = True
        except OSError as error:
            refused = error
    if refused is not None and not silent:
        where = f"{servers[0].host} port {servers[0].port}"
        raise CollectError(f"no name server answers at {where}", reason=CollectReason.REFUSED) from refused
    raise TimeoutError


def _read(answer: DNSRecord, name: str, kind: str) -> tuple[Record, ...]:
    if answer.header.rcode != RCODE.NOERROR:
        code = RCODE.get(answer.header.rcode)
        raise CollectError(f"the look-up of {name} ({kind}) failed with {code}", reason=CollectReason.DNS)
    found = []
    for one in answer.rr:
        if QTYPE.get(one.rtype) != kind:
            continue  # the CNAMEs on the way
        if kind == "SRV":
            found.append(Record(kind, str(one.rdata.target).rstrip("."), int(one.rdata.port)))
        elif kind == "TXT":
            found.append(Record(kind, b"".join(one.rdata.data).decode("utf-8", errors="replace")))
        elif kind == "MX":
            found.append(Record(kind, str(one.rdata.label).rstrip(".")))
        else:
            found.append(Record(kind, str(one.rdata).rstrip(".")))
    return tuple(dict.fromkeys(found))


async def _exchange(sent: bytes, server: NameServer) -> DNSRecord:
    """One question and its answer. Raises OSError when nobody listens."""
    answer = await _over_udp(sent, server)
    return await _over_tcp(sent, server) if answer.header.tc else answer


class _Waiting(asyncio.DatagramProtocol):
    """Waits for the datagram that answers a question; others are left aside."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent
        self.answer: asyncio.Future[DNSRecord] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _addr: object) -> None:
        found = _parsed(data, self._sent)
        if found is not None and not self.answer.done():
            self.answer.set_result(found)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _over_udp(sent: bytes, server: NameServer) -> DNSRecord:
    loop = asyncio.get_running_loop()
    transport, waiting = await loop.create_datagram_endpoint(
        lambda: _Waiting(sent), remote_addr=(server.host, server.port)
    )
    try:
        transport.sendto(sent)
        return await waiting.answer
    finally:
        transport.close()


async def _over_tcp(sent: bytes, server: NameServer) -> DNSRecord:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(len(sent).to_bytes(2, "big") + sent)
        size = int.from_bytes(await reader.readexactly(2), "big")
        found = _parsed(await reader.readexactly(size), sent)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the name server broke off its answer") from error
    finally:
        writer.close()
    if found is None:
        raise ConnectionResetError("the name server answered something else")
    return found


def _parsed(data: bytes, sent: bytes) -> DNSRecord | None:
    """The answer to the question ``sent``; None for anything else."""
    if data[:2] != sent[:2]:
        return None
    try:
        found = DNSRecord.parse(data)
    except DNSError:
        return None
    asked = DNSRecord.parse(sent)
    return found if found.header.qr and str(found.q.qname).lower() == str(asked.q.qname).lower() else None
