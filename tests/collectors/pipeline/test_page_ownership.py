"""Pages of another system and empty pages are not a healthy target."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from collectors.exposition.parser import Parser
from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, SignalKey

AT = datetime(2026, 3, 1, tzinfo=UTC)
VLLM = b'vllm:num_requests_running{engine="0"} 3\nprocess_start_time_seconds 1\n'
RAY = b'ray_vllm_num_requests_running{engine="0"} 3\nprocess_start_time_seconds 1\n'
GPU = b'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a",gpu="0"} 41\n'


def rounds(adapter: str, *bodies: bytes) -> ScrapeManager:
    collector = ScrapeManager([target_of("c", {"name": "t", "adapter": adapter})])
    for number, body in enumerate(bodies):
        at = AT + number * timedelta(seconds=15)
        collector.found = collector.absorb([Scrape(collector.targets[0], at, body, None, 0.0)], at)  # type: ignore[attr-defined]
    return collector


def cell(collector: ScrapeManager, kind: EntityKind, signal: str) -> float:
    (batch,) = [one for one in collector.found.batches if one.kind is kind and one.source == "t"]  # type: ignore[attr-defined]
    return float(batch.values[0, batch.keys.index(SignalKey(signal))])


def test_a_page_of_another_engine_is_a_failed_scrape_with_its_owner() -> None:
    with capture_logs() as logs:
        collector = rounds("tgi", VLLM)
    (health,) = collector.health
    assert (health.up, health.reason) == (False, CollectReason.NOT_METRICS)
    assert health.error == "t: this page has no metric of tgi; it matches vllm"
    assert "vllm" in health.hint
    assert cell(collector, EntityKind.REPLICA, "engine_up") == 0
    assert cell(collector, EntityKind.WORKLOAD, "target_failure_code") == 6
    assert [one["event"] for one in logs] == ["scrape_failed"]


@pytest.mark.parametrize(("adapter", "body"), [("vllm", VLLM), ("ray_serve", RAY), ("dcgm", GPU)])
def test_the_page_of_the_expected_engine_is_read(adapter: str, body: bytes) -> None:
    assert rounds(adapter, body).health[0].up


@pytest.mark.parametrize("adapter", ["vllm", "istio", "otel_genai"])
def test_a_page_without_signature_may_be_an_idle_server(adapter: str) -> None:
    assert rounds(adapter, b"process_start_time_seconds 1\ngo_goroutines 9\n").health[0].up


def test_an_empty_page_is_accepted_only_for_lost_devices() -> None:
    for adapter in ("vllm", "dcgm"):
        (health,) = rounds(adapter, b"").health
        assert (health.up, health.error) == (False, "t: the metrics page is empty")
    assert not rounds("vllm", VLLM, b"").health[0].up
    gone = rounds("dcgm", GPU, b"")
    assert gone.health[0].up
    assert cell(gone, EntityKind.GPU, "hw_accel_seen") == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x1f\x8b\x08\x00rest", "gzip"),
        ("a 1\n".encode("utf-16"), "UTF-16"),
        (b"\x7fELF\x00\x00\x01\n", "binary"),
    ],
)
def test_binary_content_is_described_and_not_printed(body: bytes, expected: str) -> None:
    with pytest.raises(CollectError, match=expected) as found:
        Parser().parse(body)
    assert found.value.reason == CollectReason.NOT_METRICS
    assert "\\x" not in found.value.message


def test_a_byte_order_mark_is_not_part_of_the_first_name() -> None:
    assert list(Parser().parse(b"\xef\xbb\xbfa 1\n").names) == ["a"]
