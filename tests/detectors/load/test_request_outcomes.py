from __future__ import annotations

import numpy as np
import pytest

from detectors.load.request_outcomes import RequestOutcomeDetector
from outrider.model import EntityKind
from outrider.vocabulary.catalog import signal

S = EntityKind.SERVICE
BOUNDS = signal("svc_ttft_seconds").bounds
CALM, LATER = 36, 24


def service(*, refused=0.0, left=0.0, failed=0.0, answered=40.0, ttft=0.1, queue=0.0, usually=0.0):
    place = int(np.searchsorted(BOUNDS, ttft))
    return {
        "svc_requests_total": [answered] * (CALM + LATER),
        "svc_failed_total": [0.0] * CALM + [failed] * LATER,
        "svc_refused_total": [usually] * CALM + [refused] * LATER,
        "svc_abandoned_total": [usually] * CALM + [left] * LATER,
        "svc_queue_requests": [0.0] * CALM + [queue] * LATER,
        **{
            f"svc_ttft_seconds#{i}": [0.0] * CALM + [10.0 if i == place else 0.0] * LATER
            for i in range(len(BOUNDS) + 1)
        },
    }


@pytest.fixture
def find(window_of, findings_of):
    return lambda **row: [
        item.fault for item in findings_of(RequestOutcomeDetector(), window_of(S, {"s": service(**row)}))
    ]


def test_a_rising_ratio_of_refused_requests_is_reported(find):
    assert find(refused=6.0) == ["bad-requests"]


def test_aborts_of_timely_responses_are_client_aborts(find):
    assert find(left=12.0) == ["client-aborts"]


@pytest.mark.parametrize(
    "row",
    [
        {"refused": 6.0, "usually": 6.0},  # as ever
        {"refused": 1.0},  # a share that is no change
        {"refused": 6.0, "failed": 4.0},  # not only 4xx
        {"refused": 0.4, "answered": 2.0},  # too few to tell
        {"left": 12.0, "ttft": 9.0},  # they leave because they wait
        {"left": 12.0, "queue": 5.0},
        {"left": 12.0, "failed": 4.0},  # or because the engines fail
    ],
)
def test_other_changes_are_not_reported(find, row):
    assert find(**row) == []


def test_engines_without_the_metrics_give_no_verdict(window_of, findings_of):
    verdicts = []
    window = window_of(S, {"s": {"svc_requests_total": [40.0] * 30}})
    assert findings_of(RequestOutcomeDetector(), window, verdicts=verdicts) == []
    assert [item.reason.value for item in verdicts] == ["no_values"]


def test_it_ends_with_its_cause(window_of, findings_of):
    row = {name: [*values, *values[:CALM]] for name, values in service(refused=6.0).items()}
    assert findings_of(RequestOutcomeDetector(), window_of(S, {"s": row})) == []
