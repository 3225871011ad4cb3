"""Reservations, troughs, and weights of replicas."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import UsageError
from planner.cost import reservations
from planner.traffic.weights import BalanceReason, ReplicaLoad, even_weights, gain, split, weigh

NOW = datetime(2026, 5, 18, tzinfo=UTC)
WEEK = np.concatenate([np.tile(np.r_[np.full(12, 10.0), np.full(12, 40.0)], 7)])


def plan(hourly, **more):
    return reservations.plan(hourly, NOW, **{"held_price": 1.0, "burst_price": 2.0, "lead": timedelta(0), **more})


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 1.5))
def test_no_other_reservation_is_cheaper(seed, held_price):
    hourly = np.random.default_rng(seed).integers(0, 30, 168).astype(float)
    bought = plan(hourly, held_price=held_price, burst_price=1.0, weeks=4)
    demand = np.tile(hourly, 4)
    costs = [held_price * n * demand.size + np.maximum(demand - n, 0).sum() for n in range(31)]
    assert bought.cost == pytest.approx(min(costs))


def test_half_busy_gpus_are_worth_reserving_at_half_the_price():
    bought = plan(WEEK, held_price=0.9)
    assert (bought.held, bought.burst) == (40, 40)
    assert plan(WEEK, held_price=1.1).held == 10
    assert plan(WEEK, held_price=0.9, quota=20).held == 20
    assert plan(WEEK, held_price=3.0).held == 0
    assert bought.low <= bought.cost <= bought.high
    assert bought.cost < bought.all_burst


@pytest.mark.parametrize(
    ("options", "reason", "worth"),
    [
        ({"held_price": 0.9, "quota": 0}, reservations.NoReservation.QUOTA, 40),
        ({"held_price": 0.9, "quota": 7, "group": 8}, reservations.NoReservation.QUOTA, 40),
        ({"held_price": 2.0}, reservations.NoReservation.NEVER_PAYS, 0),
        ({"held_price": 3.0, "quota": 0}, reservations.NoReservation.NEVER_PAYS, 0),
        ({"held_price": 0.9, "weeks": 4, "lead": timedelta(weeks=6)}, reservations.NoReservation.TOO_LATE, 0),
    ],
)
def test_without_a_reservation_there_is_a_reason_and_no_order(options, reason, worth):
    bought = plan(WEEK, **options)
    assert (bought.held, bought.unheld, bought.worth, bought.order_by) == (0, reason, worth, None)


def test_gpus_that_are_seldom_busy_are_not_reserved():
    once = np.zeros(168)
    once[3] = 8.0
    bought = plan(once)
    assert (bought.held, bought.unheld, bought.order_by) == (0, reservations.NoReservation.SELDOM_BUSY, None)
    ordered = plan(WEEK, held_price=0.9, quota=20)
    assert (ordered.held, ordered.worth, ordered.unheld, ordered.order_by) == (20, 40, None, NOW)


def test_parts_of_replicas_are_neither_reserved_nor_rented():
    busy = np.where(np.arange(336) % 3 == 0, 16.0, 8.0)
    for held_price in (0.2, 0.7, 0.9):
        bought = plan(busy, held_price=held_price, burst_price=1.0, group=8, quota=20)
        assert bought.held % 8 == bought.burst % 8 == 0
        assert bought.held <= 16
    grown = plan(np.concatenate([busy[:168] * 1.1**n for n in range(6)]), group=8)
    assert grown.burst % 8 == grown.demand_high[1] % 8 == 0
    with pytest.raises(UsageError):
        plan(busy, group=0)


def test_the_coming_day_is_the_highest_of_its_hours_of_the_week_and_not_yesterday():
    week = np.r_[np.full(24, 40.0), np.full(120, 20.0), np.full(24, 8.0)]  # begins and ends with the coming weekday
    last = np.where(np.arange(168) == 3, 48.0, week)
    hourly = np.concatenate([week, last])
    result = reservations.coming_day(hourly, reservations.growth(hourly), 8)
    assert result.tolist() == [40.0] * 3 + [48.0] + [40.0] * 20
    grows = reservations.Growth(0.1, 0.05, 0.15, 5)
    assert reservations.coming_day(week, grows).tolist() == [44.0] * 24
    assert reservations.coming_day(week, reservations.Growth(-0.1, -0.2, 0.0, 5)).tolist() == [40.0] * 24
    unknown = np.where(np.arange(168) < 2, np.nan, week)
    assert np.isnan(reservations.coming_day(unknown, grows)).tolist() == [True] * 2 + [False] * 22


def test_growth_comes_from_weeks_and_is_wide_without_them():
    grown = np.concatenate([WEEK * 1.1**n for n in range(6)])
    result = reservations.growth(grown)
    assert result.middle == pytest.approx(0.1)
    assert result.low == pytest.approx(result.high)
    assert reservations.growth(WEEK).low < 0 < reservations.growth(WEEK).high
    later = plan(grown, weeks=4)
    assert later.burst == int(np.ceil(40 * 1.1**9 - 1e-6))


def test_a_late_reservation_is_all_on_demand():
    bought = plan(WEEK, weeks=4, lead=timedelta(weeks=6))
    assert (bought.held, bought.in_time) == (0, False)
    assert bought.cost == bought.all_burst


@pytest.mark.parametrize(
    "wrong", [{"weeks": 3}, {"weeks": 13}, {"held_price": -1.0}, {"burst_price": 0.0}, {"held_price": float("nan")}]
)
def test_impossible_plans_are_refused(wrong):
    with pytest.raises(UsageError):
        plan(WEEK, **wrong)


def test_less_than_a_week_of_history_is_refused():
    for hourly in (WEEK[:100], np.full(168, np.nan), -WEEK):
        with pytest.raises(UsageError):
            plan(hourly)


def test_troughs_give_gpus_back_the_start_up_time_before_they_are_needed():
    times = NOW.timestamp() + 3600.0 * np.arange(24)
    need = [2.0] * 6 + [8.0] * 12 + [2.0] * 6
    result = reservations.troughs(times, need, 8, startup=timedelta(minutes=30))
    assert [(trough.gpus, trough.start, trough.back_by) for trough in result] == [
        (6, NOW, NOW + timedelta(hours=5, minutes=30)),
        (6, NOW + timedelta(hours=18), NOW + timedelta(hours=24)),
    ]
    assert sum(trough.gpu_hours for trough in result) == 6 * 5.5 + 6 * 6
    assert reservations.troughs(times, [np.nan] * 24, 8, startup=timedelta(0)) == []
    assert [trough.gpus for trough in reservations.troughs(times, need, 8, startup=timedelta(0), group=4)] == [4, 4]


def test_weights_end_at_one_wait():
    result = weigh([ReplicaLoad("a", 4000, 1000), ReplicaLoad("b", 0, 500), ReplicaLoad("c", 0, 500)], 2000, horizon=10)
    # a: (4000 + 10000 x share) / 1000 = b: 10000 x share / 500, all add up
    assert result.weights == {"a": 40, "b": 30, "c": 30}
    assert result.waits["a"] == 4.0
    assert sum(result.weights.values()) == 100


def test_a_full_cache_admits_nothing_and_when_all_are_full_nothing_is_steered():
    full = ReplicaLoad("a", 0, 1000, kv_ratio=0.95)
    result = weigh([full, ReplicaLoad("b", 0, 1000)], 100)
    assert (result.weights, result.closed) == ({"a": 0, "b": 100}, ("a",))
    assert weigh([full], 100).reason is BalanceReason.ALL_FULL
    for language in ("en", "zh"):
        assert len(weigh([full], 100).lines(language)) == 2


def test_a_warm_cache_keeps_its_requests_until_the_wait_costs_more():
    warm, cold = ReplicaLoad("warm", 500, 1000, cached_ratio=0.9), ReplicaLoad("cold", 0, 1000)
    warm_result = weigh([warm, cold], 1, horizon=1, prefill_seconds=2.0)
    assert warm_result.weights == {"warm": 100, "cold": 0}
    moved = weigh([ReplicaLoad("warm", 9000, 1000, cached_ratio=0.9), cold], 1, horizon=1, prefill_seconds=2.0)
    assert moved.weights == {"warm": 0, "cold": 100}
    assert moved.affinity_loss_seconds > 0


def test_the_replay_shows_the_gain_if_speeds_differ():
    unlike = [ReplicaLoad("fast", 0, 3000), ReplicaLoad("slow", 2000, 500)]
    before, after = gain(unlike, 2000, 200)
    assert after < before / 2
    alike = [ReplicaLoad(name, 0, 1000) for name in "ab"]
    before, after = gain(alike, 1000, 200)
    assert after < before * 1.5


def test_long_prompts_split_where_both_sides_are_equally_busy():
    lengths = [100.0] * 90 + [900.0] * 10  # half of all tokens each
    assert split(lengths, 0.5).split_tokens == 100.0
    assert split(lengths, 0.4).split_tokens == 900.0
    assert split([], 0.5) is None
    with pytest.raises(UsageError):
        split(lengths, 1.0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.floats(10, 1e4), st.floats(0, 1)), min_size=1, max_size=20),
    st.floats(0, 1e5),
)
def test_weights_add_up_and_closed_replicas_get_none(rows, rate):
    result = weigh([ReplicaLoad(str(i), *row) for i, row in enumerate(rows)], rate)
    assert sum(result.weights.values()) == 100
    assert min(result.weights.values()) >= 0
    if result.reason is BalanceReason.BY_WAIT:
        assert all(result.weights[name] == 0 for name in result.closed)


@pytest.mark.parametrize("wrong", [("a", -1, 10), ("a", 1, 0), ("a", 1, 10, 1.5), ("a", float("nan"), 10)])
def test_impossible_replica_values_are_refused(wrong):
    with pytest.raises(UsageError):
        ReplicaLoad(*wrong)


def test_weights_without_a_gain_become_even_and_lines_sort_naturally():
    replicas = [ReplicaLoad(f"r-{n}", 100.0 * n, 1000.0, kv_ratio=0.95 if n == 3 else 0.1) for n in (1, 10, 2, 3)]
    result = weigh(replicas, 100.0)
    assert len(set(result.weights.values())) > 2
    level = even_weights(result)
    assert level.reason is BalanceReason.NO_GAIN
    assert level.weights["r-3"] == 0
    assert sum(level.weights.values()) == 100
    assert {level.weights[name] for name in ("r-1", "r-2", "r-10")} == {33, 34}
    assert [line.split(":")[0] for line in level.lines()] == ["r-1", "r-2", "r-3", "r-10"]
