"""Contract of detectors that read a second entity kind to locate a fault."""

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


def typical_values(detector, length=LENGTH, count=3):
    keys = detector.beside[1]
    return np.random.default_rng(3).poisson(30.0, (count, length, len(keys))).astype(float)


def parts_below_entity(detector):
    """A topology with all parts below the first entity."""
    whole = refs(detector, "abc")[0]
    return Topology.build([(part, whole) for part in parts(detector.beside[0])])


def run_cycles(detector, values, others, topology, state=None):
    """Runs both steps cycle by cycle, as the engine does. Returns the state and the verdicts of each cycle."""
    state, history = state or detector.initial(), []
    entities = refs(detector, "abc")[: values.shape[0]]
    for length in range(1, values.shape[1] + 1):
        part = window(detector, entities, values[:, :length])
        now = datetime.fromtimestamp(part.times[-1], tz=UTC)
        state, verdicts = detector.detect(state, part, topology, now)
        before = spelled(state)
        second_window = beside(detector, others[:, : min(length, others.shape[1])])
        after, placed = detector.placed(state, verdicts, part, second_window, topology, now)
        assert spelled(state) == before, "the detector must not change its input state"
        assert after.version == detector.state_version
        assert after.entities == entities
        fingerprints = [verdict.fingerprint for verdict in placed if isinstance(verdict, Finding)]
        assert len(fingerprints) == len(set(fingerprints))
        assert all(isinstance(verdict, Finding | NoVerdict) and verdict.detector == detector.name for verdict in placed)
        assert all(0.0 <= verdict.score <= 1.0 for verdict in placed if isinstance(verdict, Finding))
        entities_of_findings = {verdict.entity for verdict in placed if isinstance(verdict, Finding)}
        assert entities_of_findings >= {verdict.entity for verdict in verdicts if isinstance(verdict, Finding)}, (
            "no finding is lost"
        )
        state = after
        history.append((verdicts, placed))
    return state, history


def test_a_localizing_detector_exists():
    assert LOCALIZING


def test_it_declares_its_second_kind_and_keys(detector):
    kind, keys = detector.beside
    assert isinstance(kind, EntityKind)
    assert keys
    assert kind is not detector.kind


def test_plausible_values_raise_no_error(detector):
    state, history = run_cycles(
        detector, likely(detector, 3, LENGTH), typical_values(detector), parts_below_entity(detector)
    )
    assert any(isinstance(verdict, Finding) for verdicts, _ in history for verdict in verdicts), (
        "precondition: the values cause findings"
    )
    assert detector.wants_beside(state, history[-1][0])


@pytest.mark.parametrize("empty", ["no entities", "no columns", "nothing known", "half"])
def test_findings_stay_without_values_of_the_second_kind(detector, empty):
    others = {
        "no entities": typical_values(detector, count=3)[:0],
        "no columns": typical_values(detector)[:, :0],
        "nothing known": np.full_like(typical_values(detector), np.nan),
        "half": np.where(np.random.default_rng(1).random((3, LENGTH, 1)) < 0.5, np.nan, typical_values(detector)),
    }[empty]
    values = likely(detector, 3, LENGTH)
    values[1, ::3] = np.nan
    for topology in (parts_below_entity(detector), Topology()):
        run_cycles(detector, values, others, topology)


def test_no_entities_give_no_verdicts(detector):
    part = window(detector, (), np.zeros((0, 5, len(detector.keys))))
    now = datetime.fromtimestamp(part.times[-1], tz=UTC)
    second_window = beside(detector, typical_values(detector, 5))
    state, verdicts = detector.placed(detector.initial(), (), part, second_window, Topology(), now)
    assert (state.entities, verdicts) == ((), ())


def test_a_damaged_state_is_dropped_without_an_error(detector):
    values, topology = likely(detector, 3, 12), parts_below_entity(detector)
    state, _ = run_cycles(detector, values, typical_values(detector, 12), topology)
    cut = {name: array[:1] for name, array in state.arrays.items()}
    for arrays in (cut, {}, *({**state.arrays, name: array[:1]} for name, array in state.arrays.items())):
        damaged = DetectorState(state.version, state.entities, arrays)
        detector.wants_beside(damaged, ())
        run_cycles(detector, values, typical_values(detector, 12), topology, damaged)


def test_a_topology_with_cycles_and_missing_links_raises_no_error(detector):
    entities = refs(detector, "abcd")
    known = rings(detector, entities)
    members = parts(detector.beside[0])
    cycle = [*entities, *members]
    edges = [(cycle[index - 1], cycle[index]) for index in range(len(cycle))]
    for topology in (known, Topology.build([*edges, *((later, earlier) for earlier, later in edges)], cycle)):
        run_cycles(detector, likely(detector, 3, LENGTH), typical_values(detector), topology)


def test_the_same_input_gives_the_same_output(detector):
    verdict, other = (
        run_cycles(detector, likely(detector, 3, LENGTH), typical_values(detector), parts_below_entity(detector))
        for _ in range(2)
    )
    assert verdict[1] == other[1]
    assert spelled(verdict[0]) == spelled(other[0])
