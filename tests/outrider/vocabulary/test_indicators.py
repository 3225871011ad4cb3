from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.vocabulary import indicators

NAN = float("nan")
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0)


def test_availability_keeps_unknown_slots_apart():
    success = np.array([1.0, 0.995, 0.98, NAN, NAN, NAN])
    probe = np.array([NAN, NAN, NAN, NAN, 1.0, 0.0])
    found = indicators.availability_time(success, probe).worse
    assert (found.up, found.down, found.unknown) == (3, 2, 1)
    assert found.ratio == 0.6
    assert indicators.availability_time(np.full(3, NAN)).worse.ratio is None


def test_an_hour_of_failing_requests_with_a_healthy_probe_is_an_outage():
    success, probe, requests = np.where(np.arange(120) < 60, 0.0, 1.0), np.ones(120), np.full(120, 50.0)
    found = indicators.availability_time(success, probe, requests)
    assert (found.worse.ratio, found.requests.ratio, found.probe.ratio) == (0.5, 0.5, 1.0)


def test_a_failing_probe_with_successful_requests_is_an_outage():
    found = indicators.availability_time(np.ones(4), np.array([1.0, 0.0, 0.0, 1.0]), np.full(4, 50.0))
    assert (found.worse.ratio, found.requests.ratio, found.probe.ratio) == (0.5, 1.0, 0.5)


def test_few_requests_leave_the_slot_to_the_probe_if_it_has_a_value():
    success, requests = np.array([0.0, 0.0, 0.0]), np.array([4.0, 5.0, 4.0])
    found = indicators.availability_time(success, np.array([1.0, 1.0, NAN]), requests)
    assert (found.worse.up, found.worse.down, found.worse.unknown) == (1, 2, 0)
    assert (found.requests.down, found.requests.unknown) == (2, 1)


def test_success_without_calls_is_unknown_never_perfect():
    assert indicators.success_ratio(0, 0) is None
    assert indicators.success_ratio(1000, 1) == 0.999
    assert indicators.success_ratio(10, 12) == 0.0


def test_attainment_between_bounds_has_two_limits():
    found = indicators.sla_attainment(np.array([80.0, 10.0, 8.0, 1.0, 0.5, 0.5]), BOUNDS)
    assert (found.lower, found.upper, found.requests) == (0.9, 0.98, 100.0)


def test_attainment_on_a_bound_is_exact():
    found = indicators.sla_attainment(np.array([80.0, 10.0, 8.0, 1.0, 0.5, 0.5]), BOUNDS, 0.25)
    assert found.lower == found.upper == 0.98


def test_attainment_below_the_first_and_above_the_last_bound():
    counts = np.array([80.0, 10.0, 8.0, 1.0, 0.5, 0.5])
    assert indicators.sla_attainment(counts, BOUNDS, 0.01).lower == 0.0
    assert indicators.sla_attainment(counts, BOUNDS, 0.01).upper == 0.8
    assert indicators.sla_attainment(counts, BOUNDS, 5.0).lower == 0.995
    assert indicators.sla_attainment(counts, BOUNDS, 5.0).upper == 1.0
    assert indicators.sla_attainment(np.zeros(6), BOUNDS) is None


@given(st.lists(st.integers(0, 10**6), min_size=6, max_size=6), st.floats(0.001, 3.0))
def test_attainment_limits_are_ordered_ratios(counts, limit):
    found = indicators.sla_attainment(np.array(counts, dtype=float), BOUNDS, limit)
    if sum(counts) == 0:
        assert found is None
    else:
        assert 0.0 <= found.lower <= found.upper <= 1.0


def test_quantiles_are_merged_from_buckets_never_averaged():
    one, other = np.array([100.0, 0, 0, 0, 0, 0]), np.array([0.0, 0, 0, 0, 300.0, 0])
    found = indicators.latency_quantiles(np.stack([one, other]), BOUNDS)
    assert found[0.5].seconds == pytest.approx(0.5 + 0.5 * 100 / 300)
    assert not found[0.5].below
    assert indicators.latency_quantiles(one, BOUNDS)[0.99].below
    assert indicators.latency_quantiles(np.zeros(6), BOUNDS)[0.99] is None


def test_burn_rate_of_one_spends_the_budget():
    assert indicators.burn_rate(0.999, 0.999) == pytest.approx(1.0)
    assert indicators.burn_rate(0.9856, 0.999) == pytest.approx(14.4)
    assert indicators.error_budget_left(1.0, 0.999) == 1.0
    assert indicators.burn_rate(None, 0.999) is None
    with pytest.raises(ValueError, match="no error budget"):
        indicators.burn_rate(0.99, 1.0)


