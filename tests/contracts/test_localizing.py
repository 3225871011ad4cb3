"""What every detector owes its caller that looks at a second kind of entity, to say where something is."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_detectors import FACTORIES, START, STEP, likely, refs, rings, spelled, window  # type: ignore[import-not-found]

from outrider.model import CellStatus, DetectorState, EntityKind, EntityRef, Finding, NoVerdict, Window
from outrider.ports import LocalizingDetector
from outrider.topology import Topology

LENGTH = 40
LOCALIZING = [name for name, make in FACTORIES.items() if isinstance(make(), LocalizingDetector)]


@pytest.fixture(params=LOCALIZING)
def detector(request):
    return FACTORIES[request.param]()


def parts(kind, count=3):
    return tuple(EntityRef("lab", kind, "default", f"part-{number}") for number in range(count))


def beside(detector, values, entities=None):
    """A window of the second kind; ``values`` is (entities, times, keys), NaN an absent cell."""
    kind, keys = detector.beside
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    times = START + STEP.total_seconds() * np.arange(values.shape[1])
    return Window(
        kind, parts(kind, values.shape[0]) if entities is None else entities, times, keys, values, status, STEP
    )


def usual(detector, length=LENGTH, count=3):
    keys = detector.beside[1]
    return np.random.default_rng(3).poisson(30.0, (count, length, len(keys))).astype(float)


def joined(detector):
    """The parts rest below the first entity."""
    whole = refs(detector, "abc")[0]
    return Topology.build([(part, whole) for part in parts(detector.beside[0])])


def lived(detector, values, others, topology, state=None):
    """Cycle by cycle through both halves, as the engine does; the verdicts of each cycle."""
    state, said = state or detector.initial(), []
    entities = refs(detector, "abc")[: values.shape[0]]
    for length in range(1, values.shape[1] + 1):
        part = window(detector, entities, values[:, :length])
        now = datetime.fromtimestamp(part.times[-1], tz=UTC)
        state, verdicts = detector.detect(state, part, topology, now)
        before = spelled(state)
        there = beside(detector, others[:, : min(length, others.shape[1])])
        after, placed = detector.placed(state, verdicts, part, there, topology, now)
        assert spelled(state) == before, "the state handed in is not the detector's to change"
        assert after.version == detector.state_version
        assert after.entities == entities
        prints = [one.fingerprint for one in placed if isinstance(one, Finding)]
        assert len(prints) == len(set(prints))
        assert all(isinstance(one, Finding | NoVerdict) and one.detector == detector.name for one in placed)
        assert all(0.0 <= one.score <= 1.0 for one in placed if isinstance(one, Finding))
        about = {one.entity for one in placed if isinstance(one, Finding)}
        assert about >= {one.entity for one in verdicts if isinstance(one, Finding)}, "nothing that was found is lost"
        state = after
        said.append((verdicts, placed))
    return state, said


def test_there_is_such_a_detector():
    assert LOCALIZING


def test_it_declares_what_it_wants_beside(detector):
    kind, keys = detector.beside
    assert isinstance(kind, EntityKind)
    assert keys
    assert kind is not detector.kind


def test_plausible_values_raise_no_error(detector):
    state, said = lived(detector, likely(detector, 3, LENGTH), usual(detector), joined(detector))
    assert any(isinstance(one, Finding) for verdicts, _ in said for one in verdicts), "else nothing was shown"
    assert detector.wants_beside(state, said[-1][0])


@pytest.mark.parametrize("empty", ["no entities", "no columns", "nothing known", "half"])
def test_without_values_beside_it_what_was_found_stands(detector, empty):
    others = {
        "no entities": usual(detector, count=3)[:0],
        "no columns": usual(detector)[:, :0],
        "nothing known": np.full_like(usual(detector), np.nan),
        "half": np.where(np.random.default_rng(1).random((3, LENGTH, 1)) < 0.5, np.nan, usual(detector)),
    }[empty]
    values = likely(detector, 3, LENGTH)
    values[1, ::3] = np.nan
    for topology in (joined(detector), Topology()):
        lived(detector, values, others, topology)


def test_no_entities_of_its_own(detector):
    part = window(detector, (), np.zeros((0, 5, len(detector.keys))))
    now = datetime.fromtimestamp(part.times[-1], tz=UTC)
    there = beside(detector, usual(detector, 5))
    state, verdicts = detector.placed(detector.initial(), (), part, there, Topology(), now)
    assert (state.entities, verdicts) == ((), ())


def test_a_damaged_state_costs_memory_of_the_past_and_nothing_more(detector):
    values, topology = likely(detector, 3, 12), joined(detector)
    state, _ = lived(detector, values, usual(detector, 12), topology)
    cut = {name: array[:1] for name, array in state.arrays.items()}
    for arrays in (cut, {}, *({**state.arrays, name: array[:1]} for name, array in state.arrays.items())):
        damaged = DetectorState(state.version, state.entities, arrays)
        detector.wants_beside(damaged, ())
        lived(detector, values, usual(detector, 12), topology, damaged)


def test_a_topology_with_cycles_and_missing_links_breaks_nothing(detector):
    entities = refs(detector, "abcd")
    known = rings(detector, entities)
    members = parts(detector.beside[0])
    cycle = [*entities, *members]
    edges = [(cycle[place - 1], cycle[place]) for place in range(len(cycle))]
    for topology in (known, Topology.build([*edges, *((later, earlier) for earlier, later in edges)], cycle)):
        lived(detector, likely(detector, 3, LENGTH), usual(detector), topology)


def test_the_same_input_gives_the_same_output(detector):
    one, other = (lived(detector, likely(detector, 3, LENGTH), usual(detector), joined(detector)) for _ in range(2))
    assert one[1] == other[1]
    assert spelled(one[0]) == spelled(other[0])
