"""The cheapest mix and the front against every possible mix."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.errors import UsageError
from planner.cost.milp import Demand, Mix, NoMix, NoMixReason, Option, Pool, cheapest, front

# b is cheaper than a, and both are sold singly; c comes in pairs
POOLS = (Pool("a", 3.0), Pool("b", 1.0, quota=3), Pool("c", 0.5, quota=4, node=2, spot=True))


def brute(options, pools, demand, most=5):
    """Every mix that serves: (cost, latency)."""
    by_name = {pool.name: pool for pool in pools}
    result = []
    for counts in product(range(most + 1), repeat=len(options)):
        capacity = sum(option.capacity * count for option, count in zip(options, counts, strict=True))
        used = [option for option, count in zip(options, counts, strict=True) if count]
        lost = demand.losses * max((option.capacity for option in used), default=0.0)
        spot = sum(o.capacity * n for o, n in zip(options, counts, strict=True) if by_name[o.pool].spot)
        if capacity - lost < demand.need - 1e-9 or spot > demand.spot_ratio * capacity + 1e-9:
            continue
        cost = 0.0
        for pool in pools:
            gpus = sum(o.gpus * n for o, n in zip(options, counts, strict=True) if o.pool == pool.name)
            bought = -(-gpus // pool.node) * pool.node
            if pool.quota is not None and bought > pool.quota:
                break
            cost += bought * pool.price
        else:
            result.append((cost, max((option.latency for option in used), default=0.0)))
    return result


_options = st.lists(
    st.builds(
        Option,
        st.just("o"),
        st.sampled_from("abc"),
        st.sampled_from([1, 2]),
        st.integers(1, 6).map(float),
        st.integers(1, 4).map(float),
    ),
    min_size=1,
    max_size=3,
)
_demands = st.builds(Demand, st.integers(1, 9).map(float), st.integers(0, 1), st.sampled_from([1.0, 0.5]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(_options, _demands)
@example(
    [Option("o", "a", 1, 1.0, 1.0), Option("o", "c", 1, 1.0, 1.0), Option("o", "c", 1, 2.0, 1.0)],
    Demand(1.0, 1, 0.5),  # the larger spot replica exceeds the allowed share of spot
)
def test_no_other_mix_is_cheaper(options, demand):
    # so many replicas of one option always suffice or are refused by its quota
    everything = brute(options, POOLS, demand, most=11 if len(options) < 3 else 10)
    result = cheapest(options, POOLS, demand)
    if isinstance(result, NoMix):
        assert not everything
        assert result.reason is NoMixReason.QUOTA
        return
    assert result.cost_per_hour == pytest.approx(min(cost for cost, _ in everything))
    assert result.gap_ratio == 0


@settings(max_examples=40, deadline=None)
@given(_options, st.integers(1, 8).map(float))
def test_the_front_is_every_undominated_mix(options, need):
    everything = brute(options, POOLS, Demand(need), most=9)
    best = sorted(
        {(c, t) for c, t in everything if not any(x <= c and y <= t and (x, y) != (c, t) for x, y in everything)}
    )
    result = front(options, POOLS, Demand(need))
    if isinstance(result, NoMix):
        assert not everything
        return
    assert [mix.cost_per_hour for mix in result] == pytest.approx([cost for cost, _ in best])
    assert [mix.latency for mix in result] == [latency for _, latency in best]


def test_free_gpus_of_a_paid_node_are_used():
    options = [Option("dear", "a", 1, 3.0, 1.0), Option("pair", "c", 1, 2.0, 1.0)]
    result = cheapest(options, [Pool("a", 0.9), Pool("c", 1.0, node=2)], Demand(4.0))
    assert result.cost_per_hour == pytest.approx(1.8)
    result = cheapest(options, [Pool("a", 1.1), Pool("c", 1.0, node=2)], Demand(4.0))
    assert result.replicas == {1: 2}


def test_no_load_costs_nothing():
    assert cheapest([Option("o", "a", 1, 1.0, 1.0)], POOLS, Demand(0.0)).cost_per_hour == 0


def test_a_solver_timeout_is_not_reported_as_a_quota(monkeypatch):
    """Many similar options with two losses at a time are solved quickly."""
    pools = [Pool(f"p{n}", 1.0 + n / 100, quota=50) for n in range(12)]
    options = [Option("o", f"p{n}", 1 + n % 3, 1.0 + n / 7, 1.0 + n) for n in range(12)]
    monkeypatch.setattr("planner.cost.milp._SECONDS", 0.0)
    result = cheapest(options, pools, Demand(300.0, losses=2))
    assert result.reason is NoMixReason.TIME


def test_a_zero_quota_serves_nothing_and_is_reported():
    result = cheapest([Option("o", "z", 1, 1.0, 1.0)], [Pool("z", 1.0, quota=0)], Demand(5.0))
    assert (result.reason, result.most) == (NoMixReason.QUOTA, 0.0)


def test_an_insufficient_quota_reports_its_capacity():
    result = cheapest([Option("o", "b", 2, 4.0, 1.0)], POOLS, Demand(5.0))
    assert isinstance(result, NoMix)
    assert result.most == 4.0


def test_nothing_fast_enough_is_another_reason():
    result = cheapest([Option("o", "a", 1, 1.0, 9.0)], POOLS, Demand(5.0), latency=1.0)
    assert result.reason is NoMixReason.NOTHING_SERVES


def test_one_replica_may_be_lost():
    result = cheapest([Option("o", "a", 1, 5.0, 1.0)], POOLS, Demand(10.0, losses=1), latency=inf)
    assert isinstance(result, Mix)
    assert result.replicas == {0: 3}


def test_a_replica_without_capacity_is_refused():
    with pytest.raises(UsageError):
        Option("o", "a", 1, 0.0, 1.0)
