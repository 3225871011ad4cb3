"""A load test against a real HTTP server that streams and has a saturation point."""

import importlib.util
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from outrider.errors import UnavailableError, UsageError
from planner.performance.queueing import Slo
from planner.performance.saturation_point import SaturationPoint, SaturationReason
from service.capacity import loadtest

SEATS, STEP, TOKENS = 4, 0.06, 10  # an answer takes .6 s; at 16 clients one waits for three others


class Engine(BaseHTTPRequestHandler):
    """Streams ``TOKENS`` tokens, one a step, ``SEATS`` requests at once; the others wait their turn."""

    protocol_version = "HTTP/1.1"
    seats = threading.BoundedSemaphore(SEATS)
    bodies: ClassVar = []
    broken = False

    def do_GET(self):
        self._answer(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append((body, self.headers.get("Authorization")))
        if self.broken:
            self._answer(503, b"{}")
            return
        with self.seats:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(TOKENS):
                time.sleep(STEP)
                self._chunk({"choices": [{"text": "x"}]})
        self._chunk({"choices": [], "usage": {"completion_tokens": TOKENS, "prompt_tokens": 12}})
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event):
        self._write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write(self, content):
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def _answer(self, code, content):
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # clients of a step come at once

    def handle_error(self, *_):
        """Clients leave when a step ends."""


@pytest.fixture
def engine():
    if importlib.util.find_spec("locust") is None:
        pytest.skip("missing: locust")
    kind = type("Kind", (Engine,), {"bodies": [], "seats": threading.BoundedSemaphore(SEATS), "broken": False})
    server = Server(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", kind
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_the_saturation_point_is_the_load_at_which_requests_begin_to_wait(engine):
    url, kind = engine
    plan = loadtest.LoadPlan(
        url,
        steps=(1, 4, 16),
        step_seconds=4,
        prompt_tokens=12,
        output_tokens=TOKENS,
        token="secret",
        slo=Slo(ttft=1.2),
    )
    result, points = loadtest.run(plan)
    assert isinstance(result, SaturationPoint)
    assert (result.sequences, result.reason) == (4, SaturationReason.SLO)
    assert [point.concurrency for point in points] == [1, 4, 16]
    assert points[1].tokens_per_request == TOKENS
    assert points[1].tokens_per_second > points[0].tokens_per_second
    assert points[2].ttft > points[1].ttft
    assert all(point.error_ratio == 0 for point in points)
    bodies = kind.bodies
    assert {body["model"] for body, _ in bodies} == {"tiny"}
    assert {authorization for _, authorization in bodies} == {"Bearer secret"}
    assert len({body["prompt"] for body, _ in bodies}) == len(bodies)


@pytest.mark.slow
def test_a_server_that_refuses_everything_is_unavailable(engine):
    url, kind = engine
    kind.broken = True
    with pytest.raises(UnavailableError, match="503"):
        loadtest.run(loadtest.LoadPlan(url, model="tiny", steps=(1,), step_seconds=2, output_tokens=TOKENS))


def test_tokens_count_where_they_were_generated():
    def record(start, first, end, error=None):
        return {"start": start, "first": first, "end": end, "tokens": 10, "prompt": 5, "error": error}

    # of ten seconds the first two warm up: half of the second answer lies behind the end
    point = loadtest.point_of([record(0, 2, 6), record(6, 8, 12), record(6, None, 7, "gone")], 2, 10)
    assert point.tokens_per_second == pytest.approx((10 + 5) / 8)
    assert point.error_ratio == pytest.approx(1 / 2)
    assert point.samples == 1


@pytest.mark.parametrize("steps", ["", "4,2", "0,1", "a", "1,1", "9999"])
def test_steps_that_do_not_rise_are_refused(steps):
    with pytest.raises(UsageError, match="--steps"):
        loadtest.steps_of(steps)


@pytest.mark.parametrize("wrong", [{"url": "localhost:8000"}, {"step_seconds": 0}, {"output_tokens": 1}])
def test_invalid_plans_are_refused(wrong):
    with pytest.raises(UsageError):
        loadtest.LoadPlan(**{"url": "http://127.0.0.1:1", **wrong})


def test_a_missing_locust_is_reported_with_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError) as caught:
        loadtest.run(loadtest.LoadPlan("http://127.0.0.1:1"))
    assert "pip install '.[loadtest]'" in caught.value.hint
    assert "outrider[" not in caught.value.hint, "no registry has this package: anybody could register the name"


def test_a_step_has_intervals_from_its_own_requests():
    records = [
        {
            "start": 0.1 * n,
            "first": 0.1 * n + 0.2,
            "end": 0.1 * n + 1.2,
            "tokens": 40 + n % 7,
            "prompt": 9,
            "error": None,
        }
        for n in range(200)
    ]
    point = loadtest.point_of(records, 10, 18.0)
    tokens, rate = (point.intervals[name] for name in ("tokens_per_request", "tokens_per_second"))
    assert tokens.low < point.tokens_per_request < tokens.high
    assert tokens.high - tokens.low < 1.0
    assert rate.low < point.tokens_per_second < rate.high
    few = loadtest.point_of(records[:8], 10, 18.0)
    assert "tokens_per_request" not in few.intervals
