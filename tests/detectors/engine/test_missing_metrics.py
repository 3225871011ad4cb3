from __future__ import annotations

import pytest

from detectors.engine.missing_metrics import MissingMetricsDetector
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

START = 1_800_000_000.0
LENGTH, AGAIN = 40, 20
R, SVC = EntityKind.REPLICA, EntityRef("lab", EntityKind.SERVICE, "default", "chat")
TOPOLOGY = Topology.build([(EntityRef("lab", R, "default", name), SVC) for name in ("r0", "r1")])
NAMES = ("engine_requests_running", "engine_generation_tokens_total", "engine_requests_failed_total")


def replica(gone=(), *, again=AGAIN, tokens=100.0, length=LENGTH):
    """A new process from column ``again`` on, without the metrics ``gone``."""
    row = {name: [1.0] * length for name in NAMES}
    row["engine_generation_tokens_total"] = [tokens] * length
    row["engine_up"] = [1.0] * length
    row["engine_start_time_seconds"] = [START - 900 if c < again else START + 5.0 * again for c in range(length)]
    for name in gone:
        row[name] = [value if column < again else None for column, value in enumerate(row[name])]
    return row


@pytest.fixture
def find(window_of, findings_of):
    def run(**rows):
        findings = findings_of(MissingMetricsDetector(), window_of(R, rows), TOPOLOGY)
        return [(item.fault, item.entity) for item in findings]

    return run


def test_a_new_process_with_the_same_metrics_has_no_finding(find):
    assert find(r0=replica(), r1=replica()) == []


def test_a_new_process_without_a_metric_is_reported(find):
    assert find(r0=replica(["engine_requests_failed_total"]), r1=replica()) == [("metric-renamed", SVC)]


def test_a_metric_lost_by_the_same_process_is_not_reported(find):
    row = replica(["engine_requests_failed_total"])
    row["engine_start_time_seconds"] = [START - 900] * LENGTH
    assert find(r0=row) == []


def test_a_process_without_requests_is_not_judged(find):
    row = replica(["engine_requests_failed_total"])
    row["engine_generation_tokens_total"] = [100.0 if column < AGAIN else 0.0 for column in range(LENGTH)]
    assert find(r0=row) == []


def test_an_empty_page_is_not_a_renamed_metric(find):
    assert find(r0=replica(NAMES)) == []


def test_a_rarely_present_metric_is_not_missing(find):
    row = replica(["engine_requests_failed_total"])
    row["engine_requests_failed_total"][: AGAIN - 4] = [None] * (AGAIN - 4)
    assert find(r0=row) == []


def test_an_unreachable_engine_has_no_missing_metrics(find):
    row = replica(["engine_requests_failed_total"])
    row["engine_up"] = [1.0 if column < AGAIN else 0.0 for column in range(LENGTH)]
    assert find(r0=row) == []


@pytest.mark.parametrize("length", [1, 3])
def test_too_few_scrapes_give_no_finding(find, length):
    assert find(r0=replica(["engine_requests_failed_total"], again=1, length=length)) == []


def test_no_values_give_no_verdict(find):
    assert find(r0={name: [None] * LENGTH for name in replica()}) == []
