"""Hooks as signed webhooks: one POST, a status URL of the same origin, and every answer that is none."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outrider.clock import ManualClock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, EntityKind, EntityRef, OutcomeStatus
from remediation.actuators.hook.actuator import HookActuator
from remediation.actuators.hook.webhook import WebhookHook
from tests.support.actions import claimed_action
from tests.support.json_server import JsonServer, Response

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
NODE = EntityRef("c", EntityKind.NODE, None, "node-1")
REBOOT = ActionKind.REBOOT_NODE
DONE, FAILED, IN_PROGRESS = OutcomeStatus.DONE, OutcomeStatus.FAILED, OutcomeStatus.IN_PROGRESS


def action(id_: str = "act-1", *, dry_run: bool = False, **params: Any) -> Action:
    return claimed_action(REBOOT, NODE, id_=id_, decided_at=NOON, dry_run=dry_run, **params)


def actuator(server: JsonServer, secret_file: Path | None = None, **more: Any) -> HookActuator:
    hook = WebhookHook(f"{server.url}/hook", secret_file=secret_file, **more)
    return HookActuator({REBOOT: hook}, clock=ManualClock(NOON))


def test_the_request_is_signed_and_carries_the_action(server: JsonServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    server.responses["POST /hook"] = Response(body={"status": "done", "detail": "rebooted"})
    hook = actuator(server, secret)
    (planned,) = hook.requests(action(gpus=["GPU-1"]))
    outcome = hook.perform(action(gpus=["GPU-1"]))
    assert (outcome.status, outcome.detail) == (DONE, f"{server.url.removeprefix('http://')}: rebooted")
    (request,) = server.requests
    assert request.headers["Idempotency-Key"] == "act-1"
    timestamp = request.headers["X-Outrider-Timestamp"]
    assert timestamp == str(int(NOON.timestamp()))
    signed = hmac.new(b"s3cret", timestamp.encode() + b"." + request.content, hashlib.sha256).hexdigest()
    assert request.headers["X-Outrider-Signature"] == f"sha256={signed}"
    assert request.json == planned.body
    assert request.json | {"target": None} == {
        "id": "act-1", "kind": "reboot_node", "target": None, "node": "node-1", "gpus": ["GPU-1"],
        "session": "ses-1", "incident": "inc-1", "requested_at": "2026-05-04T12:00:00Z",
    }  # fmt: skip


def test_a_long_action_is_polled_and_posted_once(server: JsonServer) -> None:
    server.responses["POST /hook"] = Response(202, headers={"Location": "/hook/status/7"})
    server.responses["GET /hook/status/7"] = Response(body={"status": "in_progress", "detail": "BIOS"})
    hook = actuator(server)
    assert [hook.perform(action()).status for _ in range(3)] == [IN_PROGRESS] * 3
    assert hook.requests(action()) == ()
    server.responses["GET /hook/status/7"] = Response(body={"status": "failed", "detail": "no power"})
    outcome = hook.perform(action())
    assert (outcome.status, outcome.detail.endswith("no power")) == (FAILED, True)
    assert server.sent("POST") == ["/hook"]


def test_a_restarted_process_posts_the_same_key_again(server: JsonServer) -> None:
    server.responses["POST /hook"] = Response(202, {"status_url": f"{server.url}/s"})
    server.responses["GET /s"] = Response(body={"status": "done"})
    assert actuator(server).perform(action()).status is IN_PROGRESS
    again = actuator(server)
    assert [again.perform(action()).status for _ in range(2)] == [IN_PROGRESS, DONE]
    posts = [request for request in server.requests if request.method == "POST"]
    assert {request.headers["Idempotency-Key"] for request in posts} == {"act-1"}


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "//other.example/x", "file:///etc/passwd"])
def test_a_status_url_of_another_origin_is_never_requested(server: JsonServer, url: str) -> None:
    server.responses["POST /hook"] = Response(202, headers={"Location": url})
    with pytest.raises(ActuationError, match="another origin") as caught:
        actuator(server).perform(action())
    assert not caught.value.retryable
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "response",
    [
        Response(200, raw=b"OK"),
        Response(200, {"status": "maybe"}),
        Response(200, raw=b"<html>"),
        Response(201),
        Response(202, {"status": "accepted"}),
    ],
)
def test_an_answer_without_a_status_is_no_success(server: JsonServer, response: Response) -> None:
    server.responses["POST /hook"] = response
    with pytest.raises(ActuationError) as caught:
        actuator(server).perform(action())
    assert not caught.value.retryable


def test_an_empty_200_is_a_success(server: JsonServer) -> None:
    server.responses["POST /hook"] = Response()
    assert actuator(server).perform(action()).status is DONE


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (429, True), (409, True), (302, False), (403, False)])
def test_errors_say_whether_a_retry_can_succeed(server: JsonServer, status: int, retryable: bool) -> None:
    server.responses["POST /hook"] = Response(status, headers={"Location": "/hook", "Retry-After": "9"})
    with pytest.raises(ActuationError) as caught:
        actuator(server).perform(action())
    assert caught.value.retryable is retryable
    assert caught.value.retry_after == (timedelta(seconds=9) if retryable else None)


def test_a_slow_receiver_is_posted_again_with_the_same_key(server: JsonServer) -> None:
    server.responses["POST /hook"] = Response(hangs=True)
    hook = actuator(server, timeout=timedelta(seconds=0.3))
    with pytest.raises(ActuationError, match="did not respond") as caught:
        hook.perform(action())
    assert caught.value.retryable
    server.responses["POST /hook"] = Response()
    assert hook.perform(action()).status is DONE


def test_a_dry_run_sends_nothing(server: JsonServer) -> None:
    outcome = actuator(server).perform(action(dry_run=True))
    assert outcome.status is OutcomeStatus.DRY_RUN
    assert server.requests == []


def test_without_its_secret_nothing_is_sent(server: JsonServer, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    for file, words in ((tmp_path / "missing", "cannot be read"), (empty, "is empty")):
        with pytest.raises(ActuationError, match=words) as caught:
            actuator(server, file).perform(action())
        assert not caught.value.retryable
    assert server.requests == []


def test_a_kind_without_a_hook_names_the_setting(server: JsonServer) -> None:
    hook = actuator(server)
    other = claimed_action(ActionKind.RESET_GPU, NODE, id_="act-2", decided_at=NOON)
    with pytest.raises(ActuationError) as caught:
        hook.perform(other)
    assert caught.value.hint == "set remediation.hooks.reset_gpu"
    with pytest.raises(ActuationError, match="does not support cordon"):
        hook.perform(claimed_action(ActionKind.CORDON, NODE, id_="act-3", decided_at=NOON))
