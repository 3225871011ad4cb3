"""The webhook of a degrade level: signed, idempotent by its key, and retried if the gateway is away."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from outrider.clock import ManualClock
from outrider.errors import ActuationError
from outrider.model import ActionKind, EntityKind, EntityRef, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.degrade.actuator import DegradeActuator
from remediation.actuators.degrade.webhook import GatewayWebhook
from tests.support.actions import claimed_action

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "serving", "chat")
SECRET = "s3cret"


class Gateway(BaseHTTPRequestHandler):
    """Keeps requests, and answers with ``status``."""

    received: list[tuple[dict[str, str], bytes]] = []  # noqa: RUF012
    status = 204

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).received.append((dict(self.headers), body))
        self.send_response(type(self).status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Writes nothing."""


@pytest.fixture
def gateway() -> Iterator[str]:
    Gateway.received, Gateway.status = [], 204
    server = HTTPServer(("127.0.0.1", 0), Gateway)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/level"
    server.shutdown()
    server.server_close()


def actuator_of(url: str) -> DegradeActuator:
    return DegradeActuator(
        None, Access(), webhook=GatewayWebhook(url, SECRET, clock=ManualClock(NOW)), config_map=False
    )


def degrade(**params: Any) -> Any:
    content = {"level": 3, "name": "cap_output", "reject": [], "defer": [], "max_output_tokens": 192, "model": None}
    return claimed_action(ActionKind.DEGRADE_SERVICE, CHAT, id_="act-1", decided_at=NOW, **{**content, **params})


def test_the_level_is_posted_signed(gateway: str) -> None:
    assert actuator_of(gateway).perform(degrade()).status is OutcomeStatus.DONE
    ((headers, body),) = Gateway.received
    expected = hmac.new(SECRET.encode(), headers["X-Outrider-Timestamp"].encode() + b"." + body, hashlib.sha256)
    assert headers["X-Outrider-Signature"] == f"sha256={expected.hexdigest()}"
    assert headers["Idempotency-Key"] == "act-1"
    sent = json.loads(body)
    assert (sent["service"], sent["level"], sent["max_output_tokens"]) == ("chat", 3, 192)
    assert sent["since"] == "2026-11-23T12:00:00Z"


@pytest.mark.parametrize(("status", "retryable"), [(503, True), (429, True), (400, False)])
def test_a_refusal_is_retried_only_if_it_may_succeed(gateway: str, status: int, retryable: bool) -> None:
    Gateway.status = status
    with pytest.raises(ActuationError, match=str(status)) as caught:
        actuator_of(gateway).perform(degrade())
    assert caught.value.retryable is retryable


def test_a_gateway_that_is_away_is_retried() -> None:
    with pytest.raises(ActuationError, match="cannot be reached") as caught:
        actuator_of("http://127.0.0.1:1/level").perform(degrade())
    assert caught.value.retryable


def test_a_level_that_nothing_would_receive_is_refused() -> None:
    with pytest.raises(ActuationError, match="nothing would receive"):
        DegradeActuator(None, Access(), config_map=False).perform(degrade())
