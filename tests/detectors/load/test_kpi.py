from __future__ import annotations

import pytest

from detectors.load.kpi import KpiDetector
from outrider.model import EntityKind

S = EntityKind.SERVICE
CALM, LATER = 60, 20


def service(later, *, calm=None, answered=40.0):
    usual = [0.62 + 0.006 * (i % 3 - 1) for i in range(CALM)] if calm is None else calm
    return {
        "svc_kpi_value": [*usual, *([later] * LATER if not isinstance(later, list) else later)],
        "svc_output_invalid_ratio": [0.0] * CALM + [0.06] * LATER,
        "svc_requests_total": [40.0] * CALM + [answered] * LATER,
    }


@pytest.fixture
def find(window_of, findings_of):
    return lambda row: findings_of(KpiDetector(), window_of(S, {"s": row}))


def test_a_value_far_below_its_baseline_is_a_kpi_drop(find):
    (item,) = find(service(0.35))
    assert item.fault == "kpi-drop"
    assert [one.text for one in item.evidence] == ["findings.kpi_fell", "findings.answers_invalid_share"]


@pytest.mark.parametrize(
    "row",
    [
        service(0.60),  # its own scatter
        service(0.9),  # better
        service([0.35] * 5 + [0.62] * 15),  # for a moment
        service(0.0, answered=0.0),  # no requests: no evidence
        service(0.35, calm=[0.2, 0.9] * 30),  # a figure that jumps about
        service([None] * 20),
    ],
)
def test_small_or_short_changes_are_not_a_kpi_drop(find, row):
    assert find(row) == []


def test_a_kpi_without_values_has_no_verdict(window_of, findings_of):
    verdicts = []
    window = window_of(S, {"s": {"svc_requests_total": [40.0] * 30}})
    assert findings_of(KpiDetector(), window, verdicts=verdicts) == []
    assert [item.reason.value for item in verdicts] == ["no_values"]
