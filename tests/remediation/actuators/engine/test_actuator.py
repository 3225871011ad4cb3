"""Engines as servers: state first, one POST, and refusals that name the flag."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, EntityKind, EntityRef, OutcomeStatus
from remediation.actuators.engine.actuator import EngineActuator, template_problem
from remediation.actuators.engine.endpoints import ENGINES, Operation
from tests.support.actions import claimed_action
from tests.support.json_server import JsonServer, Request, Response

REPLICA = EntityRef("c", EntityKind.REPLICA, "llm", "chat-0")
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
WAKE, SLEEP, RESET = ActionKind.WAKE_ENGINE, ActionKind.SLEEP_ENGINE, ActionKind.RESET_PREFIX_CACHE
DRAIN, RESUME = ActionKind.DRAIN_ENGINE, ActionKind.RESUME_ENGINE


def an_action(kind: ActionKind, url: str, *, adapter: str = "vllm", dry_run: bool = False) -> Action:
    return claimed_action(kind, REPLICA, id_="act-1", decided_at=NOON, dry_run=dry_run, engines={adapter: url})


class Vllm:
    """The endpoints of vLLM 0.32 in development mode."""

    def __init__(self, server: JsonServer) -> None:
        self.sleeping = self.paused = False
        self.level = 0
        server.responses |= {
            "GET /is_sleeping": lambda _: Response(body={"is_sleeping": self.sleeping or self.paused}),
            "GET /is_paused": lambda _: Response(body={"is_paused": self.paused}),
            "GET /metrics": lambda _: Response(raw=self.page()),
            "POST /wake_up": self.wake,
            "POST /sleep?level=1&mode=wait": self.sleep,
            "POST /pause?mode=wait&clear_cache=false": self.pause,
            "POST /resume": self.resume,
            "POST /reset_prefix_cache": Response(body={"success": True}),
        }

    def page(self) -> bytes:
        lines = [
            f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {float(on)}'
            for name, on in (("awake", not self.sleeping), ("discard_all", self.level == 2))
        ]
        return "\n".join(lines).encode()

    def wake(self, _: Request) -> Response:
        self.sleeping = False
        return Response(body={"status": "awake", "tags": None})

    def sleep(self, _: Request) -> Response:
        self.sleeping, self.level = True, 1
        return Response(body={"status": "sleeping", "level": 1})

    def pause(self, _: Request) -> Response:
        self.paused = True
        return Response(body={"status": "paused"})

    def resume(self, _: Request) -> Response:
        self.paused = False
        return Response(body={"status": "resumed"})


@pytest.fixture
def engine(server: JsonServer) -> Vllm:
    return Vllm(server)


def perform(kind: ActionKind, url: str, **more: Any) -> tuple[OutcomeStatus, str]:
    outcome = EngineActuator(timeout=timedelta(seconds=2)).perform(an_action(kind, url, **more))
    return outcome.status, outcome.detail


def test_a_sleeping_engine_wakes_once(server: JsonServer, engine: Vllm) -> None:
    engine.sleeping = True
    action = an_action(WAKE, server.url)
    (request,) = EngineActuator().requests(action)
    assert (request.method, request.url) == ("POST", f"{server.url}/wake_up")
    assert perform(WAKE, server.url)[0] is OutcomeStatus.DONE
    assert not engine.sleeping
    assert perform(WAKE, server.url)[0] is OutcomeStatus.ALREADY
    assert EngineActuator().requests(action) == ()
    assert server.sent("POST") == ["/wake_up"]


def test_an_engine_without_weights_is_not_woken(server: JsonServer, engine: Vllm) -> None:
    engine.sleeping, engine.level = True, 2
    with pytest.raises(ActuationError, match="level 2") as caught:
        perform(WAKE, server.url)
    assert not caught.value.retryable
    assert caught.value.hint == "restart the pod"
    assert server.sent("POST") == []


def test_a_paused_engine_is_put_to_sleep(server: JsonServer, engine: Vllm) -> None:
    engine.paused = True  # it also reports is_sleeping
    assert perform(SLEEP, server.url)[0] is OutcomeStatus.DONE
    assert engine.sleeping


def test_drain_and_resume(server: JsonServer, engine: Vllm) -> None:
    assert perform(DRAIN, server.url)[0] is OutcomeStatus.DONE
    assert engine.paused
    assert perform(RESUME, server.url)[0] is OutcomeStatus.DONE
    assert perform(RESUME, server.url)[0] is OutcomeStatus.ALREADY
    assert server.sent("POST") == ["/pause?mode=wait&clear_cache=false", "/resume"]


def test_a_drain_waits_for_running_requests(server: JsonServer, engine: Vllm) -> None:
    del engine
    server.responses["POST /pause?mode=wait&clear_cache=false"] = Response(hangs=True)
    outcome = EngineActuator(timeout=timedelta(seconds=0.3)).perform(an_action(DRAIN, server.url))
    assert outcome.status is OutcomeStatus.IN_PROGRESS
    assert "waits for running requests" in outcome.detail


def test_a_prefix_cache_in_use_is_emptied_later(server: JsonServer, engine: Vllm) -> None:
    del engine
    server.responses["POST /reset_prefix_cache"] = Response(body={"success": False})
    assert perform(RESET, server.url) == (
        OutcomeStatus.IN_PROGRESS,
        f"{server.url.removeprefix('http://')} is busy: requests are running",
    )
    server.responses["POST /reset_prefix_cache"] = Response()  # earlier releases return no body
    assert perform(RESET, server.url)[0] is OutcomeStatus.DONE


def test_sglang_flushes_its_cache_once_idle(server: JsonServer) -> None:
    server.responses["POST /flush_cache"] = Response(400, raw=b"Cache flushed.\nPlease check ...")
    assert perform(RESET, server.url, adapter="sglang")[0] is OutcomeStatus.IN_PROGRESS
    server.responses["POST /flush_cache"] = Response(raw=b"Cache flushed.")
    assert perform(RESET, server.url, adapter="sglang")[0] is OutcomeStatus.DONE


def test_lmdeploy_wakes(server: JsonServer) -> None:
    server.responses |= {"GET /is_sleeping": Response(body={"is_sleeping": True}), "POST /wakeup": Response()}
    assert perform(WAKE, server.url, adapter="lmdeploy")[0] is OutcomeStatus.DONE
    assert server.requests[-1].headers["Content-Type"] == "application/json"


def test_a_dry_run_reads_and_writes_nothing(server: JsonServer, engine: Vllm) -> None:
    engine.sleeping = True
    status, detail = perform(WAKE, server.url, dry_run=True)
    assert (status, detail) == (OutcomeStatus.DRY_RUN, f"would send POST {server.url}/wake_up")
    assert engine.sleeping
    assert server.sent("POST") == []


@pytest.mark.parametrize("kind", [WAKE, SLEEP, DRAIN, RESUME, RESET])
def test_a_missing_endpoint_names_the_flag(server: JsonServer, kind: ActionKind) -> None:
    with pytest.raises(ActuationError) as caught:
        perform(kind, server.url)
    assert "VLLM_SERVER_DEV_MODE=1" in caught.value.hint
    assert not caught.value.retryable
    assert "the vllm engine has no /" in caught.value.message


@pytest.mark.parametrize("kind", [WAKE, SLEEP, DRAIN])
def test_what_an_engine_cannot_do_safely_is_refused_without_a_request(server: JsonServer, kind: ActionKind) -> None:
    with pytest.raises(ActuationError, match="SGLang") as caught:
        perform(kind, server.url, adapter="sglang")
    assert not caught.value.retryable
    assert caught.value.hint
    assert server.requests == []


@pytest.mark.parametrize(("adapter", "kind"), [("tgi", WAKE), ("lmdeploy", RESET)])
def test_an_unknown_engine_or_endpoint_is_refused(server: JsonServer, adapter: str, kind: ActionKind) -> None:
    with pytest.raises(ActuationError, match=adapter) as caught:
        perform(kind, server.url, adapter=adapter)
    assert not caught.value.retryable
    assert server.requests == []


def test_another_kind_of_action_is_refused(server: JsonServer) -> None:
    with pytest.raises(ActuationError, match="does not support cordon"):
        perform(ActionKind.CORDON, server.url)


@pytest.mark.parametrize("body", [{}, {"is_sleeping": "yes"}, []])
def test_a_state_that_cannot_be_read_is_no_permission_to_act(server: JsonServer, engine: Vllm, body: Any) -> None:
    del engine
    server.responses["GET /is_sleeping"] = Response(body=body)
    with pytest.raises(ActuationError, match="returned no is_sleeping"):
        perform(WAKE, server.url)
    assert server.sent("POST") == []


def test_an_engine_that_no_longer_exists_gets_no_request(server: JsonServer) -> None:
    known = an_action(ActionKind.RESUME_ENGINE, server.url)
    gone = replace(known, params={"deleted": True})
    outcome = EngineActuator().perform(gone)
    assert (outcome.status, "no longer exists" in outcome.detail) == (OutcomeStatus.ALREADY, True)
    assert EngineActuator().requests(gone) == ()


def test_an_overloaded_engine_is_tried_again(server: JsonServer, engine: Vllm) -> None:
    engine.sleeping = True
    server.responses["POST /wake_up"] = Response(503, headers={"Retry-After": "20"})
    with pytest.raises(ActuationError) as caught:
        perform(WAKE, server.url)
    assert caught.value.retryable
    assert caught.value.retry_after == timedelta(seconds=20)


def test_a_url_template_replaces_the_address(server: JsonServer, engine: Vllm) -> None:
    del engine
    port = server.url.rpartition(":")[2]
    action = an_action(RESET, "http://127.0.0.1:9/metrics")
    (request,) = EngineActuator(url=f"http://{{host}}:{port}").requests(action)
    assert request.url == f"{server.url}/reset_prefix_cache"
    (named,) = EngineActuator(url="http://{name}.{namespace}.svc:8000/").requests(action)
    assert named.url == "http://chat-0.llm.svc:8000/reset_prefix_cache"


def test_without_an_address_the_setting_is_named() -> None:
    with pytest.raises(ActuationError) as caught:
        perform(RESET, "")
    assert "remediation.engine.url" in caught.value.hint


@pytest.mark.parametrize(
    ("template", "wrong"),
    [
        ("http://{name}:8000", ""),
        ("http://{pod}:8000", "unknown placeholder {pod}"),
        ("{name}:8000", "expected a URL"),
        ("http://{name", "expected '}'"),
    ],
)
def test_a_template_is_checked(template: str, wrong: str) -> None:
    assert template_problem(template).startswith(wrong)
    assert bool(template_problem(template)) is bool(wrong)


def test_every_operation_has_a_remedy() -> None:
    for operations in ENGINES.values():
        for operation in operations.values():
            assert operation.hint
            if isinstance(operation, Operation):
                assert operation.path.startswith("/")
