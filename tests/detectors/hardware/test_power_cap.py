from __future__ import annotations

import pytest

from detectors.hardware.power_cap import PowerCapDetector
from outrider.model import EntityKind, EntityRef, NoVerdictReason
from outrider.topology import Topology

GPU = EntityKind.GPU
NAMES = ("g0", "g1", "g2", "g3")
LENGTH, FAULT = 20, 12
TOPOLOGY = Topology.build((), entities=[EntityRef("lab", GPU, None, name) for name in NAMES])


def card(*, limit=700.0, throttled=0.0, power=400.0, clock=1.98e9, busy=0.8, length=LENGTH):
    """Healthy until FAULT, then the given values. None leaves the column out."""

    def column(before, after):
        return [before if place < FAULT else after for place in range(length)]

    row = {
        "hw_accel_power_limit_watts": column(700.0, limit),
        "hw_accel_power_watts": column(400.0, power),
        "hw_accel_core_clock_hertz": column(1.98e9, clock),
        "hw_accel_utilization_ratio": column(0.8, busy),
    }
    return row if throttled is None else {**row, "hw_accel_throttle_power_ratio": column(0.0, throttled)}


@pytest.fixture
def find(window_of, findings_of):
    def run(verdicts=None, **rows):
        rows = {name: rows.get(name, card()) for name in NAMES}
        findings = findings_of(PowerCapDetector(), window_of(GPU, rows), TOPOLOGY, verdicts=verdicts)
        return [(item.fault, item.entity.name, item.evidence[0].text) for item in findings]

    return run


def test_gpus_below_their_limit_have_no_finding(find):
    assert find() == []


def test_a_lowered_limit_that_reduces_the_clock_is_reported(find):
    lowered = card(limit=220.0, throttled=1.0, power=218.0, clock=1.3e9)
    assert find(g1=lowered) == [("gpu-power-throttle", "g1", "findings.power_limit_lowered")]


def test_a_lowered_limit_is_reported_from_power_alone(find):
    lowered = card(limit=220.0, throttled=None, power=218.0, clock=1.3e9)
    assert find(g1=lowered) == [("gpu-power-throttle", "g1", "findings.power_limit_lowered")]


def test_a_lowered_limit_without_effect_is_not_reported(find):
    assert find(g1=card(limit=500.0, power=400.0)) == []


def test_a_gpu_throttled_far_below_its_peers_is_reported(find):
    held = card(throttled=0.9, power=690.0, clock=1.3e9)
    assert find(g1=held) == [("gpu-power-throttle", "g1", "findings.power_limit_holds")]


def test_all_gpus_at_their_limit_are_not_reported(find):
    assert find(**{name: card(throttled=0.9, power=690.0, clock=1.5e9) for name in NAMES}) == []


def test_the_low_clock_of_an_idle_gpu_is_not_reported(find):
    assert find(g1=card(limit=220.0, throttled=1.0, power=70.0, clock=3e8, busy=0.0)) == []


def test_one_scrape_is_not_reported(find):
    row = card(limit=220.0, throttled=1.0, power=218.0, clock=1.3e9)
    assert find(g1={name: [*values[:FAULT], *values[:FAULT][:7], values[-1]] for name, values in row.items()}) == []


@pytest.mark.parametrize("length", [1, LENGTH])
def test_no_values_give_no_verdict(find, length):
    verdicts = []
    assert find(verdicts, **{name: {key: [None] * length for key in card()} for name in NAMES}) == []
    assert {item.reason for item in verdicts} == {NoVerdictReason.NO_VALUES}
