"""A switch between clusters: one rendered request, read back through the provider or DNS."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dnslib
import pytest
from dnslib.server import BaseResolver, DNSServer

from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, EntityKind, EntityRef, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.gslb.actuator import GslbActuator, SwitchRequest
from remediation.actuators.gslb.request_template import filled, problem
from remediation.actuators.gslb.verification import ApiRead, DnsRead
from tests.support.actions import claimed_action
from tests.support.json_server import JsonServer, Request, Response

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
SERVICE = EntityRef("east", EntityKind.SERVICE, "llm", "chat")
DONE, ALREADY, IN_PROGRESS = OutcomeStatus.DONE, OutcomeStatus.ALREADY, OutcomeStatus.IN_PROGRESS
BODY = {"pools": [{"name": "{cluster}", "weight": "{percent}"}], "comment": "by {id}", "{service}": "{share}"}


def action(id_: str = "act-1", *, dry_run: bool = False, target: EntityRef = SERVICE, **params: Any) -> Action:
    given = {"cluster": "west", "share": 0.25, **params}
    return claimed_action(ActionKind.SWITCH_CLUSTER, target, id_=id_, decided_at=NOON, dry_run=dry_run, **given)


class Provider:
    """A GSLB provider that shows a change after ``delay`` reads."""

    def __init__(self, server: JsonServer, delay: int = 0) -> None:
        self.weights = {"pool-west": 0.0}
        self.pending: dict[str, float] = {}
        self.delay = delay
        server.responses["PUT /records/chat"] = self.write
        server.responses["GET /records/chat"] = self.read

    def write(self, request: Request) -> Response:
        pool = request.json["pools"][0]
        self.pending = {pool["name"]: float(pool["weight"])}
        return Response(202)

    def read(self, _: Request) -> Response:
        self.delay -= bool(self.pending)
        if self.delay < 0:
            self.weights |= self.pending
        return Response(body={"weights": self.weights})


def actuator(server: JsonServer, **more: Any) -> GslbActuator:
    request = SwitchRequest(f"{server.url}/records/{{service}}", "PUT", BODY, {"west": "pool-west"})
    read = ApiRead(f"{server.url}/records/{{service}}", "weights.{cluster}", whole=100)
    return GslbActuator(request, **{"read": read, **more})


def test_a_switch_is_sent_once_and_read_back(server: JsonServer, tmp_path: Path) -> None:
    Provider(server)
    key = tmp_path / "key"
    key.write_text("Token abc")
    gslb = actuator(server, access=Access(header_files={"Authorization": key}))
    (planned,) = gslb.requests(action())
    assert (planned.method, planned.url) == ("PUT", f"{server.url}/records/chat")
    assert planned.body == {
        "pools": [{"name": "pool-west", "weight": 25}],
        "comment": "by act-1",
        "chat": 0.25,
    }
    outcome = gslb.perform(action())
    assert (outcome.status, outcome.detail) == (DONE, "25 % of chat to west, read back")
    assert gslb.perform(action()).status is ALREADY
    assert gslb.requests(action()) == ()
    (sent,) = (request for request in server.requests if request.method == "PUT")
    assert sent.json == planned.body
    assert sent.headers["Idempotency-Key"] == "act-1"
    assert sent.headers["Authorization"] == "Token abc"


def test_a_change_that_takes_time_is_not_sent_twice(server: JsonServer) -> None:
    Provider(server, delay=2)
    gslb = actuator(server)
    statuses = [gslb.perform(action()).status for _ in range(3)]
    assert statuses == [IN_PROGRESS, IN_PROGRESS, DONE]
    assert server.sent("PUT") == ["/records/chat"]


def test_without_a_read_the_provider_decides(server: JsonServer) -> None:
    server.responses["PUT /records/chat"] = Response()
    outcome = actuator(server, read=None).perform(action())
    assert (outcome.status, outcome.detail.endswith("not read back")) == (DONE, True)


def test_a_dry_run_sends_nothing(server: JsonServer) -> None:
    outcome = actuator(server).perform(action(dry_run=True))
    assert outcome.status is OutcomeStatus.DRY_RUN
    assert "would send PUT" in outcome.detail
    assert server.requests == []


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (429, True), (409, True), (301, False), (422, False)])
def test_an_error_of_the_provider_is_typed(server: JsonServer, status: int, retryable: bool) -> None:
    Provider(server)
    server.responses["PUT /records/chat"] = Response(status, {"message": "no"}, headers={"Location": "/x"})
    with pytest.raises(ActuationError) as caught:
        actuator(server).perform(action())
    assert (caught.value.retryable, caught.value.status) == (retryable, status)


def test_a_read_without_the_number_stops_before_the_switch(server: JsonServer) -> None:
    Provider(server)
    server.responses["GET /records/chat"] = Response(body={"weights": {"pool-west": "25"}})
    with pytest.raises(ActuationError, match=r"no number at weights\.pool-west") as caught:
        actuator(server).perform(action())
    assert not caught.value.retryable
    assert server.sent("PUT") == []


@pytest.mark.parametrize(
    ("params", "words"),
    [({"cluster": ""}, "names no cluster"), ({"share": 1.5}, "not between 0 and 1"), ({"share": True}, "not between")],
)
def test_wrong_parameters_are_refused(server: JsonServer, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ActuationError, match=words):
        actuator(server).perform(action(**params))
    assert server.requests == []


def test_another_kind_of_action_is_refused(server: JsonServer) -> None:
    other = claimed_action(ActionKind.CORDON, SERVICE, id_="a", decided_at=NOON)
    with pytest.raises(ActuationError, match="does not support cordon"):
        actuator(server).perform(other)


# --- DNS ----------------------------------------------------------------------------------------------


class Zone(BaseResolver):  # type: ignore[misc]
    """Answers of one name; None fails every query."""

    def __init__(self) -> None:
        self.addresses: list[str] | None = []

    def resolve(self, request: Any, _handler: Any) -> Any:
        reply = request.reply()
        if self.addresses is None:
            reply.header.rcode = dnslib.RCODE.SERVFAIL
        elif request.q.qtype == dnslib.QTYPE.A:
            for address in self.addresses:
                reply.add_answer(dnslib.RR(request.q.qname, dnslib.QTYPE.A, rdata=dnslib.A(address), ttl=5))
        return reply


@pytest.fixture
def zone() -> Iterator[tuple[Zone, str]]:
    """The zone and the address of its server."""
    resolver = Zone()
    dns_server = DNSServer(resolver, address="127.0.0.1", port=0)
    dns_server.start_thread()
    yield resolver, f"127.0.0.1:{dns_server.server.server_address[1]}"
    dns_server.stop()
    dns_server.server.server_close()


@pytest.mark.parametrize(
    ("share", "addresses", "status"),
    [
        (1.0, ["10.2.0.1"], DONE),
        (1.0, ["10.2.0.1", "10.1.0.1"], IN_PROGRESS),
        (1.0, [], IN_PROGRESS),
        (0.25, ["10.1.0.1", "10.2.0.1"], DONE),
        (0.25, ["10.1.0.1"], IN_PROGRESS),
        (0.0, ["10.1.0.1"], DONE),
        (0.0, ["10.2.0.1"], IN_PROGRESS),
    ],
)
def test_dns_shows_the_addresses_of_the_cluster(
    server: JsonServer, zone: tuple[Zone, str], share: float, addresses: list[str], status: OutcomeStatus
) -> None:
    resolver, address = zone
    read = DnsRead("chat.example.com", {"west": ["10.2.0.1", "10.2.0.2"]}, (address,))
    gslb = actuator(server, read=None, dns=read)

    def written(_: Request) -> Response:
        resolver.addresses = addresses
        return Response()

    server.responses["PUT /records/chat"] = written
    resolver.addresses = ["10.1.0.1"] if share else ["10.2.0.1"]
    assert gslb.perform(action(share=share)).status is status
    assert server.sent("PUT") == ["/records/chat"]


def test_dns_that_fails_is_retried(server: JsonServer, zone: tuple[Zone, str]) -> None:
    resolver, address = zone
    resolver.addresses = None
    read = DnsRead("chat.example.com", {"west": ["10.2.0.1"]}, (address,))
    with pytest.raises(ActuationError, match="cannot be resolved") as caught:
        actuator(server, read=None, dns=read, timeout=timedelta(seconds=1)).perform(action())
    assert caught.value.retryable
    assert server.sent("PUT") == []


def test_a_cluster_without_configured_addresses_is_refused(server: JsonServer) -> None:
    read = DnsRead("chat.example.com", {"east": ["10.1.0.1"]})
    with pytest.raises(ActuationError, match="no addresses of cluster west"):
        actuator(server, read=None, dns=read).perform(action())


# --- templates ----------------------------------------------------------------------------------------


def test_a_lone_placeholder_keeps_its_type() -> None:
    values = {"share": 0.5, "cluster": "west"}
    assert filled({"a": "{share}", "b": "x{share}", "c": ["{cluster}", 3, None]}, values) == {
        "a": 0.5,
        "b": "x0.5",
        "c": ["west", 3, None],
    }
    assert filled("{{literal}}", values) == "{literal}"


@pytest.mark.parametrize(
    "template", ["{clusters}", {"a": ["{cluster!r}"]}, "{share:.2f}", {"{nope}": 1}, "{", "{cluster.__class__}"]
)
def test_a_wrong_placeholder_is_named(template: Any) -> None:
    assert problem(template)


def test_a_right_template_has_no_problem() -> None:
    assert problem(BODY) == ""
