"""Several pages of one service are merged, and its own page precedes the sum of its engines."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.model import CellStatus, EntityKind, SignalKey

START = datetime(2026, 11, 21, tzinfo=UTC)
STEP = timedelta(seconds=15)


def sdk_page(requests, failed, running):
    return (
        f'outrider_sdk_requests_total{{model="m",tenant="a",outcome="ok"}} {requests - failed}\n'
        f'outrider_sdk_requests_total{{model="m",tenant="a",outcome="error"}} {failed}\n'
        f'outrider_sdk_requests_in_progress{{model="m"}} {running}\n'
        f'outrider_sdk_first_token_seconds_bucket{{le="0.1"}} {requests}\n'
        f'outrider_sdk_first_token_seconds_bucket{{le="+Inf"}} {requests}\n'
        f"outrider_sdk_first_token_seconds_sum {requests * 0.05}\n"
        f"outrider_sdk_first_token_seconds_count {requests}\n"
    ).encode()


def sdk(name):
    return target_of(
        "c", {"name": name, "adapter": "sdk", "entity": {"kind": "service", "name": "chat", "namespace": "s"}}
    )


def engine(name):
    document = {"name": name, "adapter": "vllm", "labels": {"service": "chat"}}
    return target_of("c", {**document, "entity": {"kind": "replica", "namespace": "s", "name": name}})


def engine_page(requests):
    return (
        f'vllm:num_requests_running{{engine="0"}} 1\nvllm:num_requests_waiting{{engine="0"}} 0\n'
        f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {requests}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {requests * 10}\n'
    ).encode()


def rounds(*pages):
    """Scrapes (target, body) pairs of each cycle. Returns service signals of the last: signal -> (value, status)."""
    collector = ScrapeManager([one for one, _ in pages[0]])
    for number, bodies in enumerate(pages):
        at = START + number * STEP
        collected = collector.absorb([Scrape(one, at, body, None, 0.0) for one, body in bodies], at)
    cells = {}
    for batch in collected.batches:
        if batch.kind is EntityKind.SERVICE:
            for column, key in enumerate(batch.keys):
                if batch.status[0, column] == CellStatus.PRESENT and key.name.startswith("svc_"):
                    assert key not in cells, f"{key} twice"
                    cells[key] = batch.values[0, column]
    return cells, collected


def test_values_of_several_pods_are_summed_and_ratios_weighted():
    a, b = sdk("chat-a"), sdk("chat-b")
    cells, _ = rounds(
        [(a, sdk_page(0, 0, 0)), (b, sdk_page(0, 0, 0))], [(a, sdk_page(30, 0, 2)), (b, sdk_page(10, 10, 3))]
    )
    assert cells[SignalKey("svc_requests_total")] == 40
    assert cells[SignalKey("svc_failed_total")] == 10
    assert cells[SignalKey("svc_inflight_requests")] == 5
    assert cells[SignalKey("svc_success_ratio")] == pytest.approx(0.75)
    assert cells[SignalKey("svc_requests_per_second")] == pytest.approx(40 / 15)
    assert cells[SignalKey("svc_ttft_seconds", bucket=7)] == 40


def test_two_pages_of_one_pod_are_not_two_pods():
    own = sdk("chat-a")
    collector = ScrapeManager([own])
    scrapes = [Scrape(own, START + n * STEP, sdk_page(10 * n, 0, 2), None, 0.0) for n in range(3)]
    collected = collector.absorb(scrapes, START + 2 * STEP)
    running = SignalKey("svc_inflight_requests")
    batches = [one for one in collected.batches if one.kind is EntityKind.SERVICE]
    assert [one.values[0, one.keys.index(running)] for one in batches] == [2, 2, 2]


def test_an_unreachable_pod_does_not_affect_the_others():
    a, b = sdk("chat-a"), sdk("chat-b")
    collector = ScrapeManager([a, b])
    for number, requests in enumerate((0, 20)):
        at = START + number * STEP
        away = Scrape(b, at, None, None, 0.0)
        collected = collector.absorb([Scrape(a, at, sdk_page(requests, 0, 1), None, 0.0), away], at)
    requests = SignalKey("svc_requests_total")
    reported = [
        one
        for one in collected.batches
        if one.kind is EntityKind.SERVICE and one.status[0, one.keys.index(requests)] == 0
    ]
    assert [one.values[0, one.keys.index(requests)] for one in reported] == [20]


def test_a_service_page_precedes_the_sum_of_its_engines():
    own, replica = sdk("chat-a"), engine("r-0")
    first = [(own, sdk_page(0, 0, 0)), (replica, engine_page(0))]
    cells, collected = rounds(first, [(own, sdk_page(30, 3, 2)), (replica, engine_page(25))])
    assert cells[SignalKey("svc_requests_total")] == 30
    assert cells[SignalKey("svc_failed_total")] == 3
    assert cells[SignalKey("svc_generation_tokens_total")] == 250  # which its own page does not tell
    assert cells[SignalKey("svc_ready_backends")] == 1
    (rolled_up,) = [batch for batch in collected.batches if batch.source == "services"]
    column = rolled_up.keys.index(SignalKey("svc_requests_total"))
    assert rolled_up.status[0, column] == CellStatus.ABSENT
    assert np.isnan(rolled_up.values[0, column])
