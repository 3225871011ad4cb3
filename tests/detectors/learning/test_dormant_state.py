"""Learned state of entities that left, and its use when they return."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from detectors.anomaly.drift import BLOCK_BEATS
from detectors.learning import dormant_state
from detectors.learning.dormant_state import KEPT, DormantState
from detectors.registry import DETECTORS
from outrider.model import DetectorState, EntityKind, EntityRef

STEP = timedelta(seconds=15)
START = 1_800_000_000.0
NAME = "seasonal-node"


def nodes(*names):
    return tuple(EntityRef("lab", EntityKind.NODE, None, name) for name in names)


def remembering(name, entities, at=START):
    """A state in which every array holds the row number of its entity."""
    detector = DETECTORS[name]()
    arrays = {}
    for key, fresh in detector.of_entities(len(entities)).items():
        rows = np.arange(1, len(entities) + 1).reshape(-1, *[1] * (fresh.ndim - 1))
        arrays[key] = np.broadcast_to(rows, fresh.shape).astype(fresh.dtype)
    rest = {key: one for key, one in detector.initial().arrays.items() if key not in arrays}
    rest["last"] = np.array([at])
    return detector, DetectorState(detector.state_version, entities, {**rest, **arrays})


def after(state, entities):
    """The state of a detector after its window."""
    rows = [state.entities.index(one) for one in entities]
    count = len(state.entities)
    names = DETECTORS[NAME]().of_entities(0)
    arrays = {key: one[rows] if key in names and len(one) == count else one for key, one in state.arrays.items()}
    return DetectorState(state.version, entities, arrays)


def test_nothing_is_copied_if_no_entity_left():
    detector, state = remembering(NAME, nodes("a", "b"))
    held = DormantState(detector, STEP)
    for entities in (nodes("a", "b"), nodes("a", "b", "c")):
        assert held.swap(state, entities, START) is state
    assert held.entities == ()
    assert held.stored(state.version) is None


def test_a_silent_class_keeps_its_state():
    detector, state = remembering(NAME, nodes("a", "b"))
    held = DormantState(detector, STEP)
    held.swap(state, nodes("a", "b"), START)
    state = held.swap(state, (), START + 15.0)
    assert state.entities == ()
    assert all(len(state.arrays[name]) == 0 for name in detector.of_entities(0))
    assert held.swap(state, (), START + 30.0) is state
    assert held.entities == nodes("a", "b")
    back = held.swap(state, nodes("b", "a"), START + 1215.0)
    assert back.entities == nodes("a", "b")
    assert back.arrays["updates"][:, 0].tolist() == [1, 2]
    np.testing.assert_allclose(back.arrays["offset"][1], 2.0 * np.exp(-1200.0 / 7200.0))


def test_a_returning_entity_gets_its_baseline_and_no_ongoing_finding():
    detector, state = remembering(NAME, nodes("a", "b", "c"))
    held = DormantState(detector, STEP)
    state = after(held.swap(state, nodes("a", "c"), START), nodes("a", "c"))
    assert held.entities == nodes("b")
    back = held.swap(state, nodes("b", "c", "a"), START + 1200.0)
    assert back.entities == nodes("a", "c", "b")
    assert held.entities == ()
    assert back.arrays["updates"][:, 0].tolist() == [1, 3, 2]
    assert (back.arrays["slot_seconds"][2] == 2).all()
    assert np.isnan(back.arrays["since"][2]).all()
    assert (back.arrays["hits"][2] == 0).all()
    assert (back.arrays["week_knot"][2] == -1).all()
    np.testing.assert_allclose(back.arrays["offset"][2], 2.0 * np.exp(-1200.0 / 7200.0))


def test_an_old_level_is_used_only_with_a_full_daily_profile():
    detector, state = remembering(NAME, nodes("a", "b", "c"))
    state.arrays["slot_seconds"][1] = 1e6
    held = DormantState(detector, STEP)
    state = after(held.swap(state, nodes("a"), START), nodes("a"))
    back = held.swap(state, nodes("a", "b", "c"), START + 6 * 3600.0)
    assert back.arrays["updates"][:, 0].tolist() == [1, 2, 0]
    assert (back.arrays["slot_level"][2] == 3).all()


def test_it_is_bounded_in_time_and_in_number(monkeypatch):
    monkeypatch.setattr(dormant_state, "MOST", 3)
    detector, state = remembering(NAME, nodes("a", "b", "c", "d", "e", "f"))
    held = DormantState(detector, STEP)
    held.swap(state, nodes("f"), START)
    assert held.entities == nodes("c", "d", "e")
    _, other = remembering(NAME, nodes("x", "f"))
    held.swap(other, nodes("f"), START + 10.0)
    assert held.entities == nodes("d", "e", "x")
    cycles = KEPT // STEP
    for cycle in range(1, cycles + 2):
        held.swap(other, nodes("x", "f"), START)
        assert held.stored(1).entities == (nodes("d", "e", "x") if cycle < cycles else nodes("x")[: cycles + 1 - cycle])


def test_a_rejected_window_stores_no_entity_twice():
    """The detector keeps its state unchanged, so entities that left are still in it."""
    detector, state = remembering(NAME, nodes("a", "b"))
    held = DormantState(detector, STEP)
    for second in (0.0, 15.0):
        assert held.swap(state, nodes("a"), START + second).entities == nodes("a", "b")
        assert held.entities == nodes("b")
    assert held.swap(state, nodes("b", "a", "c"), START + 30.0).entities == nodes("a", "b")


@pytest.mark.parametrize("wrong", [1e8, -1e8])
def test_a_wrong_clock_for_one_cycle_does_not_change_dormant_state(wrong):
    detector, state = remembering(NAME, nodes("a", "b", "c"))
    held = DormantState(detector, STEP)
    state = after(held.swap(state, nodes("a", "c"), START), nodes("a", "c"))
    state = after(held.swap(state, nodes("a"), START + wrong), nodes("a"))
    assert held.stored(1).entities == nodes("b", "c")
    back = held.swap(state, nodes("a", "b", "c"), START + 30.0)
    assert np.isfinite(back.arrays["offset"]).all()
    assert back.arrays["updates"][:, 0].tolist() == [1, 2, 3 if wrong > 0 else 0]


def test_the_state_of_an_absent_gpu_does_not_age():
    cards = tuple(EntityRef("lab", EntityKind.GPU, None, name) for name in "ab")
    detector, state = remembering("power-draw", cards)
    seen = [name for name in state.arrays if name.startswith("seen_")]
    assert seen
    state.arrays.update({name: np.full(2, START - 60.0) for name in seen})
    held, hours = DormantState(detector, STEP), 30 * 3600.0
    held.swap(state, cards[:1], START)
    kept = {name: one[:1] if name in detector.of_entities(0) else one for name, one in state.arrays.items()}
    later = DetectorState(state.version, cards[:1], {**kept, "last": np.array([START + hours])})
    back = held.swap(later, cards, START + hours)
    assert {back.arrays[name][1] for name in seen} == {START + hours - 60.0}


def test_a_restart_keeps_dormant_state_and_drops_incompatible_state():
    detector, state = remembering(NAME, nodes("a", "b"))
    held = DormantState(detector, STEP)
    state = after(held.swap(state, nodes("a"), START), nodes("a"))
    stored = held.stored(detector.state_version)

    def restored(one, step=STEP):
        other = DormantState(detector, step)
        other.restore(one)
        return other

    back = restored(stored).swap(state, nodes("a", "b"), START + 60.0)
    assert back.arrays["updates"][:, 0].tolist() == [1, 2]
    assert restored(stored, 2 * STEP).entities == ()
    for name in ("left_at", "left_clock", "away_cycles"):
        cut = DetectorState(stored.version, stored.entities, {**stored.arrays, name: np.zeros(5)})
        assert restored(cut).entities == ()
    less = DetectorState(stored.version, stored.entities, {**stored.arrays, "level": np.zeros((1, 99))})
    back = restored(less).swap(state, nodes("a", "b"), START + 60.0)
    assert (back.arrays["level"][1] == 0.0).all()
    empty = restored(None)
    empty.restore(None, stored=True)
    assert empty.stored(1).entities == (), "the one that lies in the store must be replaced"


@pytest.mark.parametrize("missed", [0, 3, 10_000])
def test_rings_advance_by_the_missed_beats(missed):
    entities = nodes("a", "b")
    detector, state = remembering("drift-node", entities)
    points, blocks = state.arrays["points"].shape[2], state.arrays["blocks"].shape[2]
    state.arrays["points"] = np.broadcast_to(np.arange(points, dtype=np.float32), state.arrays["points"].shape).copy()
    state.arrays["beat"] = np.array([BLOCK_BEATS - 1.0])
    held = DormantState(detector, STEP)
    held.swap(state, nodes("a"), START)
    later = DetectorState(state.version, nodes("a"), {**state.arrays, "beat": np.array([BLOCK_BEATS - 1.0 + missed])})
    for name in detector.of_entities(0):
        later.arrays[name] = state.arrays[name][:1]
    back = held.swap(later, entities, START + 60.0)
    ring = back.arrays["points"][1, 0]
    assert np.isnan(ring).sum() == min(missed, points)
    assert ring[~np.isnan(ring)].tolist() == list(range(points))[missed:]
    assert np.isnan(back.arrays["blocks"][1, 0]).sum() == min(missed // BLOCK_BEATS, blocks)
