"""Proposed weights: bounded, summing to 100, never for replicas without values, only if a replay shows a gain."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import UsageError
from planner.traffic.weight_changes import TOTAL, SteeringRules, SteerReason, propose, shift_ratios
from planner.traffic.weights import ReplicaLoad

LONG = ReplicaLoad("long", 90_000, 1000)
FREE = ReplicaLoad("free", 0, 1000)
FAST = ReplicaLoad("fast", 0, 2000)
FULL = ReplicaLoad("full", 0, 1000, kv_ratio=0.95)


def names(*loads: ReplicaLoad) -> list[str]:
    return [one.name for one in loads]


def test_requests_leave_the_long_queue_and_wait_less() -> None:
    result = propose(names(LONG, FREE, FAST), (LONG, FREE, FAST), 2500)
    assert result.reason is SteerReason.BY_WAIT
    assert result.weights["long"] < result.weights["free"] < result.weights["fast"]
    assert result.current["long"] == 34, "even, with the remainder to the first"
    assert result.proposed_seconds is not None
    assert result.current_seconds is not None
    assert result.proposed_seconds < result.current_seconds
    assert sum(result.weights.values()) == TOTAL


def test_a_replica_without_values_keeps_its_weight() -> None:
    now = {"long": 2, "free": 2, "fast": 2, "mute": 4}
    result = propose([*names(LONG, FREE, FAST), "mute"], (LONG, FREE, FAST), 2500, now)
    assert result.kept == ("mute",)
    assert result.weights["mute"] == result.current["mute"] == 40
    assert sum(result.weights.values()) == TOTAL


def test_above_the_watermark_nothing_is_sent_regardless_of_the_bounds() -> None:
    result = propose(names(LONG, FREE, FULL), (LONG, FREE, FULL), 1500, rules=SteeringRules(least=10, most=90))
    assert result.closed == ("full",)
    assert result.weights["full"] == 0
    assert min(result.weights[name] for name in ("long", "free")) >= 10


def test_bounds_that_cannot_be_met_propose_nothing() -> None:
    result = propose(names(LONG, FREE, FULL), (LONG, FREE, FULL), 1500, rules=SteeringRules(most=40))
    assert (result.reason, result.proposed) == (SteerReason.BOUNDS, False)
    assert result.weights == result.current


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        ((FULL, ReplicaLoad("also", 0, 10, kv_ratio=1.0)), SteerReason.ALL_FULL),
        ((FREE,), SteerReason.NOTHING_TO_STEER),
        ((FREE, ReplicaLoad("same", 0, 1000)), SteerReason.NO_GAIN),
    ],
)
def test_weights_without_a_gain_are_not_proposed(loads: tuple[ReplicaLoad, ...], reason: SteerReason) -> None:
    result = propose(names(*loads), loads, 100)
    assert result.reason is reason
    assert result.weights == result.current
    assert result.as_dict()["weights"] == result.as_dict()["current"]


def test_a_full_cache_is_left_even_where_no_queue_gains() -> None:
    loads = (FREE, ReplicaLoad("same", 0, 1000), FULL)
    assert propose(names(*loads), loads, 100).proposed
    drained = {"free": 50, "same": 50, "full": 0}
    assert propose(names(*loads), loads, 100, drained).reason is SteerReason.NO_GAIN


def test_no_replica_gets_more_load_than_it_can_serve() -> None:
    loads = (FULL, ReplicaLoad("open", 0, 1000))
    result = propose(names(*loads), loads, 1900)
    assert (result.reason, result.weights) == (SteerReason.OVERLOAD, {"full": 50, "open": 50})
    assert (result.arriving, result.speed) == (1900, 1000)
    assert propose(names(*loads), loads, 800).weights == {"full": 0, "open": 100}


def test_the_share_of_replicas_without_values_is_not_load_of_the_others() -> None:
    loads, now = (FULL, ReplicaLoad("open", 0, 1000)), {"full": 25, "open": 25, "mute": 50}
    result = propose([*names(*loads), "mute"], loads, 1600, now)
    assert result.arriving == 800
    assert result.weights == {"full": 0, "open": 50, "mute": 50}


def test_waits_are_filled_with_the_rest_of_the_arrivals() -> None:
    rules = SteeringRules(least=0, most=100)
    alone = propose(names(LONG, FREE), (LONG, FREE), 300, rules=rules)
    beside = propose([*names(LONG, FREE), "mute"], (LONG, FREE), 600, {"long": 25, "free": 25, "mute": 50}, rules)
    assert alone.weights == {"long": 0, "free": 100}
    assert beside.weights == {"long": 0, "free": 50, "mute": 50}


def test_a_drained_replica_stays_drained_until_it_is_refilled() -> None:
    now = {"long": 50, "free": 50, "fast": 0}
    result = propose(list(now), (LONG, FREE, FAST), 800, now)
    assert (result.drained, result.weights["fast"]) == (("fast",), 0)
    assert result.waits["fast"] == 0.0, "reported nevertheless"
    again = propose(list(now), (LONG, FREE, FAST), 800, now, SteeringRules(refill=("fast",)))
    assert again.drained == ()
    assert again.weights["fast"] > again.weights["long"] > 0
    only = propose(["long", "fast"], (FAST,), 800, {"long": 1, "fast": 0})
    assert only.reason is SteerReason.NOTHING_TO_STEER


def test_a_small_share_is_not_rounded_away() -> None:
    loads = (ReplicaLoad("a", 90_000, 1000), ReplicaLoad("b", 0, 1000))
    result = propose(["a", "b", "canary"], loads, 1500, {"a": 500, "b": 495, "canary": 3})
    assert result.current == {"a": 50, "b": 49, "canary": 1}
    assert result.proposed
    assert result.weights["canary"] == 1


def test_of_many_replicas_none_is_drained_by_its_bounds() -> None:
    loads = [ReplicaLoad(f"r{n}", 90_000.0 * (n < 15), 1000) for n in range(30)]
    result = propose(names(*loads), loads, 10_000, rules=SteeringRules(stands_seconds=60))
    assert result.proposed
    assert (result.least, result.most) == (1, 7)
    assert min(result.weights.values()) == 1


def test_without_any_values_there_is_nothing_to_steer() -> None:
    result = propose(["a", "b"], (), 100, {"a": 1, "b": 3})
    assert (result.reason, dict(result.weights)) == (SteerReason.NOTHING_TO_STEER, {"a": 25, "b": 75})


@pytest.mark.parametrize(
    ("backends", "rules", "text"),
    [
        (["long", "long"], SteeringRules(), "named twice"),
        ([f"r{n}" for n in range(101)], SteeringRules(), "cannot share 100 whole weights"),
        (["other"], SteeringRules(), "long is not a backend"),
        (["long", "b"], SteeringRules(stands_seconds=0), "--stands"),
        (["long", "b"], SteeringRules(tokens_per_request=0), "--tokens"),
        (["long", "b"], SteeringRules(least=60, most=50), "invalid bounds"),
        (["long", "b"], SteeringRules(most=101), "invalid bounds"),
        (["long", "b"], SteeringRules(watermark=90), "--watermark"),
        (["long", "b"], SteeringRules(refill=("c",)), "--refill: c is not a backend"),
    ],
)
def test_invalid_input_is_refused(backends: list[str], rules: SteeringRules, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        propose(backends, (LONG,), 100, rules=rules)


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(2, 12))
    loads = [
        ReplicaLoad(
            f"r{number}",
            draw(st.floats(0, 1e5)),
            draw(st.floats(1, 1e4)),
            draw(st.floats(0, 1)),
            draw(st.floats(0, 1)),
        )
        for number in range(count)
        if draw(st.integers(0, 3))  # a quarter has no values
    ]
    current = {f"r{number}": draw(st.integers(0, 1000)) for number in range(count)}
    rules = SteeringRules(
        stands_seconds=10, prefill_seconds=draw(st.floats(0, 5)), least=draw(st.integers(0, 20)),
        most=draw(st.integers(20, 100)), refill=tuple(name for name in current if draw(st.booleans())),
    )  # fmt: skip
    return {"backends": list(current), "loads": loads, "current": current, "rules": rules}


@settings(max_examples=60, deadline=None)
@given(fleets(), st.floats(0, 1e4))
def test_every_proposal_keeps_the_rules(fleet: dict[str, Any], arriving: float) -> None:
    """1 whole weights of 100; 2 the unknown unchanged; 3 full and drained ones 0; 4 others in bounds; 5 a gain."""
    result = propose(fleet["backends"], fleet["loads"], arriving, fleet["current"], fleet["rules"])
    assert list(result.weights) == fleet["backends"]
    assert sum(result.weights.values()) == sum(result.current.values()) == TOTAL
    assert all(isinstance(weight, int) and weight >= 0 for weight in result.weights.values())
    assert all(result.weights[name] == result.current[name] for name in result.kept)
    if not result.proposed:
        assert result.weights == result.current
        return
    assert all(result.weights[name] == 0 for name in (*result.closed, *result.drained))
    assert all(fleet["current"][name] == 0 for name in result.drained)
    for one in fleet["loads"]:
        if one.name not in (*result.closed, *result.drained):
            assert result.least <= result.weights[one.name] <= result.most
    if not any(result.current[name] for name in result.closed):
        beside = result.even_seconds if result.current_seconds is None else result.current_seconds
        assert result.proposed_seconds is not None
        assert beside is not None
        assert result.proposed_seconds <= beside


def test_traffic_actions_have_the_proportions_of_the_weights() -> None:
    ratios = shift_ratios({"a": 50, "b": 25, "c": 0, "d": 25})
    assert ratios == {"a": 1.0, "b": 0.5, "c": 0.0, "d": 0.5}
    assert math.isclose(ratios["b"] / sum(ratios.values()), 0.25)
