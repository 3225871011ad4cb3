"""HTTP, TLS, DNS and gRPC health probes, each against a real server."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from aiohttp import web
from dnslib import RR
from dnslib.server import DNSLogger, DNSServer

from collectors.net.dns_client import NameServer, lookup, system_servers
from collectors.probes.base import ProbeRequest
from collectors.probes.completion import CompletionProbe, CompletionRequest
from collectors.probes.dns import DnsProbe
from collectors.probes.grpc_health import GrpcHealthProbe
from collectors.probes.http import ExpectedResponse, HttpProbe
from collectors.probes.result import Outcome
from collectors.probes.tls import TlsProbe
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef
from outrider.wire.http_auth import Access, Tls

SERVICE = EntityRef("test", EntityKind.SERVICE, None, "chat")
DAY = timedelta(days=1)


def now() -> datetime:
    return datetime.now(UTC)


def probe_request(seconds: float = 5, **more) -> ProbeRequest:
    return ProbeRequest("endpoint", SERVICE, timeout=timedelta(seconds=seconds), **more)


async def hello(request: web.Request) -> web.StreamResponse:
    return web.Response(text=f"hello {request.method} {await request.text()}")


async def away(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/")


async def never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def endpoint(context: ssl.SSLContext | None = None):
    app = web.Application()
    app.router.add_route("*", "/", hello)
    app.router.add_get("/away", away)
    app.router.add_get("/never", never)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def context_of(authority: trustme.CA, *names: str, until: datetime | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, not_after=until, not_before=now() - 30 * DAY).configure_cert(context)
    return context


@pytest.fixture
def trusting(authority: trustme.CA, tmp_path) -> Access:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return Access(tls=Tls(ca_file=tmp_path / "ca.pem"))


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "more", "outcome"),
    [
        ("/", {}, Outcome.OK),
        ("/", {"expected": ExpectedResponse(body=re.compile("^hello GET"))}, Outcome.OK),
        ("/", {"method": "POST", "body": "you", "expected": ExpectedResponse(body=re.compile("POST you"))}, Outcome.OK),
        ("/", {"expected": ExpectedResponse(body=re.compile("welcome"))}, Outcome.WRONG_ANSWER),
        ("/", {"expected": ExpectedResponse(body_not=re.compile("hello"))}, Outcome.WRONG_ANSWER),
        ("/", {"expected": ExpectedResponse(status=(204,))}, Outcome.HTTP_STATUS),
        ("/nowhere", {}, Outcome.HTTP_STATUS),
        ("/nowhere", {"expected": ExpectedResponse(status=(404,))}, Outcome.OK),
        ("/away", {}, Outcome.HTTP_STATUS),
        ("/away", {"follow_redirects": True}, Outcome.OK),
        ("/never", {}, Outcome.TIMEOUT),
    ],
)
def test_http_probe(path: str, more: dict, outcome: Outcome) -> None:
    async def whole() -> None:
        async with endpoint() as port:
            seconds = 0.2 if outcome is Outcome.TIMEOUT else 5
            result = await HttpProbe(probe_request(seconds), f"http://127.0.0.1:{port}{path}", **more).run(now())
            assert (result.outcome, bool(result.message)) == (outcome, outcome is not Outcome.OK)
            assert result.e2e_seconds is not None
            assert result.cert_expiry_seconds is None

    asyncio.run(whole())


def test_http_probe_of_a_closed_port_and_another_protocol() -> None:
    async def speak_smtp(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async def whole() -> None:
        result = await HttpProbe(probe_request(), "http://127.0.0.1:1/").run(now())
        assert result.outcome is Outcome.REFUSED
        result = await HttpProbe(probe_request(), "http://no-such-host.invalid/").run(now())
        assert result.outcome is Outcome.DNS
        server = await asyncio.start_server(speak_smtp, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            result = await HttpProbe(probe_request(), f"http://127.0.0.1:{port}/").run(now())
            assert result.outcome is Outcome.WRONG_ANSWER

    asyncio.run(whole())


def test_a_local_request_error_is_not_an_endpoint_failure() -> None:
    async def whole() -> None:
        async with endpoint() as port:
            for url, headers in ((f"http://127.0.0.1:{port}/", {"X-Own": "a\nb"}), ("http://", {})):
                result = await HttpProbe(probe_request(access=Access(headers=headers)), url).run(now())
                assert (result.outcome, result.outcome.success) == (Outcome.NOT_SENT, None), result.message

    asyncio.run(whole())


# --- certificates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tls", "http"])
@pytest.mark.parametrize(
    ("names", "days", "trusted", "outcome"),
    [
        (("localhost",), 90, True, Outcome.OK),
        (("localhost",), 5, True, Outcome.CERT_EXPIRING),
        (("localhost",), -2, True, Outcome.CERT_EXPIRED),
        (("elsewhere.example",), 90, True, Outcome.TLS),
        (("localhost",), 90, False, Outcome.TLS),
    ],
)
def test_tls_probe(kind, names, days, trusted, outcome, authority, trusting) -> None:
    async def whole() -> None:
        until = now().replace(microsecond=0) + days * DAY
        async with endpoint(context_of(authority, *names, until=until)) as port:
            of = probe_request(access=trusting if trusted else Access())
            probe = TlsProbe(of, "localhost", port) if kind == "tls" else HttpProbe(of, f"https://localhost:{port}/")
            at = now()
            result = await probe.run(at)
        assert result.outcome is outcome, result.message
        assert result.cert_expiry_seconds == pytest.approx((until - at).total_seconds(), abs=1)
        assert result.outcome.success is (outcome in (Outcome.OK, Outcome.CERT_EXPIRING))

    asyncio.run(whole())


def test_an_unverified_probe_reads_the_expiry(authority) -> None:
    async def whole() -> None:
        until = now().replace(microsecond=0) + 5 * DAY
        async with endpoint(context_of(authority, "elsewhere.example", until=until)) as port:
            result = await TlsProbe(
                probe_request(access=Access(tls=Tls(insecure_skip_verify=True))), "localhost", port
            ).run(now())
        assert result.outcome is Outcome.CERT_EXPIRING
        assert result.message.startswith("the certificate of localhost:")

    asyncio.run(whole())


def test_tls_probe_of_plain_closed_and_silent_ports() -> None:
    async def whole() -> None:
        async with endpoint() as port:
            assert (await TlsProbe(probe_request(), "127.0.0.1", port).run(now())).outcome is Outcome.TLS
        assert (await TlsProbe(probe_request(), "127.0.0.1", 1).run(now())).outcome is Outcome.REFUSED
        assert (await TlsProbe(probe_request(), "no-such-host.invalid", 443).run(now())).outcome is Outcome.DNS
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            assert (await TlsProbe(probe_request(0.2), "127.0.0.1", port).run(now())).outcome is Outcome.TIMEOUT

    asyncio.run(whole())


def test_a_cancelled_probe_ends_at_once() -> None:
    async def whole() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
            for probe in (
                HttpProbe(probe_request(600), url),
                CompletionProbe(probe_request(600), url, CompletionRequest("m")),
            ):
                task = asyncio.create_task(probe.run(now()))
                async with asyncio.timeout(60):
                    connection, _ = await asyncio.get_running_loop().sock_accept(silent)
                    task.cancel()
                    await asyncio.wait((task,))
                connection.close()
                assert task.cancelled()

    asyncio.run(whole())


def test_unreadable_local_certificates_are_not_an_endpoint_failure(tmp_path) -> None:
    access = Access(tls=Tls(ca_file=tmp_path / "none.pem"))

    async def whole() -> None:
        async with endpoint() as port:
            for probe in (
                TlsProbe(probe_request(access=access), "127.0.0.1", port),
                HttpProbe(probe_request(access=access), f"https://127.0.0.1:{port}/"),
            ):
                result = await probe.run(now())
                assert (result.outcome, "none.pem" in result.message) == (Outcome.NOT_SENT, True)

    asyncio.run(whole())


# --- names ----------------------------------------------------------------------------------------

ZONE = """
chat.test. 60 IN A 10.0.0.1
chat.test. 60 IN A 10.0.0.2
www.test. 60 IN CNAME chat.test.
_metrics._tcp.chat.test. 60 IN SRV 0 5 8000 chat-0.test.
_metrics._tcp.chat.test. 60 IN SRV 0 5 8001 chat-1.test.
note.test. 60 IN TXT "hello" "you"
six.test. 60 IN AAAA fd00::1
"""


class Zone:
    """Answers from ZONE; ``big.test`` has more addresses than a datagram holds, ``broken.test`` fails."""

    def resolve(self, request, handler):
        reply, name = request.reply(), str(request.q.qname)
        if name == "broken.test.":
            reply.header.rcode = 2
        elif name == "big.test.":
            if handler.protocol == "udp":
                reply.header.tc = 1
            else:
                reply.add_answer(*RR.fromZone("\n".join(f"big.test. 60 IN A 10.1.0.{n}" for n in range(200))))
        else:
            result = [one for one in RR.fromZone(ZONE) if str(one.rname) == name]
            if not result:
                reply.header.rcode = 3
            by_kind = [one for one in result if one.rtype == request.q.qtype]
            reply.add_answer(*by_kind)
        return reply


@pytest.fixture(scope="module")
def name_server():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = DNSLogger(logf=lambda _line: None)
    servers = [DNSServer(Zone(), address="127.0.0.1", port=port, tcp=tcp, logger=quiet) for tcp in (False, True)]
    for server in servers:
        server.start_thread()
    yield NameServer("127.0.0.1", port)
    for server in servers:
        server.stop()
        server.server.server_close()


@pytest.mark.parametrize(
    ("host", "record", "expect", "outcome"),
    [
        ("chat.test", "A", (), Outcome.OK),
        ("chat.test", "A", ("10.0.0.2",), Outcome.OK),
        ("chat.test", "A", ("10.0.0.2", "10.0.0.9"), Outcome.WRONG_RECORDS),
        ("www.test", "CNAME", ("chat.test",), Outcome.OK),
        ("_metrics._tcp.chat.test", "SRV", ("chat-1.test",), Outcome.OK),
        ("note.test", "TXT", ("helloyou",), Outcome.OK),
        ("six.test", "AAAA", ("fd00::1",), Outcome.OK),
        ("big.test", "A", ("10.1.0.199",), Outcome.OK),
        ("chat.test", "AAAA", (), Outcome.DNS),
        ("gone.test", "A", (), Outcome.DNS),
        ("broken.test", "A", (), Outcome.DNS),
        ("a" * 70 + ".test", "A", (), Outcome.DNS),
    ],
)
def test_dns_probe(name_server, host, record, expect, outcome) -> None:
    probe = DnsProbe(probe_request(2), host, record=record, expect=expect, servers=(name_server,))
    result = asyncio.run(probe.run(now()))
    assert result.outcome is outcome, result.message
    assert bool(result.message) is (outcome is not Outcome.OK)


def test_dns_probe_of_unreachable_and_silent_name_servers(name_server) -> None:
    async def whole() -> None:
        away = DnsProbe(probe_request(1), "chat.test", servers=(NameServer("127.0.0.1", 1),))
        assert (await away.run(now())).outcome is Outcome.REFUSED
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            mute = NameServer("127.0.0.1", silent.getsockname()[1])
            assert (
                await DnsProbe(probe_request(0.2), "chat.test", servers=(mute,)).run(now())
            ).outcome is Outcome.TIMEOUT
            both = DnsProbe(probe_request(1), "chat.test", servers=(mute, name_server))
            assert (await both.run(now())).outcome is Outcome.OK

    asyncio.run(whole())


def test_dns_probe_with_the_system_resolver() -> None:
    async def whole() -> None:
        result = await lookup("localhost", "A")
        assert [one.value for one in result] == ["127.0.0.1"]
        with pytest.raises(CollectError) as fault:
            await lookup("no-such-host.invalid", "A")
        assert fault.value.reason == CollectReason.DNS

    asyncio.run(whole())


def test_name_servers_of_resolv_conf(tmp_path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text("# x\nsearch a b\nnameserver 10.0.0.10\nnameserver fe80::1%eth0\nnameserver rubbish\nnameserver\n")
    assert system_servers(conf) == (NameServer("10.0.0.10"), NameServer("fe80::1"))
    assert system_servers(tmp_path / "none") == (NameServer("127.0.0.1"),)
    assert NameServer.parse("[fd00::a]:5353") == NameServer("fd00::a", 5353)
    assert NameServer.parse("10.0.0.1:99") == NameServer("10.0.0.1", 99)
    for text in ("dns.example", "10.0.0.1:0", "", "[x]:1"):
        with pytest.raises(ValueError):  # noqa: PT011 - ipaddress says which
            NameServer.parse(text)


# --- gRPC health ----------------------------------------------------------------------------------


@asynccontextmanager
async def grpc_endpoint(credentials=None, *, with_health: bool = True):
    grpc = pytest.importorskip("grpc", reason="missing: grpcio is not installed")
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    if with_health:
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    statuses = health_pb2.HealthCheckResponse
    await servicer.set("", statuses.SERVING)
    await servicer.set("loading", statuses.NOT_SERVING)
    port = (
        server.add_secure_port("localhost:0", credentials) if credentials else server.add_insecure_port("127.0.0.1:0")
    )
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def test_grpc_health_probe() -> None:
    async def whole() -> None:
        async with grpc_endpoint() as port:

            async def outcome(**more) -> Outcome:
                return (await GrpcHealthProbe(probe_request(), "127.0.0.1", port, **more).run(now())).outcome

            assert await outcome() is Outcome.OK
            assert await outcome(service="loading") is Outcome.NOT_SERVING
            assert await outcome(service="unknown") is Outcome.NOT_SERVING
            assert await outcome(tls=True) is Outcome.TLS
        async with grpc_endpoint(with_health=False) as port:
            result = await GrpcHealthProbe(probe_request(), "127.0.0.1", port).run(now())
            assert (result.outcome, result.message) == (
                Outcome.WRONG_ANSWER,
                f"127.0.0.1:{port} has no gRPC health service",
            )

    asyncio.run(whole())


def test_grpc_probe_of_closed_unknown_and_silent_addresses() -> None:
    async def whole() -> None:
        assert (await GrpcHealthProbe(probe_request(), "127.0.0.1", 1).run(now())).outcome is Outcome.REFUSED
        assert (await GrpcHealthProbe(probe_request(), "no-such-host.invalid", 1).run(now())).outcome is Outcome.DNS
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            result = await GrpcHealthProbe(probe_request(0.3), "127.0.0.1", port).run(now())
            assert result.outcome is Outcome.TIMEOUT

    asyncio.run(whole())


def test_grpc_probe_over_tls(authority, trusting) -> None:
    grpc = pytest.importorskip("grpc", reason="missing: grpcio is not installed")
    issued = authority.issue_cert("localhost")
    pair = (issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes())

    async def whole() -> None:
        async with grpc_endpoint(grpc.ssl_server_credentials([pair])) as port:
            good = GrpcHealthProbe(probe_request(access=trusting), "localhost", port, tls=True)
            assert (await good.run(now())).outcome is Outcome.OK
            strange = await GrpcHealthProbe(probe_request(), "localhost", port, tls=True).run(now())
            assert strange.outcome is Outcome.TLS, strange.message

    asyncio.run(whole())
