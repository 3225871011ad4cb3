"""One suite for every actuator, and the same one for the fake control endpoint and the real simulated fleet."""

from __future__ import annotations

import asyncio
import http.server
import importlib.util
import json
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.clock import ManualClock
from outrider.errors import ActuationError, ConfigError
from outrider.model import (
    ActionKind,
    EntityKind,
    EntityRef,
    OutcomeStatus,
)
from outrider.text.i18n import LANGUAGES
from remediation.actuators.dry_run import DryRunActuator, dry_run_text
from remediation.actuators.registry import ACTUATORS
from remediation.actuators.simulated import SimulatedActuator, request
from tests.support.actions import claimed_action

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def an_action(kind, target, *, id_="act-1", dry_run=False, **params):
    return claimed_action(kind, target, id_=id_, decided_at=NOW, dry_run=dry_run, **params)


class FakeEndpoint:
    """A control endpoint that cordons one node and deduplicates by id."""

    def __init__(self) -> None:
        self.node = EntityRef("sim", EntityKind.NODE, None, "node-0")
        self.status, self.body, self.requests, self.answers, self.cordons = 200, None, [], {}, 0
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                request_body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append((self.path, request_body))
                body = endpoint.body if endpoint.body is not None else json.dumps(endpoint.act(request_body)).encode()
                self.send_response(endpoint.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def act(self, request_body):
        if request_body["id"] not in self.answers:
            self.answers[request_body["id"]] = {
                "status": "already" if self.cordons else "done",
                "detail": "node-0 takes no pods",
            }
            self.cordons = 1
        return self.answers[request_body["id"]]

    @property
    def cordoned(self):
        return bool(self.cordons)

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class RealFleet:
    """The simulated fleet's own server, in a thread with its own event loop."""

    def __init__(self) -> None:
        from simulator import fleet
        from simulator.servers import http

        self._fleet = fleet.Fleet(seed=7, start=NOW)
        self.node = EntityRef(self._fleet.spec.cluster, EntityKind.NODE, None, self._fleet.nodes.names[0])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._do(http.serve(self._fleet))
        self.url = self._server.base_url

    def _do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    @property
    def cordoned(self):
        return bool(self._fleet.pods.cordoned[0])

    def close(self):
        self._do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def fake_endpoint():
    endpoint = FakeEndpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture(params=["fake", "simulator"])
def endpoint(request):
    if request.param == "simulator" and importlib.util.find_spec("simulator.servers.http") is None:
        pytest.skip("the simulated fleet has no server here")
    end = FakeEndpoint() if request.param == "fake" else RealFleet()
    yield end
    end.close()


def test_it_acts_once_per_id(endpoint):
    actuator = SimulatedActuator(endpoint.url, clock=ManualClock(NOW))
    first = actuator.perform(an_action(ActionKind.CORDON, endpoint.node))
    assert (first.status, first.action_id, endpoint.cordoned) == (OutcomeStatus.DONE, "act-1", True)
    assert first.detail
    assert (first.started_at, first.ended_at) == (NOW, NOW)
    again = actuator.perform(an_action(ActionKind.CORDON, endpoint.node))
    assert again.status in (OutcomeStatus.DONE, OutcomeStatus.ALREADY)
    other = actuator.perform(an_action(ActionKind.CORDON, endpoint.node, id_="act-2"))
    assert other.status is OutcomeStatus.ALREADY


def test_a_dry_run_changes_nothing_and_reports_what_it_would_do(endpoint):
    outcome = SimulatedActuator(endpoint.url).perform(an_action(ActionKind.CORDON, endpoint.node, dry_run=True))
    assert outcome.status is OutcomeStatus.DRY_RUN
    assert endpoint.node.name in outcome.detail
    assert not endpoint.cordoned
    done = SimulatedActuator(endpoint.url).perform(an_action(ActionKind.CORDON, endpoint.node))
    assert done.status is OutcomeStatus.DONE, "a dry run does not use the id"


@pytest.mark.parametrize("name", sorted(ACTUATORS))
def test_every_actuator_supports_dry_runs(name, fake_endpoint):
    actuator = ACTUATORS[name]({"control_url": fake_endpoint.url})
    outcome = actuator.perform(an_action(ActionKind.CORDON, fake_endpoint.node, dry_run=True))
    assert (outcome.status, fake_endpoint.requests) == (OutcomeStatus.DRY_RUN, [])


def test_the_dry_run_actuator_never_acts():
    actuator = DryRunActuator(clock=ManualClock(NOW))
    action = an_action(ActionKind.DRAIN, EntityRef("c", EntityKind.NODE, None, "n1"))
    assert actuator.perform(action).status is OutcomeStatus.DRY_RUN
    assert actuator.received == [action]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", list(ActionKind))
def test_what_would_be_done_is_a_sentence_in_both_languages(kind, language):
    sentence = dry_run_text(
        an_action(kind, EntityRef("c", EntityKind.NODE, None, "n1"), replicas=5, current=3), language
    )
    assert "n1" in sentence
    assert "{" not in sentence
    if kind is ActionKind.SCALE:
        assert "5" in sentence


def test_the_request_matches_the_control_endpoint(fake_endpoint):
    target = EntityRef("sim", EntityKind.SERVICE, "llm", "chat")
    SimulatedActuator(fake_endpoint.url + "/").perform(an_action(ActionKind.SCALE, target, replicas=5))
    ((path, request_body),) = fake_endpoint.requests
    assert path == "/control/actions"
    assert request_body == {
        "id": "act-1",
        "kind": "scale",
        "target": {"cluster": "sim", "kind": "service", "namespace": "llm", "name": "chat"},
        "params": {"replicas": 5},
    }
    assert request(an_action(ActionKind.SCALE, target, replicas=5)) == request_body


def failure(actuator, node):
    with pytest.raises(ActuationError) as caught:
        actuator.perform(an_action(ActionKind.CORDON, node))
    return caught.value


def test_a_refused_connection_is_retried(fake_endpoint):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    assert failure(SimulatedActuator(f"http://127.0.0.1:{port}"), fake_endpoint.node).retryable


def test_an_endpoint_without_a_response_is_retried(fake_endpoint):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        error = failure(SimulatedActuator(url, timedelta(milliseconds=200)), fake_endpoint.node)
    assert error.retryable
    assert "0.2 s" in str(error)


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (503, True), (400, False), (404, False), (302, False)])
def test_retryable_statuses(fake_endpoint, status, retryable):
    fake_endpoint.status = status
    fake_endpoint.body = b'{"error": {"message": "the fleet has no node x", "hint": "look"}}'
    error = failure(SimulatedActuator(fake_endpoint.url), fake_endpoint.node)
    assert error.retryable is retryable
    assert "no node x" in str(error)
    assert error.hint == "look"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"status": "maybe"}'])
def test_an_invalid_response_is_final(fake_endpoint, body):
    fake_endpoint.body = body
    assert not failure(SimulatedActuator(fake_endpoint.url), fake_endpoint.node).retryable


def test_failed_is_an_outcome_not_an_error(fake_endpoint):
    fake_endpoint.body = b'{"status": "failed", "detail": "no room"}'
    outcome = SimulatedActuator(fake_endpoint.url).perform(an_action(ActionKind.CORDON, fake_endpoint.node))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "no room")


def test_an_unknown_target_is_refused(endpoint):
    if isinstance(endpoint, FakeEndpoint):
        pytest.skip("the fake endpoint knows one node only")
    error = failure(SimulatedActuator(endpoint.url), replace(endpoint.node, name="no-such-node"))
    assert not error.retryable
    assert "no-such-node" in str(error)


def test_settings():
    with pytest.raises(ConfigError):
        ACTUATORS["simulated"]({"control_url": None})
    assert set(ACTUATORS) == {"dry_run", "simulated"}
