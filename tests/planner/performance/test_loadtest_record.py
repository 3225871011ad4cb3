"""A load test as text: it round-trips, and damage is named."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outrider.errors import UsageError
from outrider.model import Interval
from planner.performance import loadtest_record
from planner.performance.loadtest_record import LoadTestRecord
from planner.performance.queueing import Slo
from planner.performance.saturation_point import LoadPoint, saturation_point

SPANS = {"tokens_per_second": Interval(90.0, None)}
POINTS = (
    LoadPoint(1, 1.0, 10.0, 10.0, 30, ttft=0.1, tpot=0.02, intervals=SPANS),
    LoadPoint(4, 3.5, 35.0, 10.0, 100, ttft=0.2, tpot=0.03, error_ratio=0.001),
    LoadPoint(16, 3.6, 36.0, 10.0, 110, ttft=2.0),
)
ENDED = datetime(2026, 11, 21, 12, 0, 1, 250_000, tzinfo=UTC)
TEST = LoadTestRecord(
    "聊天 Chat", None, "H100", 4, 2, "org/m", "0.11", "load_test", ENDED,
    timedelta(days=30), Slo(ttft=1.0), POINTS,
)  # fmt: skip


def test_round_trip_keeps_the_test_and_its_knee() -> None:
    result = loadtest_record.read(loadtest_record.text(TEST), "t.json")
    assert result == TEST
    assert saturation_point(list(result.points), result.slo) == saturation_point(list(POINTS), TEST.slo)


@pytest.mark.parametrize("given", ["", "{", "[]", '{"output_throughput": 1}', "[1, 2]"])
def test_foreign_text_is_not_a_load_test_record(given: str) -> None:
    assert loadtest_record.read(given, "t.json") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({loadtest_record.FORMAT: 2}, "t.json has version 2"),
        ({"service": None}, "service is None"),
        ({"measured_at": "soon"}, "t.json is damaged"),
        ({"steps": [{"concurrency": 1}]}, "t.json is damaged"),
        ({"steps": [{"concurrency": "many"}]}, "not a number"),
        ({"steps": [{"users": 1}]}, "unknown fields"),
        ({"slo": {"ttft": "x"}}, "t.json is damaged"),
        ({"valid_seconds": 1e300}, "t.json is damaged"),
    ],
)
def test_a_damaged_record_is_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    body = json.loads(loadtest_record.text(TEST)) | change
    with pytest.raises(UsageError, match=message):
        loadtest_record.read(json.dumps(body), "t.json")


def test_a_missing_key_is_reported() -> None:
    body = json.loads(loadtest_record.text(TEST))
    del body["gpu_type"]
    with pytest.raises(UsageError, match="has no 'gpu_type'"):
        loadtest_record.read(json.dumps(body), "t.json")
