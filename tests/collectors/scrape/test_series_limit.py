"""A series explosion affects no other target and is logged with its cause."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from collectors.scrape.series_limit import within_limit
from outrider.errors import CollectReason
from outrider.model import EntityKind, SignalKey, TrustVerdict

AT = datetime(2026, 3, 1, tzinfo=UTC)
TARGET = replace(target_of("c", {"name": "chat-0", "adapter": "vllm", "labels": {"service": "chat"}}), limit_series=100)
ENGINE = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3\n'
PATHS = b"".join(b'http_server_seconds{method="get",path="/users/%d"} 1\n' % number for number in range(500))


def scrape(body: bytes) -> Scrape:
    return Scrape(TARGET, AT, body, None, 0.01)


def test_a_page_within_its_limit_is_unchanged() -> None:
    comments = b"# a comment\n" * 200
    one = scrape(ENGINE + comments)
    assert within_limit(one, "vllm:num_requests_running".__eq__) is one


@pytest.mark.parametrize("end", [b"", b"# EOF\n"])
def test_a_page_over_its_limit_keeps_the_series_of_its_adapter(end: bytes) -> None:
    collector = ScrapeManager([TARGET])
    with capture_logs() as logs:
        collected = collector.absorb([scrape(PATHS + ENGINE + end)], AT)
    (watched,) = [batch for batch in collected.batches if batch.kind is EntityKind.WORKLOAD]
    (replica,) = [batch for batch in collected.batches if batch.kind is EntityKind.REPLICA]
    assert replica.values[0, replica.keys.index(SignalKey("engine_requests_running"))] == 3
    assert replica.values[0, replica.keys.index(SignalKey("target_samples"))] == 501
    assert replica.trust is TrustVerdict.EXPLOSION
    assert watched.values[0, watched.keys.index(SignalKey("target_trust_code"))] == TrustVerdict.EXPLOSION.code
    (reported,) = [one for one in logs if one["event"] == "series_exploded"]
    assert (reported["target"], reported["family"], reported["label"], reported["kept"]) == (
        "chat-0",
        "http_server_seconds",
        "path",
        1,
    )


def test_a_series_explosion_is_logged_once_until_it_ends() -> None:
    collector = ScrapeManager([TARGET])
    with capture_logs() as logs:
        for number, body in enumerate((PATHS + ENGINE, PATHS + ENGINE, ENGINE, PATHS + ENGINE)):
            collector.absorb([replace(scrape(body), at=AT + number * timedelta(seconds=15))], AT)
    assert [one["event"] for one in logs] == ["series_exploded"] * 2


def test_duplicate_series_are_logged_once_until_they_disappear() -> None:
    collector, twice = ScrapeManager([TARGET]), ENGINE + b'vllm:num_requests_running{engine="0"} 7\n'
    with capture_logs() as logs:
        for number, body in enumerate((twice, twice, ENGINE, twice)):
            collected = collector.absorb([replace(scrape(body), at=AT + number * timedelta(seconds=15))], AT)
            (replica,) = [batch for batch in collected.batches if batch.kind is EntityKind.REPLICA]
            assert replica.trust is (TrustVerdict.FRESH if body is ENGINE else TrustVerdict.DUPLICATE)
    assert [one["event"] for one in logs] == ["series_more_than_once"] * 2
    assert (logs[0]["target"], logs[0]["series"]) == ("chat-0", 'vllm:num_requests_running{engine="0"} (3, 7)')


def test_a_page_with_too_many_adapter_series_is_rejected() -> None:
    body = b"".join(b'vllm:num_requests_running{user="%d"} 1\n' % number for number in range(101))
    collected = within_limit(scrape(body), "vllm:num_requests_running".__eq__)
    assert collected.body is None
    assert collected.error is not None
    assert collected.error.reason == CollectReason.TOO_MANY_SERIES
    assert "101 of them are vllm:num_requests_running, most by label user" in collected.error.message


def test_a_label_of_a_megabyte_is_read() -> None:
    body = ENGINE + b'other{text="' + b"x" * 1_000_000 + b'"} 1\n'
    collected = ScrapeManager([TARGET]).absorb([scrape(body)], AT)
    assert all(batch.trust is TrustVerdict.FRESH for batch in collected.batches if batch.source == "chat-0")
