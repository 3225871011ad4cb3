"""Recorded outages of a real engine, slower and with a healthy quarter of an hour after them: one page each.

Slower recordings have few requests per minute, so a backlog and its percentiles decay over many cycles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from aftermath_recording import extend  # type: ignore[import-not-found]

from outrider.clock import parse_rfc3339
from service.config.settings import Settings
from service.ops import replay

RECORDINGS = Path(__file__).parents[1] / "recordings"
LOUD = ("P0", "P1", "P2")
STEADY = {"i_hang": slice(4, 14), "l_sleep": slice(3, 11), "g_sigkill": slice(2, 12)}
OUTAGES = [
    ("i_hang", 3, True, "engine-hung"),
    ("i_hang", 3, False, "engine-hung"),
    ("i_hang", 6, True, "engine-hung"),
    ("i_hang", 6, False, "engine-hung"),
    ("l_sleep", 3, True, "engine-asleep"),
    ("g_sigkill", 3, True, "engine-dead"),
]
Run = Callable[[str, float, bool], dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """Replays a recording made slower; ``load``: with the requests in flight at the port. Each runs once."""

    @cache
    def replayed(name: str, slower: float, load: bool) -> dict[str, Any]:
        source = RECORDINGS / f"{name}.metrics.jsonl.gz"
        target = tmp_path_factory.mktemp("aftermath") / source.name
        path = extend(source, target, slower=slower, healthy=STEADY[name], minutes=15, load=load)
        return replay.replay([path], adapter="vllm", emit=["alerts", "incidents"], settings=Settings(), language="en")

    return replayed


def loud(result):
    return [incident for incident in result["incidents"] if incident["priority"] in LOUD]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "slower", "load", "fault"), OUTAGES)
def test_the_backlog_of_an_outage_pages_nobody_a_second_time(run, name, slower, load, fault):
    result = run(name, slower, load)
    (incident,) = loud(result)
    assert incident["suspected_cause"]["fault"] == fault
    assert incident["resolved_at"] is not None
    assert "traffic-surge" not in {alert["rule"] for alert in result["alerts"]}


@pytest.mark.slow
@pytest.mark.parametrize("load", [True, False])
def test_the_backlog_of_a_hang_is_named_as_that(run, load):
    result = run("i_hang", 6, load)
    (incident,) = loud(result)
    (backlog,) = [alert for alert in result["alerts"] if alert["rule"] == "backlog"]
    assert backlog["incident"] == incident["id"]


@pytest.mark.slow
def test_a_percentile_alert_ends_with_its_backlog(run):
    """The slowed hang ends with a queue, which is served 43 scrapes of 30 s after the start; then traffic is sparse."""
    result = run("i_hang", 6, True)
    served = parse_rfc3339(result["from"]) + timedelta(seconds=43 * 30)
    (percentile,) = [alert for alert in result["alerts"] if alert["rule"] == "ttft-p99-high"]
    assert parse_rfc3339(percentile["ends_at"]) <= served + timedelta(minutes=2)
