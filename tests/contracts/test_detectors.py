"""Contract of every registered detector."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from detectors.anomaly.drift import DriftDetector
from detectors.base.protocols import LearningDetector, ResumableDetector
from detectors.learning.conditional_detector import ConditionalDetector
from detectors.learning.learning_detector import StatisticalDetector
from detectors.learning.slow_signal_detector import SlowSignalDetector
from detectors.load.ingress_state import IngressDetector
from detectors.registry import ABSOLUTE, DETECTORS, LEARNT_BYTES, STATE_BYTES, SYMPTOMS
from detectors.rules.burn_rate import compile_slos
from detectors.rules.threshold import compile_rules
from outrider.model import (
    SUM_BUCKET,
    CellStatus,
    DetectorState,
    EntityKind,
    EntityRef,
    Finding,
    NoVerdict,
    NoVerdictReason,
    SampleBatch,
    SignalKey,
    SignalKind,
    Window,
)
from outrider.ports import Collected
from outrider.topology import Topology
from outrider.vocabulary import catalog
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import Rule
from outrider.vocabulary.slo import Slo
from service.engine.detector_memory import Detection
from store.memory.state import MemoryStateStore

ROOT = Path(__file__).parents[2]
STEP = timedelta(seconds=15)
START = 1_800_000_000.0
RULE = Rule(
    name="contract",
    kind=EntityKind.REPLICA,
    expr='quantile(0.9, engine_ttft_seconds, "5m") > 2 and mean(engine_requests_waiting, "2m") > 3',
)
SLO = Slo("contract", 0.99, bad=(SignalKey("svc_failed_total"),), total=(SignalKey("svc_requests_total"),))
FACTORIES = {
    **DETECTORS,
    "rule:contract": lambda: compile_rules([RULE])[0],
    "slo:contract": lambda: compile_slos([SLO])[0],
}


@pytest.fixture(params=FACTORIES)
def detector(request):
    return FACTORIES[request.param]()


def refs(detector, names):
    namespace = "targets" if detector.kind is EntityKind.WORKLOAD else "default"
    return tuple(EntityRef("lab", detector.kind, namespace, name) for name in names)


def window(detector, entities, values, *, start=START, status=None, times=None, step=STEP):
    """``values`` has shape (entities, times, keys); NaN is an absent cell."""
    values = np.asarray(values, dtype=np.float64)
    if status is None:
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    times = start + step.total_seconds() * np.arange(values.shape[1]) if times is None else times
    return Window(detector.kind, entities, times, detector.keys, values, status, step)


def likely(detector, entities, length, seed=0):
    """Plausible values for each kind of signal."""
    rng = np.random.default_rng(seed)
    columns = []
    for key in detector.keys:
        kind = catalog.signal(key.name).kind
        shape = (entities, length)
        if kind is SignalKind.STATE:
            columns.append(rng.integers(0, 2, shape).astype(float))
        elif kind is SignalKind.GAUGE:
            columns.append(rng.random(shape))
        else:
            columns.append(rng.poisson(3.0, shape).astype(float))
    return np.stack(columns, axis=2)


def detect(detector, state, part, topology=None, now=None):
    now = now or datetime.fromtimestamp(part.times[-1] if part.times.size else START, tz=UTC)
    state, verdicts = detector.detect(state, part, topology or Topology.build(()), now)
    assert isinstance(state, DetectorState)
    assert state.version == detector.state_version
    for verdict in verdicts:
        assert isinstance(verdict, Finding | NoVerdict)
        assert verdict.detector in (detector.name, *SYMPTOMS.get(detector.name, ()))
        if isinstance(verdict, Finding):
            assert 0.0 <= verdict.score <= 1.0
            assert verdict.evidence
            assert verdict.window.start <= verdict.window.end
            assert verdict.fault is None or verdict.fault in faults()
            assert all(item.observed is None or np.isfinite(item.observed) for item in verdict.evidence)
    prints = [verdict.fingerprint for verdict in verdicts if isinstance(verdict, Finding)]
    assert len(prints) == len(set(prints)), "one fingerprint, one finding"
    return state, verdicts


def run(detector, values, entities, state=None, first=1, start=START):
    state = state or detector.initial()
    verdicts = ()
    for length in range(first, values.shape[1] + 1):
        state, verdicts = detect(detector, state, window(detector, entities, values[:, :length], start=start))
    return state, verdicts


def spelled(state):
    return {name: array.tobytes() for name, array in state.arrays.items()}


def test_it_declares_itself(detector):
    assert detector.name
    assert detector.keys
    assert detector.window > timedelta(0)
    assert all(key.name in catalog.signals() for key in detector.keys)
    assert detector.initial().version == detector.state_version


def test_an_empty_window_has_no_values(detector):
    _, verdicts = detect(detector, detector.initial(), window(detector, (), np.zeros((0, 0, len(detector.keys)))))
    assert not [item for item in verdicts if isinstance(item, Finding)]


def test_no_entities_give_no_verdicts(detector):
    _, verdicts = detect(detector, detector.initial(), window(detector, (), np.zeros((0, 5, len(detector.keys)))))
    assert not [item for item in verdicts if isinstance(item, Finding)]


def test_one_sample_is_not_an_anomaly(detector):
    entities = refs(detector, "abc")
    _, verdicts = detect(detector, detector.initial(), window(detector, entities, likely(detector, 3, 1)))
    assert not [item for item in verdicts if isinstance(item, Finding) and item.severity.rank == 0]


def test_only_gaps_give_no_findings(detector):
    entities = refs(detector, "abc")
    _, verdicts = run(detector, np.full((3, 20, len(detector.keys)), np.nan), entities)
    assert not [item for item in verdicts if isinstance(item, Finding)]
    silent = [item for item in verdicts if isinstance(item, NoVerdict)]
    assert silent, "missing values give a no-verdict"
    assert {item.entity for item in silent} >= set(entities) or None in {item.entity for item in silent}


def test_constant_values_raise_no_error(detector):
    for constant in (0.0, 1.0, 1e12, -1.0):
        run(detector, np.full((3, 20, len(detector.keys)), constant), refs(detector, "abc"))


def test_data_gaps_and_unusual_statuses_raise_no_error(detector):
    rng = np.random.default_rng(1)
    values = likely(detector, 6, 40, seed=1)
    status = rng.integers(0, 7, values.shape).astype(np.uint8)
    values[status >= CellStatus.ABSENT] = np.nan
    values[rng.random(values.shape) < 0.05] = np.inf
    entities = refs(detector, "abcdef")
    state = detector.initial()
    with np.errstate(all="ignore"):
        for length in range(1, 41):
            part = window(detector, entities, values[:, :length], status=status[:, :length])
            state, _ = detector.detect(state, part, Topology.build(()), datetime.fromtimestamp(part.times[-1], tz=UTC))


def test_infinite_values_are_ignored(detector):
    """Through the engine. Warnings are errors: infinity must not reach arithmetic."""
    entities = refs(detector, "abc")

    def run_through_engine(values):
        detection = Detection([detector], STEP)
        findings = []
        for column in range(values.shape[1]):
            at = datetime.fromtimestamp(START, tz=UTC) + column * STEP
            status = np.full(values[:, column].shape, CellStatus.PRESENT, np.uint8)
            batch = SampleBatch("t", at, detector.kind, detector.keys, entities, values[:, column], status)
            findings += detection.run(at, Collected((batch,)), Topology.build(())).findings
        return findings

    for endless in (np.inf, -np.inf):
        assert run_through_engine(np.full((3, 20, len(detector.keys)), endless)) == []
    values = likely(detector, 3, 30, seed=11)
    values[np.random.default_rng(2).random(values.shape) < 0.2] = np.inf
    run_through_engine(values)


def test_a_clock_that_steps_back_is_reported_and_keeps_the_state(detector):
    entities = refs(detector, "abc")
    values = likely(detector, 3, 10)
    state, _ = run(detector, values, entities)
    part = window(detector, entities, values)
    before = datetime.fromtimestamp(part.times[-1] - 3600, tz=UTC)
    after, verdicts = detect(detector, state, part, now=before)
    assert [item.reason for item in verdicts if isinstance(item, NoVerdict)] == [NoVerdictReason.CLOCK_STEP]
    assert spelled(after) == spelled(state)
    back = part.times.copy()
    back[5:] -= 3600
    _, verdicts = detect(detector, state, window(detector, entities, values, times=back))
    assert [item.reason for item in verdicts if isinstance(item, NoVerdict)] == [NoVerdictReason.CLOCK_STEP]


def test_entities_come_and_go(detector):
    values = likely(detector, 4, 12)
    state, _ = run(detector, values[:2], refs(detector, "ab"))
    state, _ = run(detector, values[[3, 1, 0]], refs(detector, "dba"), state, start=START + 200)
    assert set(state.entities) in (set(refs(detector, "abd")), set()), "or the detector has no state"
    state, verdicts = run(detector, values[1:2], refs(detector, "b"), state, start=START + 400)
    named = {verdict.entity for verdict in verdicts if verdict.entity and verdict.entity.kind is detector.kind}
    assert named <= set(refs(detector, "b")), "no verdict on entities that left"
    run(detector, values[:0], (), state, start=START + 600)


MEASURES = ("updates", "sum_n", "points")  # counts of learned values of an entity; the first that a detector has


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("stay", [3, 0])
def test_an_entity_returns_after_a_gap_longer_than_the_window(detector, stay, restarts):
    """Through the engine: the window drops the entity, and its learned state is kept for its return."""
    step = timedelta(minutes=1)
    silent = 2 * (int(detector.window / step) + 2) + 1
    entities, store = refs(detector, "abcd"), MemoryStateStore()
    values = 3.0 + 0.1 * likely(detector, 4, 40 + silent + 3, seed=13)  # no jump resembles another process
    if isinstance(detector, IngressDetector):  # it learns only healthy services
        values[:, :, [one.name in ("svc_failed_total", "svc_queue_requests") for one in detector.keys]] = 0.0
    detection, known = Detection([detector], step), {}
    for column in range(values.shape[1]):
        at = datetime.fromtimestamp(START, tz=UTC) + column * step
        there = stay if 40 <= column < 40 + silent else 4
        if restarts and column == 40 + silent - 2:
            detection.checkpoint(store, at)
            detection = Detection([detector], step)
            detection.restore(store)
        status = np.full((there, len(detector.keys)), CellStatus.PRESENT, np.uint8)
        batch = SampleBatch("t", at, detector.kind, detector.keys, entities[:there], values[:there, column], status)
        result = detection.run(at, Collected((batch,) if there else ()), Topology.build(()))
        state = detection.memory.states[detector.name]
        known[column] = measured(detector, state, entities[3])
        if column == 40 + silent - 1:
            assert entities[3] not in {one.entity for one in result.alertable}, "no verdict on an absent entity"
            assert entities[3] not in detection.window(detector.kind, detector.keys, detector.window).entities
    learns = isinstance(detector, (LearningDetector, IngressDetector))
    assert learns == isinstance(detector, ResumableDetector)
    if learns:
        assert known[39] > 0, "precondition: there are findings"
        assert known[40 + silent] >= 0.9 * known[39]
        assert all(len(one) == 4 for name, one in state.arrays.items() if name in detector.of_entities(0))


def test_values_may_come_later_than_the_first_cycle_of_a_process(detector):
    """A checkpoint survives cycles without values: the first scrape may fail."""
    step, store = timedelta(minutes=1), MemoryStateStore()
    entities, values = refs(detector, "ab"), 3.0 + 0.1 * likely(detector, 2, 43, seed=13)
    status = np.full((2, len(detector.keys)), CellStatus.PRESENT, np.uint8)
    detection, held = Detection([detector], step), []
    for column in range(values.shape[1]):
        at = datetime.fromtimestamp(START, tz=UTC) + column * step
        if column == 40:
            detection.checkpoint(store, at)
            detection = Detection([detector], step)
            detection.restore(store)
        batch = SampleBatch("t", at, detector.kind, detector.keys, entities, values[:, column], status)
        detection.run(at, Collected(() if 40 <= column < 42 else (batch,)), Topology.build(()))
        held.append(measured(detector, detection.memory.states[detector.name], entities[1]))
    assert held[42] >= 0.99 * held[39]


def test_arrays_of_absent_entities_are_part_of_the_state(detector):
    if isinstance(detector, ResumableDetector):
        named = (*getattr(detector, "passing", ()), *getattr(detector, "odd", ()))
        assert set(named) <= set(detector.of_entities(0))


def measured(detector, state, entity):
    """Number of learned values of an entity in a state."""
    name = next((name for name in MEASURES if name in state.arrays), None)
    if name is None or entity not in state.entities:
        return 0.0
    mine = state.arrays[name][state.entities.index(entity)]
    return float(np.isfinite(mine).sum() if name == "points" else mine.sum())


def test_order_of_entities_does_not_matter(detector):
    values = likely(detector, 4, 12, seed=3)
    _, straight = run(detector, values, refs(detector, "abcd"))
    _, turned = run(detector, values[::-1], refs(detector, "dcba"))
    key = str
    assert sorted(straight, key=key) == sorted(turned, key=key)


def test_a_restored_state_gives_the_same_verdicts(detector):
    values = likely(detector, 5, 30, seed=5)
    entities = refs(detector, "abcde")
    state, _ = run(detector, values[:, :20], entities)
    restored = DetectorState(
        state.version, state.entities, {name: array.copy() for name, array in state.arrays.items()}
    )
    one = run(detector, values, entities, state, first=21)
    other = run(detector, values, entities, restored, first=21)
    assert one[1] == other[1]
    assert spelled(one[0]) == spelled(other[0])


def test_the_same_input_gives_the_same_output_and_is_not_changed(detector):
    values = likely(detector, 5, 20, seed=7)
    entities = refs(detector, "abcde")
    state, _ = run(detector, values[:, :15], entities)
    kept = spelled(state)
    part = window(detector, entities, values)
    one = detect(detector, state, part)
    other = detect(detector, state, part)
    assert one[1] == other[1]
    assert spelled(one[0]) == spelled(other[0])
    assert spelled(state) == kept, "the detector must not change its input state"


def test_memory_is_bounded_by_the_entities(detector):
    values = likely(detector, 2, 6)
    state = detector.initial()
    sizes = []
    for number in range(30):
        entities = refs(detector, [f"{number}-a", f"{number}-b"])
        state, _ = run(detector, values, entities, state, start=START + 3600 * number)
        sizes.append(sum(array.nbytes for array in state.arrays.values()))
    assert sizes[-1] <= max(sizes[:5]), "state of entities that left is dropped"


def test_a_damaged_state_is_dropped_without_an_error(detector):
    values = likely(detector, 3, 6)
    entities = refs(detector, "abc")
    state, _ = run(detector, values, entities)
    cut = DetectorState(state.version, state.entities, {name: array[:1] for name, array in state.arrays.items()})
    run(detector, values, entities, cut)
    run(detector, values, entities, DetectorState(state.version, state.entities, {}))


@pytest.mark.parametrize("name", [name for name, make in FACTORIES.items() if isinstance(make(), LearningDetector)])
def test_learning_detectors_find_nothing_without_history(name):
    detector = FACTORIES[name]()
    values = likely(detector, 4, 20, seed=2)
    values[1, 5:] *= 50.0
    state, verdicts = run(detector, values, refs(detector, "abcd"))
    assert [item.reason for item in verdicts] == [NoVerdictReason.WARMING_UP]
    assert detector.learnt(state) == 20 * STEP


def test_one_entity_alone_is_judged_as_itself(detector):
    _, verdicts = run(detector, likely(detector, 1, 30, seed=4), refs(detector, "a"))
    about = {one.entity for one in verdicts if one.entity and one.entity.kind is detector.kind}
    assert about <= set(refs(detector, "a")) or detector.kind in (EntityKind.WORKLOAD, EntityKind.NODE)


def test_ten_thousand_entities_cost_no_more_memory_each_than_stated(detector):
    """Half of them are never seen."""
    count = 10_000
    entities = refs(detector, [f"e{number}" for number in range(count)])
    values = likely(detector, count, 3, seed=6)
    values[::2] = np.nan
    state, verdicts = run(detector, values, entities, first=2)
    size = sum(array.nbytes for array in state.arrays.values())
    learns = isinstance(detector, LearningDetector) or detector.name.startswith("slo:")
    assert size <= count * (LEARNT_BYTES if learns else STATE_BYTES)
    known = set(entities)
    assert all(one.entity in known for one in verdicts if one.entity and one.entity.kind is detector.kind)


def rings(detector, entities):
    """A topology in which all entities form a ring, with unknown components."""
    kinds = (EntityKind.NODE, EntityKind.SWITCH, EntityKind.GPU, EntityKind.POD, EntityKind.REPLICA, EntityKind.SERVICE)
    others = [EntityRef("lab", kind, "default", f"r-{kind.value}") for kind in kinds]
    ring = [*entities, *others]
    edges = [(ring[place - 1], ring[place]) for place in range(len(ring))]
    edges += [(other, entity) for other in others for entity in entities]
    labels = {entities[0]: {"stands_for": "no/key", "node": "", "replaces": "nobody"}}
    return Topology.build([*edges, *((later, earlier) for earlier, later in edges)], ring, labels)


def test_a_topology_with_cycles_and_missing_links_raises_no_error(detector):
    entities = refs(detector, "abcd")
    half = Topology.build([(entities[0], EntityRef("lab", EntityKind.NODE, None, "n0"))], entities[:2])
    values = likely(detector, 4, 30, seed=8)
    for topology in (rings(detector, entities), half, Topology()):
        state = detector.initial()
        for length in (1, 10, 20, 30):
            state, _ = detect(detector, state, window(detector, entities, values[:, :length]), topology)


LEARNING = [name for name, make in FACTORIES.items() if isinstance(make(), StatisticalDetector)]
PAST, PAST_STEP, WELL_ABOVE = (
    timedelta(days=4),
    timedelta(minutes=10),
    2.0**40,
)  # of the least scale that a signal has in its unit


def past_and_present(detector, scale=1.0):
    """Days with a daily profile to learn, then readings in which one entity deviates, scaled to another unit."""
    entities = refs(detector, "abcdef")
    rng = np.random.default_rng(12)
    creeps = isinstance(detector, DriftDetector)
    step = timedelta(seconds=detector.beat_seconds) if creeps else STEP
    past_step = getattr(detector, "warm_step", PAST_STEP)
    counts = np.array([one.bucket not in (None, SUM_BUCKET) for one in detector.keys])  # they have no unit
    scales = np.where(counts, 1.0, scale)
    watched = getattr(detector, "watched", detector.signals)  # the load signal is unchanged
    moved = ~counts & np.array([one.name in watched for one in detector.keys])

    counters = np.array([catalog.signal(one.name).kind is SignalKind.DELTA for one in detector.keys])

    def usual(times, each):
        wave = 1.0 + 0.3 * np.sin(2 * np.pi * times / 86400.0)
        noise = rng.normal(1.0, 0.03, (6, times.size, len(detector.keys)))
        level = WELL_ABOVE * np.where(counters, each.total_seconds(), 1.0)
        return np.where(counts, 10.0, level * wave[None, :, None] * noise)

    times = START - past_step.total_seconds() * np.arange(PAST // past_step, 0, -1)
    state = detector.warm(
        detector.initial(), window(detector, entities, scales * usual(times, past_step), times=times, step=past_step)
    )
    live = usual(START + step.total_seconds() * np.arange(150), step)
    if creeps:
        bad = np.array([-1.0 if catalog.signal(one.name).good == "higher" else 1.0 for one in detector.keys])
        live[2, 80:] *= np.exp(0.02 * np.arange(70)[:, None] * bad * moved)
    else:
        live[2, 80:] *= np.where(moved, np.where(np.arange(moved.size) % 2, 3.0, 0.2), 1.0)
    return findings_of(detector, entities, scales * live, state, step, 42)


def findings_of(detector, entities, live, state, step, wide):
    """Entity and signals of the findings at each time of ``live``, with windows of ``wide`` readings."""
    findings = []
    for end in range(1, live.shape[1] + 1):
        begin = max(0, end - wide)
        times = START + step.total_seconds() * np.arange(begin, end)
        part = window(detector, entities, live[:, begin:end], times=times, step=step)
        state, verdicts = detect(detector, state, part)
        findings.append([(one.entity.name, one.signals) for one in verdicts if isinstance(one, Finding)])
    return findings


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_values_in_another_unit_give_the_same_findings(name):
    """A power of two changes no rounding: the findings must be identical for each reading."""
    plain = past_and_present(FACTORIES[name]())
    assert any(plain), "precondition: there are findings"
    assert past_and_present(FACTORIES[name](), 1024.0) == plain


GIVEN = [name for name, make in FACTORIES.items() if isinstance(make(), ConditionalDetector)]


def lines_past_and_present(detector, scale=1.0):
    """Hours in which a value follows what drives it, learnt; then one card's is off. In other units.

    The first key is the value, the others are shares, which have no unit.
    """
    assert all(catalog.signal(key.name).unit == "ratio" for key in detector.keys[1:])
    entities, rng, step = refs(detector, "abcdef"), np.random.default_rng(14), timedelta(minutes=1)
    drive = 0.6 + 0.3 * np.sin(np.arange(150) / 60.0 * 2 * np.pi)
    drivers = drive[None, :, None] * rng.normal(1.0, 0.02, (6, 150, len(detector.keys) - 1))
    value = WELL_ABOVE * (0.4 + 0.6 * drive) * rng.normal(1.0, 0.005, (6, 150))
    value[2, 110:] *= 1.2 if detector.name == "memory-use" else 0.5
    live = np.concatenate((scale * value[:, :, None], np.clip(drivers, 0.0, 1.0)), axis=2)
    return findings_of(detector, entities, live, detector.initial(), step, 12)


@pytest.mark.parametrize("name", GIVEN)
def test_regressions_in_another_unit_give_the_same_findings(name):
    """As above, for detectors that learn a regression."""
    plain = lines_past_and_present(FACTORIES[name]())
    assert any(plain), "precondition: there are findings"
    assert lines_past_and_present(FACTORIES[name](), 1024.0) == plain


def test_a_detector_with_absolute_limits_is_listed(detector):
    """A detector without history compares with limits in the signal's unit, which it must declare."""
    learns = isinstance(detector, LearningDetector)
    reason = None if learns else ABSOLUTE["a rule" if ":" in detector.name else "a relation"]
    assert learns or reason
    assert all(catalog.signal(key.name).unit for key in detector.keys)


