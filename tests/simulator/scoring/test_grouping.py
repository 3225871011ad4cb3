"""Pairs of alerts of one fault against pairs of one incident."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations

import numpy as np
import pytest

from outrider.model import EntityKind, EntityRef
from outrider.vocabulary.indicators import pairwise_f1
from simulator.scoring.grouping import Pairs, pairs_of
from simulator.scoring.run import FiredAlert, InjectedFault, Run
from simulator.scoring.score import GRACE, score

START = datetime(2026, 11, 18, 10, tzinfo=UTC)
CLUSTER = EntityRef("c", EntityKind.CLUSTER, None, "c")
ONE, OTHER, PEER = (EntityRef("c", EntityKind.REPLICA, "serving", name) for name in ("chat-0", "code-0", "chat-1"))
CHAT, CODE = (EntityRef("c", EntityKind.SERVICE, "serving", name) for name in ("chat", "code"))


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def fault(
    entity: EntityRef, service: EntityRef, *beside: EntityRef, start: float = 5, end: float = 15
) -> InjectedFault:
    path = frozenset({entity, service})
    rings = (frozenset({entity}), path, frozenset(beside))
    return InjectedFault("engine-dead", entity, at(start), at(end), path, rings=rings)


def fired(*alerts: tuple[EntityRef, str | None], minutes: float = 6) -> tuple[FiredAlert, ...]:
    return tuple(FiredAlert(entity, at(minutes), incident) for entity, incident in alerts)


def run(injected: Sequence[InjectedFault], seen: tuple[FiredAlert, ...]) -> Run:
    return Run("s", START, at(20), 9, tuple(injected), (), len(seen), storm=True, fired=seen)


BOTH = (fault(ONE, CHAT), fault(OTHER, CODE))
PLACES = (ONE, CHAT, ONE, OTHER, CODE)  # three of the one, two of the other: 3 + 1 pairs of 10


@pytest.mark.parametrize(
    ("incidents", "precision", "recall", "f1"),
    [
        (("a", "a", "a", "b", "b"), 1.0, 1.0, 1.0),  # correct
        (("a", "a", "a", "a", "a"), 0.4, 1.0, 8 / 14),  # one incident
        ((None, None, None, None, None), None, 0.0, 0.0),  # no incident
        (("a", "b", "c", "d", "e"), None, 0.0, 0.0),  # one incident per alert
        (("a", "a", "b", "b", "b"), 0.5, 0.5, 0.5),  # one alert with the wrong fault
    ],
)
def test_grouping_by_hand(incidents, precision, recall, f1) -> None:
    result = score([run(BOTH, fired(*zip(PLACES, incidents, strict=True)))])
    assert result["pairwise_precision"] == precision
    assert result["pairwise_recall"] == recall
    assert result["pairwise_f1"] == pytest.approx(f1)
    assert result["by_storm"]["s"]["pairwise_f1"] == result["pairwise_f1"]
    assert result["by_storm"]["s"]["alerts"] == 5


def test_without_pairs_there_is_no_figure() -> None:
    for seen in ((), fired((ONE, "a")), fired((ONE, "a"), (OTHER, "b"))):
        assert score([run(BOTH, seen)])["pairwise_f1"] is None
    assert score([])["by_storm"] == {}


def test_only_storms_are_judged_and_their_pairs_are_pooled_but_not_mixed() -> None:
    right = run(BOTH, fired((ONE, "a"), (CHAT, "a")))
    wrong = run(BOTH, fired((ONE, "a"), (CHAT, None)))
    calm = Run("calm", START, at(20), 9, BOTH, (), 2, fired=fired((ONE, "a"), (OTHER, "a")))
    result = score([right, wrong, calm])
    assert (result["pairwise_precision"], result["pairwise_recall"]) == (1.0, 0.5)
    assert set(result["by_storm"]) == {"s"}


def test_an_alert_without_a_fault_forms_no_true_pair() -> None:
    stranger = EntityRef("c", EntityKind.NODE, None, "node-9")
    assert pairs_of(run(BOTH, fired((ONE, "a"), (stranger, "a"), (stranger, "a"))), GRACE) == Pairs(0, 3, 0)
    late = fired((ONE, "a"), (CHAT, "a"), minutes=17.5)
    assert pairs_of(run(BOTH, late), GRACE) == Pairs(0, 1, 0)


def test_an_alert_equally_near_to_two_faults_is_not_scored_with_either() -> None:
    two = (fault(ONE, CHAT, PEER), fault(PEER, CHAT, ONE))
    seen = fired((ONE, "a"), (PEER, "b"), (CHAT, "a"), (CHAT, "b"))
    assert pairs_of(run(two, seen), GRACE) == Pairs(0, 0, 0)
    together = fired((ONE, "a"), (PEER, "a"), (CHAT, "a"))
    assert pairs_of(run(two, together), GRACE) == Pairs(0, 1, 0)


def test_an_alert_near_a_fault_belongs_to_it_unless_another_is_nearer() -> None:
    alone = (fault(ONE, CHAT, PEER),)
    assert pairs_of(run(alone, fired((ONE, "a"), (PEER, "a"))), GRACE) == Pairs(1, 1, 1)
    nearer = (fault(ONE, CHAT, PEER), fault(PEER, CODE))
    assert pairs_of(run(nearer, fired((ONE, "a"), (PEER, "a"))), GRACE) == Pairs(0, 1, 0)


def test_a_cluster_fault_contains_only_its_cluster() -> None:
    whole = InjectedFault("cluster-lost", CLUSTER, at(5), at(15), frozenset({CLUSTER}))
    elsewhere = EntityRef("d", EntityKind.NODE, None, "node-0")
    assert pairs_of(run((whole,), fired((ONE, "a"), (OTHER, "a"), (elsewhere, "a"))), GRACE) == Pairs(1, 3, 1)


@pytest.mark.parametrize("seed", range(20))
def test_counting_by_a_table_is_counting_pair_by_pair(seed: int) -> None:
    draw = np.random.default_rng(seed)
    faults = (fault(ONE, CHAT, PEER), fault(OTHER, CHAT, PEER), fault(CODE, CODE))
    places = (ONE, OTHER, PEER, CHAT, CODE, EntityRef("c", EntityKind.NODE, None, "n"))
    truth_of = {ONE: {0}, OTHER: {1}, PEER: {0, 1}, CHAT: {0, 1}, CODE: {2}}
    seen = fired(*((places[draw.integers(6)], ("a", "b", "c", None)[draw.integers(4)]) for _ in range(30)))
    true = placed = both = 0
    for one, other in combinations(seen, 2):
        left, right = truth_of.get(one.entity, set()), truth_of.get(other.entity, set())
        same = left == right and len(left) == 1
        together = one.incident is not None and one.incident == other.incident
        true += same
        placed += together and (same or not left & right)
        both += same and together
    assert pairs_of(run(faults, seen), GRACE) == Pairs(true, placed, both)


def test_f1_is_the_harmonic_mean_and_refuses_impossible_counts() -> None:
    assert pairwise_f1(6, 8, 12) == pytest.approx(2 / (8 / 6 + 12 / 6))
    assert pairwise_f1(0, 0, 0) is None
    with pytest.raises(ValueError, match="7 pairs in both"):
        pairwise_f1(7, 6, 9)
