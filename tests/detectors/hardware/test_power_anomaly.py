"""Power draw against the activity that explains it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest

from detectors.base.protocols import LearningDetector
from detectors.hardware.power_anomaly import PowerAnomalyDetector
from detectors.registry import DETECTORS, make_all
from outrider.model import (
    CellStatus,
    DetectorState,
    EntityKind,
    EntityRef,
    Finding,
    NoVerdict,
    NoVerdictReason,
    Stage,
    StageReason,
    Window,
)
from outrider.topology import Topology
from service.engine import detector_rollout

GPU = EntityKind.GPU
STEP = 30.0
DAY = 86400.0
START = 1_800_000_000.0
LEARN, FAULT = 100, 110  # cycles: 50 minutes, and when a fault begins
KEYS = PowerAnomalyDetector.keys
WINDOW_CYCLES = 21


def gpus(count, prefix="g"):
    return tuple(EntityRef("lab", GPU, None, f"{prefix}{number}") for number in range(count))


def topology_of(entities, per_replica=2, model="chat"):
    """Topology of one service with replicas of ``per_replica`` GPUs each."""
    service = EntityRef("lab", EntityKind.SERVICE, "default", model)
    edges, labels = [], {}
    for number, card in enumerate(entities):
        replica = EntityRef("lab", EntityKind.REPLICA, "default", f"{model}-{number // per_replica}")
        edges += [(card, replica), (replica, service)]
        labels[replica] = {"model": model}
        labels[card] = {"gpu_type": "H100"}
    return Topology.build(edges, labels=labels)


def work(count, cycles, seed=0):
    """Utilization, tensor activity and memory traffic with a common wave of one hour: (count, cycles, 3)."""
    random = np.random.default_rng(seed)
    swing = 0.65 + 0.25 * np.sin(np.arange(cycles) * STEP / 3600.0 * 2 * np.pi)
    noise = random.normal(1.0, 0.03, (count, cycles, 3))
    return np.clip(swing[None, :, None] * np.array([1.0, 0.25, 0.7]) * noise, 0.0, 1.0)


def power_of(activity, seed=1, spread=0.03):
    """Power of GPUs with 70 W idle and 700 W at most, slightly different per GPU."""
    random = np.random.default_rng(seed)
    share = activity @ np.array([0.30, 0.75, 0.20])
    own = random.normal(1.0, spread, (activity.shape[0], 1))
    return (70.0 + 630.0 * share) * own * random.normal(1.0, 0.01, share.shape)


def run_cycles(power, activity, topology, *, state=None, first=0, status=None, entities=None, scale=1.0, step=STEP):
    """Runs the detector cycle by cycle. Returns the last state and the verdicts of each cycle."""
    detector, entities = PowerAnomalyDetector(), entities or gpus(power.shape[0])
    state, results = state or detector.initial(), []
    values = np.concatenate((scale * power[:, :, None], activity), axis=2)
    for end in range(first + 1, values.shape[1] + 1):
        begin = max(0, end - 1 - int((WINDOW_CYCLES - 1) * STEP / step))
        part = values[:, begin:end]
        cell_status = np.where(np.isnan(part), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        if status is not None:
            cell_status = np.where(status[:, begin:end, None] > 0, status[:, begin:end, None], cell_status).astype(
                np.uint8
            )
        times = START + step * np.arange(begin, end)
        window = Window(GPU, entities, times, KEYS, part, cell_status, timedelta(seconds=step))
        now = datetime.fromtimestamp(float(times[-1]), tz=UTC)
        state, verdicts = detector.detect(state, window, topology, now)
        results.append(verdicts)
    return state, results


def findings(verdicts):
    return [(one.entity.name, one.evidence[0].text) for one in verdicts if isinstance(one, Finding)]


def test_power_explained_by_activity_is_not_reported():
    activity = work(8, 200)
    _, results = run_cycles(power_of(activity), activity, topology_of(gpus(8)))
    assert not [finding for verdicts in results for finding in findings(verdicts)]
    assert results[-1] == (), "all of them are judged"


def test_a_busy_gpu_with_low_power_is_reported_within_minutes():
    activity = work(8, 140)
    power = power_of(activity)
    power[2, FAULT:] *= 0.55
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    begun = next(cycle for cycle, verdicts in enumerate(results) if findings(verdicts))
    assert findings(results[begun]) == [("g2", "findings.power_low_for_its_work")]
    assert 0 < (begun - FAULT) * STEP <= 420
    (finding,) = [one for one in results[-1] if isinstance(one, Finding)]
    assert finding.fault is None
    assert finding.severity.rank == 3
    assert finding.expected.low is not None
    assert finding.observed < finding.expected.low


def test_a_finding_ends_when_the_gpu_recovers():
    activity = work(8, 160)
    power = power_of(activity)
    power[2, FAULT:130] *= 0.55
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert findings(results[129])
    assert not findings(results[-1])


def test_busy_waiting_gpus_are_reported_on_their_replica_too():
    activity = work(8, 150)
    power = power_of(activity)
    activity[:2, FAULT:, 0] = 1.0  # counted as busy, and nothing is multiplied
    activity[:2, FAULT:, 1:] = 0.02
    power[:2, FAULT:] = 130.0
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    texts = dict(findings(results[-1]))
    assert texts == {
        "g0": "findings.power_low_for_its_work",
        "g1": "findings.power_low_for_its_work",
        "chat-0": "findings.power_low_on_all_cards",
    }


def test_an_idle_gpu_with_high_power_is_reported():
    activity = work(8, 150)
    activity[5:, 40:] *= 0.03  # idle GPUs were seen before
    power = power_of(activity)
    power[6, FAULT:] += 250.0
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert findings(results[-1]) == [("g6", "findings.power_high_for_its_work")]


def test_a_deviation_of_all_peers_is_not_reported():
    activity = work(8, 150)
    power = power_of(activity)
    power[:, FAULT:] *= 0.6
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert not [finding for verdicts in results for finding in findings(verdicts)]


def test_a_new_load_level_with_capped_power_is_not_reported():
    activity = work(6, 160) * 0.3
    activity[:, FAULT:] = np.clip(activity[:, FAULT:] * 3.3, 0.0, 1.0)
    power = power_of(activity)
    power[:, FAULT:] = np.minimum(power[:, FAULT:], 330.0)  # the peers' load follows later
    power[1:, FAULT:], activity[1:, FAULT:] = power[1:, FAULT - 50 : FAULT], activity[1:, FAULT - 50 : FAULT]
    _, results = run_cycles(power, activity, topology_of(gpus(6)))
    assert not [finding for verdicts in results for finding in findings(verdicts)]


def test_an_outlier_during_learning_moves_little():
    activity = work(8, 150)
    power = power_of(activity)
    power[3, 80] = 5000.0
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert not [finding for verdicts in results for finding in findings(verdicts)]
    power[2, FAULT:] *= 0.5
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert ("g2", "findings.power_low_for_its_work") in findings(results[-1])


def test_utilization_alone_is_enough():
    activity = work(8, 150)
    power = power_of(activity)
    power[2, FAULT:] *= 0.5
    activity[:, :, 1:] = np.nan
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert findings(results[-1]) == [("g2", "findings.power_low_for_its_work")]


def test_a_single_gpu_is_judged_by_its_own_history():
    activity = work(1, 260)
    power = power_of(activity)
    power[0, 220:] *= 0.5
    _, results = run_cycles(power, activity, topology_of(gpus(1), per_replica=1))
    assert findings(results[-1]) == [("g0", "findings.power_low_for_its_work")], "a replica of one GPU adds nothing"


def test_before_half_an_hour_there_is_no_verdict():
    activity = work(8, 50)
    power = power_of(activity)
    power[2, 20:] *= 0.4
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert results[-1] == (NoVerdict("power-draw", None, NoVerdictReason.WARMING_UP),)


def test_a_new_gpu_is_judged_by_its_class():
    activity = work(8, 150)
    power = power_of(activity)
    power[7, :FAULT], activity[7, :FAULT] = np.nan, np.nan
    power[7, FAULT:] *= 0.5
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert findings(results[-1]) == [("g7", "findings.power_low_for_its_work")]


def test_a_gpu_with_a_new_model_starts_without_history():
    activity, topologies = work(8, 200), []
    for first_of_b in (4, 3):  # the fourth card moves to a model that needs half the power for the same work
        parts = (topology_of(gpus(8)[:first_of_b], 1, "a"), topology_of(gpus(8)[first_of_b:], 1, "b"))
        labels = {entity: held for part in parts for entity, held in part.labels.items()}
        topologies.append(Topology.build([edge for part in parts for edge in part.edges], labels=labels))
    power = power_of(activity)
    power[4:] *= 0.5
    power[3, FAULT:] *= 0.5
    state, results = run_cycles(power[:, :FAULT], activity[:, :FAULT], topologies[0])
    state, after = run_cycles(power, activity, topologies[1], state=state, first=FAULT)
    assert not [finding for verdicts in (*results, *after) for finding in findings(verdicts)]
    row = state.entities.index(gpus(8)[3])
    assert state.arrays["class"][row] == state.arrays["class"][row + 1]
    assert state.arrays["most"][row] < 300.0, "what it drew for the other model is forgotten"


def test_a_gpu_without_a_pod_for_a_while_stays_in_its_class():
    activity = work(4, 140)
    power = power_of(activity)
    topology, bare = topology_of(gpus(4), 1), Topology.build((), entities=gpus(4))
    state, _ = run_cycles(power[:, :FAULT], activity[:, :FAULT], topology)
    between, _ = run_cycles(power[:, :130], activity[:, :130], bare, state=state, first=FAULT)
    assert np.array_equal(between.arrays["class"], state.arrays["class"])


@pytest.mark.parametrize(("column", "reason"), [(0, NoVerdictReason.NO_VALUES), (1, NoVerdictReason.NO_VALUES)])
def test_without_power_or_work_there_is_no_verdict(column, reason):
    activity = work(4, 120)
    power = power_of(activity)
    if column == 0:
        power[1, 60:] = np.nan
    else:
        activity[1, 60:, 0] = np.nan
    _, results = run_cycles(power, activity, topology_of(gpus(4)))
    assert results[-1] == (NoVerdict("power-draw", gpus(4)[1], reason),)


def test_untrusted_values_give_no_verdict():
    activity = work(4, 120)
    status = np.zeros((4, 120), dtype=np.uint8)
    status[1, 60:] = CellStatus.UNTRUSTED
    power = power_of(activity)
    power[1, 60:] *= 0.3
    _, results = run_cycles(np.where(status > 0, np.nan, power), activity, topology_of(gpus(4)), status=status)
    assert results[-1] == (NoVerdict("power-draw", gpus(4)[1], NoVerdictReason.UNTRUSTED_VALUES),)


def test_gaps_change_nothing():
    activity = work(8, 150)
    power = power_of(activity)
    power[2, FAULT:] *= 0.5
    power[np.random.default_rng(4).random(power.shape) < 0.3] = np.nan
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert findings(results[-1]) == [("g2", "findings.power_low_for_its_work")]


def test_a_restart_does_not_change_the_results():
    activity = work(8, 130)
    power = power_of(activity)
    power[2, FAULT:] *= 0.5
    topology = topology_of(gpus(8))
    whole, results = run_cycles(power, activity, topology)
    state, _ = run_cycles(power[:, :112], activity[:, :112], topology)
    kept = DetectorState(state.version, state.entities, {name: one.copy() for name, one in state.arrays.items()})
    again, results_after_restart = run_cycles(power, activity, topology, state=kept, first=112)
    assert results_after_restart == results[112:]
    assert {name: one.tobytes() for name, one in again.arrays.items()} == {
        name: one.tobytes() for name, one in whole.arrays.items()
    }


def test_units_do_not_matter():
    activity = work(8, 130)
    power = power_of(activity)
    power[2, FAULT:] *= 0.5
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    _, scaled = run_cycles(power, activity, topology_of(gpus(8)), scale=1024.0)
    assert [findings(one) for one in scaled] == [findings(one) for one in results]


def activity_at(cycles, busy, count=8, seed=0):
    """Activity of GPUs with utilization ``busy`` and the other counters in proportion: (count, cycles, 3)."""
    noise = np.random.default_rng(seed).normal(1.0, 0.03, (count, cycles, 3))
    return np.clip(busy * np.array([1.0, 0.25, 0.7]) * noise, 0.0, 1.0)


@pytest.mark.parametrize("idle", [0.0, 0.01])
@pytest.mark.parametrize("more", [True, False])
def test_the_first_load_of_an_idle_class_is_learned_and_not_reported(idle, more):
    activity = activity_at(200, idle)
    activity[2, 80:] = activity_at(120, 0.3)[0]
    if not more:
        activity[:, :, 1:] = np.nan
    power = power_of(np.nan_to_num(activity))
    power[2, 80:] = np.random.default_rng(5).normal(250.0, 5.0, 120)
    topology = topology_of(gpus(8))
    state, results = run_cycles(power, activity, topology)
    assert not [finding for verdicts in results for finding in findings(verdicts)]
    assert state.arrays["most"].max() > 200.0
    assert state.arrays["busiest"].max() > 0.25
    again = np.concatenate((activity, activity_at(40, idle, seed=3)), axis=1)
    if not more:
        again[:, :, 1:] = np.nan
    drew = np.concatenate((power, np.full((8, 40), 70.0)), axis=1)
    drew[5, 200:] = 260.0  # work that no counter shows
    _, results = run_cycles(drew, again, topology, state=state, first=200)
    assert findings(results[-1]) == [("g5", "findings.power_high_for_its_work")]


def test_less_activity_than_the_class_has_ever_had_is_not_reported():
    activity = activity_at(160, 0.95)
    activity[2, 120:] = activity_at(40, 0.55)[0]
    power = power_of(activity)
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert not [finding for verdicts in results for finding in findings(verdicts)]


def test_an_outlier_before_the_first_fit_does_not_mask_deviations():
    activity = work(8, 150)
    activity[5:, 20:] *= 0.03
    power = power_of(activity)
    power[3, 10] = 5000.0
    power[6, FAULT:] += 250.0
    state, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert state.arrays["most"].max() < 800.0
    assert ("g6", "findings.power_high_for_its_work") in findings(results[-1])


def test_the_maximum_power_decays_like_the_fit():
    activity = work(4, 100)
    topology = topology_of(gpus(4))
    state, _ = run_cycles(power_of(activity), activity, topology)
    held = {name: one.copy() for name, one in state.arrays.items()}
    held["most"][:] = 5000.0
    state, _ = run_cycles(
        power_of(work(4, 200)), work(4, 200), topology,
        state=DetectorState(state.version, state.entities, held), first=100,
    )  # fmt: skip
    left = np.exp(-100 * STEP / DAY)
    mean = power_of(activity).mean()
    assert state.arrays["most"].max() == pytest.approx(mean + left * (5000.0 - mean), rel=0.02)


def test_a_deviation_before_a_gap_does_not_count_after_it():
    activity = work(8, 160)
    power = power_of(activity)
    power[2, FAULT : FAULT + 5] *= 0.5  # begins, and is not reported yet
    power[2, FAULT + 5 : FAULT + 30] = np.nan
    power[2, FAULT + 30 :] *= 0.5
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    first = next(cycle for cycle, verdicts in enumerate(results) if findings(verdicts))
    assert (first - (FAULT + 30)) * STEP >= 180.0
    finding = next(one for one in results[first] if isinstance(one, Finding))
    assert finding.window.start.timestamp() >= START + STEP * (FAULT + 30)


@pytest.mark.parametrize("every", [3, 4, 8])
def test_intervals_above_a_minute_are_judged(every):
    """Every 90, 120 and 240 seconds."""
    activity = work(8, 130 * every)[:, ::every]
    power = power_of(activity)
    power[2, 110:] *= 0.5
    _, results = run_cycles(power, activity, topology_of(gpus(8)), step=STEP * every)
    assert results[109] == ()
    assert ("g2", "findings.power_low_for_its_work") in findings(results[-1])


def test_a_known_gpu_with_too_few_readings_has_no_verdict():
    activity = work(4, 120)
    power = power_of(activity)
    power[1, 100:] = np.nan
    power[1, -1] = 300.0
    _, results = run_cycles(power, activity, topology_of(gpus(4)))
    assert results[-1] == (NoVerdict("power-draw", gpus(4)[1], NoVerdictReason.NO_VALUES),)


def test_warming_up_gives_one_no_verdict_beside_missing_values():
    activity = work(8, 20)
    power = power_of(activity)
    power[3] = np.nan
    _, results = run_cycles(power, activity, topology_of(gpus(8)))
    assert set(results[-1]) == {
        NoVerdict("power-draw", gpus(8)[3], NoVerdictReason.NO_VALUES),
        NoVerdict("power-draw", None, NoVerdictReason.WARMING_UP),
    }


def test_it_is_registered():
    assert DETECTORS["power-draw"] is PowerAnomalyDetector


def faulty(cycles=180):
    """Power and activity with one GPU that deviates for ten minutes of every twenty."""
    activity = work(8, cycles)
    power = power_of(activity)
    for begin in range(FAULT, cycles, 40):
        power[2, begin : begin + 20] *= 0.5
    return power, activity


def stage_of(state, verdicts, detector=None):
    run = detector_rollout.DetectorRun(detector or PowerAnomalyDetector(), state, 8, verdicts)
    return detector_rollout.DetectorRollout().judge(run, datetime.fromtimestamp(START, tz=UTC))


def test_it_learns_then_shadows_and_alerts_after_two_days():
    activity = work(8, 150)
    state, results = run_cycles(power_of(activity), activity, topology_of(gpus(8)))
    first = stage_of(DetectorState(2, (), {}), results[5])
    assert (first.stage, first.reason) == (Stage.LEARNING, StageReason.TOO_LITTLE_PAST)
    tried = stage_of(state, results[-1])
    assert (tried.stage, tried.reason) == (Stage.SHADOW, StageReason.ON_TRIAL)
    assert tried.learnt_seconds == 150 * STEP
    state.arrays["learnt"][:] = 2 * DAY
    assert stage_of(state, results[-1]).stage is Stage.ALERTING


def test_alarms_are_counted_once_and_raise_the_limit():
    power, activity = faulty(260)
    state, results = run_cycles(power, activity, topology_of(gpus(8)))
    begun = sum(bool(findings(one)) and not findings(before) for before, one in pairwise(results))
    rate = PowerAnomalyDetector().alarm_rate(state)
    assert rate.entity_days * rate.budget < 1.0 < begun
    assert state.arrays["alarms"][0] == pytest.approx(begun, rel=0.1)
    assert rate.factor > 1.2
    activity = work(8, 260)
    calm, _ = run_cycles(power_of(activity), activity, topology_of(gpus(8)))
    assert PowerAnomalyDetector().alarm_rate(calm).factor < 1.0


def test_a_raised_limit_reports_less():
    activity = work(8, 140)
    power = power_of(activity)
    power[2, FAULT:] *= 0.65
    state, _ = run_cycles(power[:, :FAULT], activity[:, :FAULT], topology_of(gpus(8)))
    _, results = run_cycles(power, activity, topology_of(gpus(8)), state=state, first=FAULT)
    assert findings(results[-1])
    raised = DetectorState(state.version, state.entities, {**state.arrays, "shift": np.array([np.log(2.0)])})
    _, results = run_cycles(power, activity, topology_of(gpus(8)), state=raised, first=FAULT)
    assert not any(findings(one) for one in results)


def test_detectors_of_a_class_share_the_alarm_budget():
    detectors = {detector.name: detector for detector in make_all({GPU: 0.5})}
    sharing = [name for name, one in detectors.items() if one.kind is GPU and isinstance(one, LearningDetector)]
    assert "power-draw" in sharing
    assert detectors["power-draw"].alarm_rate(detectors["power-draw"].initial()).budget == pytest.approx(
        0.5 / len(sharing)
    )


def test_history_teaches_the_fit_and_counts_as_learning_time():
    activity = work(8, 3 * 144, seed=4)
    power = power_of(activity)
    values = np.concatenate((power[:, :, None], activity), axis=2)
    times = START - 600.0 * np.arange(values.shape[1], 0, -1)
    status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
    detector = PowerAnomalyDetector()
    past = Window(GPU, gpus(8), times, KEYS, values, status, timedelta(minutes=10))
    state = detector.warm(detector.initial(), past)
    assert detector.learnt(state) == timedelta(days=3)
    activity = work(8, 20)
    power = power_of(activity)
    power[2] *= 0.5
    _, results = run_cycles(power, activity, topology_of(gpus(8)), state=state)
    assert findings(results[-1]) == [("g2", "findings.power_low_for_its_work")]


def test_temporarily_missing_counters_do_not_change_the_class():
    activity = work(6, 240)
    power = power_of(activity)
    before, _ = run_cycles(power[:, :140], activity[:, :140], topology_of(gpus(6)))
    activity[:, 140:190, 1:] = np.nan
    state, results = run_cycles(power, activity, topology_of(gpus(6)))
    assert (state.arrays["sum_n"] > 0.9 * before.arrays["sum_n"]).all()
    assert not [one for verdicts in results for one in findings(verdicts)]
    assert results[-1] == ()


def test_a_gap_longer_than_the_window_loses_no_state():
    activity = work(6, 240)
    power = power_of(activity)
    before, _ = run_cycles(power[:, :140], activity[:, :140], topology_of(gpus(6)))
    power[:, 140:184], activity[:, 140:184] = np.nan, np.nan
    state, results = run_cycles(power, activity, topology_of(gpus(6)))
    assert (state.arrays["sum_n"] > 0.9 * before.arrays["sum_n"]).all()
    assert results[-1] == ()