def test_incident_means_exclude_missing_times():
    starts, ends = np.array([0.0, 100.0, 200.0]), np.array([60.0, 220.0, NAN])
    assert indicators.mttr(starts, ends) == 90.0
    assert indicators.mttd(np.array([NAN]), np.array([1.0])) is None
    assert indicators.mtta(np.array([10.0]), np.array([5.0])) == 0.0


def test_ratios_with_a_zero_denominator_are_unknown():
    assert indicators.noops_share(0, 0) is None
    assert indicators.noops_share(9, 10) == 0.9
    assert indicators.folded_share(5, 100) == 0.95
    assert indicators.folded_share(0, 0) is None
    assert indicators.pages_per_incident(3, 2) == 1.5
    assert indicators.page_precision(0, 0) is None
    assert indicators.prefix_hit_ratio(0, 0) is None
    assert indicators.output_validity(1000, 1, 0, 0) == 0.999


def test_cost_counts_every_hour_held():
    assert indicators.cost_per_1k_tokens(2.5, 100.0, 1e6) == pytest.approx(0.25)
    assert indicators.cost_per_1k_tokens(None, 100.0, 1e6) is None
    assert indicators.cost_per_1k_tokens(2.5, 100.0, 0) is None
    assert indicators.tokens_per_watt_hour(7200.0, 3600.0) == 7200.0
    assert indicators.tokens_per_watt_hour(1.0, 0.0) is None


def test_utilisation_prefers_the_tensor_share_and_counts_allocated_slots_only():
    active, used = np.array([[0.4, NAN], [NAN, NAN]]), np.array([[0.9, 0.8], [0.1, NAN]])
    assert indicators.gpu_utilisation(active, used) == pytest.approx((0.4 + 0.8 + 0.1) / 3)
    assert indicators.gpu_utilisation(active, used, np.array([[True], [False]])) == pytest.approx(0.6)
    assert indicators.gpu_utilisation(np.full((1, 1), NAN), np.full((1, 1), NAN)) is None


def test_gpu_hours_by_state():
    step = timedelta(minutes=15)
    allocated = np.array([[True, True, True, False]])
    running = np.array([[0.0, 3.0, NAN, 0.0]])
    assert indicators.gpu_hours_idle(allocated, running, step) == 0.25
    assert indicators.gpu_hours_lost(np.array([[0.0, 1.0, NAN, 0.0]]), step) == 0.5


def test_wape_scores_known_slots_only():
    assert indicators.wape(np.array([10.0, NAN, 30.0]), np.array([12.0, 5.0, 26.0])) == pytest.approx(6 / 40)
    assert indicators.wape(np.zeros(3), np.ones(3)) is None


def test_the_memory_rule_ignores_a_healthy_engine():
    memory = np.array([0.92, 0.95, 0.98, 0.91, 0.5, 0.5, NAN])
    reserved = np.array([0.92, 0.92, 0.92, NAN, 0.92, 0.92, NAN])
    kv_used = np.array([0.5, 0.5, 0.5, 0.5, 0.96, 1.0, NAN])
    waiting = np.array([5, 5, 5, 5, 3.0, 0.0, NAN])
    assert indicators.memory_rule(memory, reserved, kv_used, waiting).tolist() == [
        False,
        False,
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_measure_knows_its_side_of_the_target():
    row = indicators.MEASURES["availability"]
    assert row.kept(0.9995) is True
    assert row.kept(0.99) is False
    assert row.kept(None) is None
    assert indicators.MEASURES["mttr"].kept(400.0) is False
    assert indicators.MEASURES["tpot_p99"].kept(1.0) is None


@pytest.mark.parametrize("name", indicators.MEASURES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_measure_has_a_name_and_a_formula(name, language):
    row = indicators.MEASURES[name]
    assert not row.title(language).startswith("reports.")
    assert not row.formula(language).startswith("reports.")


def test_the_reference_page_is_up_to_date():
    import subprocess
    import sys
    from pathlib import Path

    root = Path(__file__).resolve().parents[3]
    script = root / "scripts" / "measures_reference.py"
    if not script.exists():
        pytest.skip("the scripts are not part of this installation")
    done = subprocess.run(
        [sys.executable, str(script), "--check"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