def of_signals(family, kind, signals):
    """A statistical detector of other signals; those that go by a measure of load have it last."""
    return (
        family(kind, tuple(signals[:-1]), signals[-1])
        if issubclass(family, SlowSignalDetector)
        else family(kind, signals)
    )


@pytest.mark.parametrize("name", LEARNING)
def test_a_changed_catalog_restarts_learning(name):
    """State of one signal is never read as that of another, for fewer, more or other signals."""
    detector = FACTORIES[name]()
    names = list(detector.signals)
    state, _ = run(detector, likely(detector, 3, 6), refs(detector, "abc"))
    for signals in (names[:-1], [*names, "target_up"], [*names[1:], names[0]]):
        changed = of_signals(type(detector), detector.kind, signals)
        _, reason = changed.restored(state)
        assert reason, "a checkpoint of other signals is dropped with its reason"
        kept, _ = changed.restored(state)
        values = likely(changed, 3, 6)
        run(changed, values, refs(changed, "abc"), kept)


@pytest.mark.parametrize("name", GIVEN)
def test_a_regression_between_other_signals_is_learned_again(name):
    """As above, for detectors that learn a regression."""
    detector = FACTORIES[name]()
    state, _ = run(detector, likely(detector, 3, 6), refs(detector, "abc"))
    assert detector.restored(state) == (state, "")
    one, *others = detector.keys
    for keys in ((one, *others[:-1]), (one, *others, SignalKey("target_up")), (*others, one)):
        changed = type("Changed", (type(detector),), {"keys": keys})()
        kept, reason = changed.restored(state)
        assert reason, "a checkpoint of other signals is dropped with its reason"
        assert kept.entities == ()


_PRINT_FINDINGS = """
import hashlib
from tests.contracts.test_detectors import FACTORIES, likely, refs, run, spelled
for name, make in FACTORIES.items():
    one = make()
    state, verdicts = run(one, likely(one, 5, 25, seed=9), refs(one, "abcde"))
    print(name, hashlib.sha256(repr((verdicts, sorted(spelled(state).items()))).encode()).hexdigest())
"""


@pytest.mark.slow
def test_every_process_gives_the_same_findings():
    """Independent of the order of sets: the hash seed differs between processes."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_FINDINGS], cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True, timeout=300,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert len(outputs[0]) == len(FACTORIES)
    assert outputs[0] == outputs[1]
