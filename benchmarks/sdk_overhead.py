"""Overhead of the SDK in a model service: one request with its tokens, stages and output validation, one core.

The request streams 200 tokens in chunks of one word. The peer is hand-written prometheus_client code for the same: a
request counter, a latency and a TTFT histogram, a token counter.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sdk"))

from outrider_sdk import ModelService, check
from prometheus_client import CollectorRegistry, Counter, Histogram

from benchmarks.common import Result, best_of, main, result

TARGET_PER_REQUEST = 2e-3  # seconds: 0.1 % of a short response of two seconds
TARGET_PER_TOKEN = 10e-6
TARGET_CHECK = 500e-6
REQUESTS, TOKENS, REPEATS = 200, 200, 5
PIECES = [f"word{number} " for number in range(TOKENS)]


def ours(service: ModelService) -> None:
    """Records requests as a streaming service does."""
    for _ in range(REQUESTS):
        with service.request(tenant="acme") as request:
            with request.stage("queue"):
                pass
            with request.stage("compute"):
                for piece in PIECES:
                    request.piece(piece)


def run() -> list[Result]:
    """Returns the seconds per request, per token and per output validation."""
    service = ModelService("bench", registry=CollectorRegistry())
    registry = CollectorRegistry()
    requests = Counter("requests", "x", ["tenant"], registry=registry)
    tokens = Counter("tokens", "x", ["tenant"], registry=registry)
    seconds = Histogram("seconds", "x", ["tenant"], registry=registry)
    first = Histogram("first", "x", ["tenant"], registry=registry)

    def theirs() -> None:
        for _ in range(REQUESTS):
            start = time.perf_counter()
            for number, _piece in enumerate(PIECES):
                if number == 0:
                    first.labels("acme").observe(time.perf_counter() - start)
                tokens.labels("acme").inc()
            seconds.labels("acme").observe(time.perf_counter() - start)
            requests.labels("acme").inc()

    request = best_of(REPEATS, lambda: ours(service)) / REQUESTS
    peer = best_of(REPEATS, theirs) / REQUESTS
    text = "".join(PIECES) * 4
    look = best_of(REPEATS, lambda: [check(text) for _ in range(1000)]) / 1000
    token, name = request / TOKENS, "hand-written prometheus_client"
    return [
        result(
            "sdk_request", request, "s", TARGET_PER_REQUEST, request <= TARGET_PER_REQUEST, name, peer, peer / request
        ),
        result(
            "sdk_token", token, "s", TARGET_PER_TOKEN, token <= TARGET_PER_TOKEN, name, peer / TOKENS, peer / request
        ),
        result("sdk_check", look, "s", TARGET_CHECK, look <= TARGET_CHECK),
    ]


if __name__ == "__main__":
    main(run)
