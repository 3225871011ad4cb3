from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from detectors.engine import step_time
from detectors.engine.slowness import SlownessDetector
from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, NoVerdictReason
from outrider.topology import Topology

START = 1_800_000_000.0  # of the windows in conftest, 5 s a column
LENGTH = 90
FAULT = 60  # the column in which it begins
R, SVC = EntityKind.REPLICA, EntityRef("lab", EntityKind.SERVICE, "default", "chat")
NAMES = tuple(f"r{i}" for i in range(6))
REPLICAS = [EntityRef("lab", R, "default", name) for name in NAMES]
NODES = [EntityRef("lab", EntityKind.NODE, None, f"n{i}") for i in range(3)]
CARDS = {
    replica: [EntityRef("lab", EntityKind.GPU, None, f"{replica.name}-{i}") for i in range(2)] for replica in REPLICAS
}


def fleet(cards=2):
    edges = [(replica, SVC) for replica in REPLICAS]
    edges += [(card, replica) for replica in REPLICAS for card in CARDS[replica][:cards]]
    edges += [(NODES[i // 2], card) for i, replica in enumerate(REPLICAS) for card in CARDS[replica][:cards]]
    return Topology.build(edges)


def replica(seed, *, factor=1.0, begins=FAULT, batch=20.0, crowd=1.0, length=LENGTH, started=START - 9000.0):
    """An engine with steps of 10 ms + 0.25 ms per sequence, scaled by ``factor``, and a batch scaled by ``crowd``."""
    random = np.random.default_rng(seed)
    size = batch * random.uniform(0.7, 1.3, length) * np.where(np.arange(length) >= begins, crowd, 1.0)
    step = (0.010 + 0.00025 * size) * np.where(np.arange(length) >= begins, factor, 1.0)
    step *= random.normal(1.0, 0.01, length)
    steps = 5.0 / step
    tokens = steps * size
    return {
        "engine_itl_seconds#5": tokens.tolist(),
        "engine_itl_seconds#-1": (tokens * step).tolist(),
        "engine_generation_tokens_total": tokens.tolist(),
        "engine_iterations_total": steps.tolist(),
        "engine_requests_running": size.tolist(),
        "engine_start_time_seconds": [started] * length,
        "engine_requests_failed_total": [0.0] * length,
        "engine_requests_finished_total": [10.0] * length,
    }


def change(code="flags", column=FAULT, entity=SVC):
    at = datetime.fromtimestamp(START + 5.0 * column - 1, tz=UTC)
    return Event(f"{code}-{column}", EventKind.CHANGE, entity, at, "audit", code)


@pytest.fixture
def find(window_of, findings_of):
    def run(rows=None, events=(), topology=None, *, statuses=None, verdicts=None, **slow):
        made = {name: replica(number, **slow.get(name, {})) for number, name in enumerate(NAMES)}
        made = made if rows is None else rows
        window = window_of(R, made, events=events, statuses=statuses)
        findings = findings_of(SlownessDetector(), window, topology or fleet(), verdicts=verdicts)
        return [(item.fault, item.entity) for item in findings]

    return run


def test_engines_at_their_usual_step_time_have_no_finding(find):
    assert find() == []


def test_a_replica_slower_than_its_peers_is_reported(find):
    assert find(r2={"factor": 1.4}) == [("gpu-slow-peer", REPLICAS[2])]


def test_a_single_gpu_is_named(find):
    assert find(topology=fleet(cards=1), r2={"factor": 1.4}) == [("gpu-slow-peer", CARDS[REPLICAS[2]][0])]


def test_a_larger_batch_is_not_slowness(find):
    assert find(r2={"crowd": 3.0}) == []
    assert find(events=[change()], **{name: {"crowd": 2.5} for name in NAMES}) == []


def test_slowness_is_detected_despite_a_growing_batch(find):
    assert find(r2={"factor": 1.4, "crowd": 2.5}) == [("gpu-slow-peer", REPLICAS[2])]


def test_a_draining_batch_is_judged_at_its_size_before(find):
    rows = {name: replica(number) for number, name in enumerate(NAMES)}
    full, left = replica(9, batch=80.0), replica(9, batch=4.0)
    edge = LENGTH - 9
    rows["r2"] = {name: [*full[name][:edge], *left[name][edge:]] for name in full}
    assert find(rows) == []


def test_a_scrape_that_covers_a_long_gap_is_not_slowness(find):
    rows = {name: replica(number) for number, name in enumerate(NAMES)}
    rows["r2"]["engine_itl_seconds#5"][LENGTH - 11] *= 100
    rows["r2"]["engine_itl_seconds#-1"][LENGTH - 11] *= 140
    assert find(rows) == []


def test_all_replicas_slower_after_a_change_are_a_regression(find):
    assert find(events=[change()], **{name: {"factor": 1.35} for name in NAMES}) == [("kernel-regression", SVC)]


def test_all_replicas_slower_without_a_change_are_not_reported(find):
    assert find(**{name: {"factor": 1.35} for name in NAMES}) == []


@pytest.mark.parametrize("code", ["scale", "template", "power-limit", "restart"])
def test_changes_that_do_not_affect_the_engine_are_ignored(find, code):
    assert find(events=[change(code)], **{name: {"factor": 1.35} for name in NAMES}) == []


def test_a_rollback_ends_the_suspicion(find):
    events = [change("rollout", FAULT - 5), change("rollback", FAULT)]
    assert find(events=events, **{name: {"factor": 1.35} for name in NAMES}) == []


def test_slow_new_replicas_that_fail_requests_are_a_bad_rollout(find):
    rows = {name: replica(number, factor=1.35) for number, name in enumerate(NAMES)}
    for row in rows.values():
        row["engine_requests_failed_total"] = [0.0] * FAULT + [3.0] * (LENGTH - FAULT)
    assert find(rows, [change("rollout")]) == []


def test_slow_engines_of_a_whole_node_blame_no_gpu(find):
    assert find(r0={"factor": 1.4}, r1={"factor": 1.4}) == []


def restarted(number, factor, gone=10):
    """Replaced at FAULT - gone, back and slow from FAULT on."""
    row = replica(number, factor=factor)
    for name, values in row.items():
        row[name] = [None if FAULT - gone <= column < FAULT else value for column, value in enumerate(values)]
    start = START + 5.0 * (FAULT - 2)
    row["engine_start_time_seconds"][FAULT:] = [start] * (LENGTH - FAULT)
    return row


def test_a_replica_slow_from_its_start_is_a_placement_fault(find):
    rows = {name: replica(number) for number, name in enumerate(NAMES)}
    assert find({**rows, "r4": restarted(4, 1.4)}) == [("tp-topology-bad", REPLICAS[4])]
    assert find({**rows, "r4": restarted(4, 1.0)}) == []


def test_the_first_replica_of_a_new_revision_is_not_a_placement_fault(find):
    rows = {name: replica(number) for number, name in enumerate(NAMES)}
    assert find({**rows, "r4": restarted(4, 1.4)}, [change("rollout", FAULT - 10)]) == []
    back = change("rollback", LENGTH - 3)
    assert find({**rows, "r4": restarted(4, 1.4)}, [change("rollout", FAULT - 10), back]) == []


def test_a_replica_without_peers_is_compared_with_its_own_past(find):
    rows = {"r0": replica(0, factor=1.4)}
    assert find(rows) == [("gpu-slow-peer", REPLICAS[0])]
    assert find({"r0": replica(0)}) == []


def test_an_engine_that_counts_no_steps_is_judged_at_its_running_requests(find):
    rows = {name: replica(number, factor=1.4 if name == "r2" else 1.0) for number, name in enumerate(NAMES)}
    for row in rows.values():
        del row["engine_iterations_total"]
    assert find(rows) == [("gpu-slow-peer", REPLICAS[2])]


def test_no_values_give_no_verdict(find):
    verdicts = []
    rows = {name: dict.fromkeys(replica(0), [None] * LENGTH) for name in NAMES}
    assert find(rows, verdicts=verdicts) == []
    assert [item.reason for item in verdicts] == [NoVerdictReason.WARMING_UP]


@pytest.mark.parametrize("length", [1, 2, 20])
def test_too_few_values_give_no_verdict(find, length):
    verdicts = []
    rows = {name: replica(number, factor=3.0, begins=0, length=length) for number, name in enumerate(NAMES)}
    assert find(rows, [change(column=0)], verdicts=verdicts) == []
    assert verdicts


def test_constant_values_can_be_fitted(find):
    rows = {name: {key: [value[0]] * LENGTH for key, value in replica(7).items()} for name in NAMES}
    assert find(rows) == []


def test_gaps_and_resets_are_not_slowness(find):
    rows = {name: replica(number) for number, name in enumerate(NAMES)}
    for name in ("engine_itl_seconds#-1", "engine_itl_seconds#5"):
        rows["r1"][name] = [None if column % 3 == 0 else value for column, value in enumerate(rows["r1"][name])]
    reset = {("r3", name, FAULT + 5): CellStatus.RESET for name in rows["r3"] if name.endswith("_total")}
    assert find(rows, statuses=reset) == []


def test_the_regression_recovers_the_parts_of_a_step(window_of):
    window = window_of(R, {"r0": replica(0), "r1": replica(1)})
    memory = {name: np.zeros(2) for name in step_time.DEFAULTS}
    seen = step_time.read(window)
    step_time.learn(memory, seen, np.ones((2, LENGTH), dtype=np.bool_), 1.0)
    line = step_time.STEP.fit(memory, np.array([0, 0]))
    assert line.samples.tolist() == [2.0 * LENGTH] * 2
    # 0.25 ms of 15 ms for each of 20 sequences: a third of the step follows the batch
    assert line.slopes[:, 0] == pytest.approx([1 / 3, 1 / 3], abs=0.03)
    wider = step_time.StepTiming(seen.gap_seconds, seen.gaps, np.full((2, LENGTH), 60.0), seen.prompt)
    expected, error = step_time.expected(memory, np.array([0, 0]), wider)
    assert expected[0, 0] == pytest.approx(0.025, rel=0.05)
    assert 0 < error[0, 0] < 0.1


def test_a_change_affects_only_the_replicas_of_its_service(window_of, now_of):
    from detectors.base.changes import changed_at

    other = EntityRef("lab", R, "default", "z0")
    window = window_of(R, {"r0": replica(0), "z0": replica(1)}, events=[change("image")])
    topology = Topology.build([(REPLICAS[0], SVC)], entities=[other])
    findings = changed_at(window, np.full(2, -np.inf), topology, now_of(window))
    assert findings.tolist() == [START + 5.0 * FAULT - 1, -np.inf]
