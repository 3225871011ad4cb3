"""Free-form labels stay bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.vocabulary import catalog
from outrider.vocabulary.request_class import LENGTH_BOUNDS, Mode, PromptLength, RequestClass, Tier, prompt_length
from outrider.wire.cardinality import OTHER, CardinalityLimit, bounded

amounts = st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=40)


@given(st.lists(amounts, max_size=8), st.integers(1, 5))
def test_names_are_few_and_nothing_is_lost(rounds, most) -> None:
    decider = CardinalityLimit(most)
    for traffic in rounds:
        decider.count(traffic)
        folded = decider.fold(traffic)
        assert len(decider.named) <= most
        assert set(folded) <= decider.named | {OTHER, ""}
        assert sum(folded.values()) == pytest.approx(sum(traffic.values()))


def test_the_most_used_keep_their_names() -> None:
    decider = CardinalityLimit(2)
    decider.count({"a": 5, "b": 3, "c": 1, "": 100})
    assert decider.named == {"a", "b"}
    assert decider.fold({"a": 1, "b": 1, "c": 1, "d": 1, "": 1}) == {"a": 1, "b": 1, OTHER: 2, "": 1}


def test_values_of_equal_traffic_do_not_alternate() -> None:
    decider = CardinalityLimit(1)
    decider.count({"a": 10})
    for number in range(50):
        decider.count({"a": 10, "b": 10 + number % 3})
        assert decider.named == {"a"}


def test_unused_names_are_replaced() -> None:
    decider = CardinalityLimit(1)
    decider.count({"old": 100})
    for _ in range(40):
        decider.count({"new": 10})
    assert decider.named == {"new"}


def test_a_flood_of_names_costs_no_memory() -> None:
    decider = CardinalityLimit(3)
    decider.count({"a": 1e6, "b": 1e5, "c": 1e4})
    for number in range(50):
        decider.count({f"user-{number}-{i}": 1.0 for i in range(1_000)})
    assert decider.named == {"a", "b", "c"}
    assert len(decider._weights) <= 33


def test_invalid_traffic_counts_as_zero() -> None:
    decider = CardinalityLimit(2)
    decider.count({"nan": float("nan"), "inf": float("inf"), "minus": -1.0, OTHER: 5.0, "a": 1.0})
    assert decider.named == {"a"}
    with pytest.raises(ValueError, match="at least one"):
        CardinalityLimit(0)


def test_names_are_chosen_by_frequency() -> None:
    assert bounded(["a", "b", "a", "c", "", "b"], 2) == {"a": "a", "b": "b", "c": OTHER, "": ""}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("VIP, online", "vip-online"),
        ("batch/long", "offline-long"),
        ("premium_realtime_huge", "vip-online-huge"),
        ("vip free", "vip"),
        ("tenant-4711", ""),
        ("", ""),
    ],
)
def test_every_text_maps_to_a_known_class(text, written) -> None:
    found = RequestClass.parse(text)
    assert str(found) == written
    assert RequestClass.parse(str(found)) == found


@given(st.text(max_size=60))
def test_classes_are_bounded(text) -> None:
    found = RequestClass.parse(text)
    assert found.tier in {None, *Tier}
    assert found.mode in {None, *Mode}
    assert found.length in {None, *PromptLength}


def test_lengths_are_bounds_of_the_ladder() -> None:
    assert set(LENGTH_BOUNDS) <= set(catalog.signal("engine_prompt_length_tokens").bounds)
    lengths = [prompt_length(tokens).value for tokens in (0, 1_000, 1_001, 10_000, 50_000, 50_001, 1e9)]
    assert lengths == ["short", "short", "medium", "medium", "long", "huge", "huge"]
