"""Reports of diagnostics, and rates compared with the median of peers."""

from __future__ import annotations

import json

import pytest

from remediation.actuators.hook.diagnostic import Check, Report, ReportError, judge, read


def bandwidth(value: float, unit: str = "GB/s", name: str = "all_reduce") -> Report:
    return Report(True, (Check(name, True, value, unit),))


def test_a_report_keeps_its_numbers() -> None:
    text = json.dumps(
        {"passed": True, "checks": [{"name": "probe", "passed": True, "value": 31, "unit": "tokens/s", "limit": 20}]}
    )
    report = read(text)
    assert report == Report(True, (Check("probe", True, 31.0, "tokens/s", 20.0),))
    assert judge(report, []) == (True, "diagnostic passed: probe 31 tokens/s (limit 20)")


@pytest.mark.parametrize("text", ["", "Successfully ran diagnostic", "  \n"])
def test_another_text_is_no_report(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"passed": true', "cut at 4,096 bytes"),
        ('{"passed": 1}', "passed: expected true or false"),
        ('{"passed": true, "checks": {}}', "checks: expected a list"),
        ('{"passed": true, "checks": [{"passed": true}]}', "checks.0: expected a check with a name"),
        ('{"passed": true, "checks": [{"name": "a"}]}', "checks.0.passed"),
        ('{"passed": true, "checks": [{"name": "a", "passed": true, "value": "fast"}]}', "checks.0.value"),
        ('{"passed": true, "checks": [{"name": "a", "passed": true, "value": NaN}]}', "checks.0.value"),
        ('{"passed": true, "checks": [{"name": "a", "passed": true, "limit": true}]}', "checks.0.limit"),
    ],
)
def test_a_wrong_report_says_what_was_expected(text: str, wrong: str) -> None:
    with pytest.raises(ReportError, match=wrong):
        read(text)


def test_a_rate_far_below_the_median_fails() -> None:
    peers = [bandwidth(400), bandwidth(410), bandwidth(100)]  # one peer may be slow itself
    assert judge(bandwidth(330), peers)[0]
    passed, detail = judge(bandwidth(310), peers)
    assert not passed
    assert detail == "diagnostic failed: all_reduce 310 GB/s is below 80% of 400 GB/s, the median of 3 nodes"


@pytest.mark.parametrize(
    "peers",
    [
        [],
        [bandwidth(400)],
        [bandwidth(400, "GiB/s"), bandwidth(400, "GiB/s")],
        [bandwidth(400, name="p2p"), bandwidth(400, name="p2p")],
    ],
)
def test_a_rate_without_two_comparable_peers_is_not_judged(peers: list[Report]) -> None:
    assert judge(bandwidth(10), peers)[0]


def test_a_number_that_is_no_rate_is_not_compared() -> None:
    peers = [Report(True, (Check("temperature", True, 80.0, "celsius"),))] * 3
    assert judge(Report(True, (Check("temperature", True, 30.0, "celsius"),)), peers)[0]


def test_a_failed_check_fails_a_report_that_claims_success() -> None:
    report = Report(True, (Check("memory", False), Check("pcie", True)))
    assert judge(report, []) == (False, "diagnostic failed: memory")
    assert judge(Report(False), []) == (False, "diagnostic failed: it reports no reason")
