from __future__ import annotations

import pytest

from detectors.validity import ValidityDetector
from outrider.model import EntityKind, NoVerdictReason

LENGTH = 50


def service(ratio, requests=100.0):
    return {"svc_output_invalid_ratio": ratio, "svc_requests_total": [requests] * len(ratio)}


@pytest.fixture
def find(window_of, findings_of):
    def run(verdicts=None, **rows):
        found = findings_of(ValidityDetector(), window_of(EntityKind.SERVICE, rows), verdicts=verdicts)
        return [(item.fault, item.entity.name) for item in found]

    return run


def test_answers_as_valid_as_ever(find):
    assert find(chat=service([0.0002] * LENGTH), code=service([0.0] * LENGTH)) == []


def test_many_invalid_answers(find):
    rows = {"chat": service([0.0] * 40 + [0.05] * 10), "code": service([0.0] * LENGTH)}
    assert find(**rows) == [("garbled-output", "chat")]


def test_a_few_invalid_answers_of_a_quiet_service(find):
    assert find(chat=service([0.0] * 40 + [0.3] * 10, requests=1.0)) == []


def test_one_scrape_of_invalid_answers(find):
    assert find(chat=service([0.0] * 49 + [0.5])) == []


def test_it_is_over_when_answers_are_valid_again(find):
    assert find(chat=service([0.0] * 30 + [0.05] * 10 + [0.0] * 10)) == []


def test_a_service_that_always_counts_some_is_judged_by_its_usual_share(find):
    assert find(chat=service([0.009] * 30 + [0.012] * 20)) == []


@pytest.mark.parametrize("ratio", [[None] * LENGTH, [None]])
def test_no_count_is_no_verdict(find, ratio):
    verdicts = []
    assert find(verdicts, chat=service(ratio)) == []
    assert [item.reason for item in verdicts] == [NoVerdictReason.NO_VALUES]
