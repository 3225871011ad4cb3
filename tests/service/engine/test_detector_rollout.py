"""Cold start: detectors that alert from the first minute, detectors in shadow, and their reasons."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from collectors.pipeline.scrape_manager import ScrapeManager
from detectors.anomaly.seasonal import SeasonalDetector
from outrider.clock import ManualClock
from outrider.model import (
    AlarmRate,
    AlertState,
    CellStatus,
    DetectorState,
    EntityKind,
    EntityRef,
    Evidence,
    Finding,
    NoVerdict,
    NoVerdictReason,
    Priority,
    SampleBatch,
    SignalKey,
    Stage,
    StageReason,
    TimeRange,
)
from outrider.ports import Collected
from outrider.topology import Topology
from outrider.vocabulary.rules import Rule
from service.config.settings import Settings, StoreSettings
from service.engine.detector_memory import Detection
from service.engine.detector_rollout import DetectorRollout, DetectorRun, alertable_verdicts
from service.planning.planning import calendar_of
from service.wiring import platform as wiring_platform
from service.wiring.detectors import holiday_spans
from service.wiring.planning import with_holidays
from store.memory import MemoryStateStore

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
GPUS = tuple(EntityRef("c", EntityKind.GPU, None, f"GPU-{number}") for number in range(6))
POWER = SignalKey("hw_accel_power_watts")


class Statistics:
    """A detector with history and alarm rate set by the test."""

    name, kind, keys, window, state_version = "seasonal-gpu", EntityKind.GPU, (POWER,), timedelta(minutes=10), 1
    weekly = True

    def __init__(self) -> None:
        self.past, self.rate = timedelta(0), AlarmRate(0.25, None, 1.0)
        self.verdicts = ()

    def initial(self):
        return DetectorState(1, (), {})

    def detect(self, state, window, topology, now):
        return state, self.verdicts

    def learnt(self, state):
        return self.past

    def alarm_rate(self, state):
        return self.rate

    def set_budget(self, alarms_per_entity_day):
        raise AssertionError


def finding(detector="seasonal-gpu", now=NOW):
    because = (Evidence("hw_accel_power_watts", 700.0, None, "incidents.evidence.unusual", {}),)
    span = TimeRange(now - timedelta(minutes=2), now)
    return Finding(detector, GPUS[1], ("hw_accel_power_watts",), Priority.P3, 0.9, 700.0, None, span, because, "f")


@pytest.fixture
def statistics():
    return Statistics()


def judged(stages, detector, *verdicts, now=NOW):
    return stages.judge(DetectorRun(detector, detector.initial(), 6, verdicts), now)


def test_a_detector_without_a_weekly_profile_has_learned_after_the_trial(statistics):
    statistics.past, statistics.weekly = timedelta(days=3), False
    one = judged(DetectorRollout(), statistics, finding())
    assert (one.stage, one.reason) == (Stage.ALERTING, StageReason.LEARNT)


def test_the_stages_of_a_detector_that_needs_history(statistics):
    stages = DetectorRollout()
    warming = NoVerdict("seasonal-gpu", None, NoVerdictReason.WARMING_UP)
    one = judged(stages, statistics, NoVerdict("seasonal-gpu", None, NoVerdictReason.NO_VALUES))
    assert (one.stage, one.reason, one.since) == (Stage.LEARNING, StageReason.NOTHING_SEEN, NOW)
    assert one.everyone_silent is NoVerdictReason.NO_VALUES
    statistics.past = timedelta(minutes=5)
    one = judged(stages, statistics, warming, now=NOW + STEP)
    assert (one.stage, one.reason, one.since) == (Stage.LEARNING, StageReason.TOO_LITTLE_PAST, NOW + STEP)
    statistics.past = timedelta(hours=47)
    one = judged(stages, statistics, finding(), now=NOW + 2 * STEP)
    assert (one.stage, one.reason) == (Stage.SHADOW, StageReason.ON_TRIAL)
    assert [each.entity for each in one.shadowed] == [GPUS[1]]
    later = judged(stages, statistics, now=NOW + 3 * STEP)
    assert later.since == NOW + 2 * STEP, "the stage keeps its start"
    statistics.past = timedelta(hours=48)
    one = judged(stages, statistics, finding(), now=NOW + 4 * STEP)
    assert (one.stage, one.reason, one.shadowed) == (Stage.ALERTING, StageReason.LEARNT_DAY, ())
    statistics.past = timedelta(days=14)
    one = judged(stages, statistics, now=NOW + 5 * STEP)
    assert (one.stage, one.reason, one.since) == (Stage.ALERTING, StageReason.LEARNT, NOW + 5 * STEP)


def test_far_above_its_budget_a_detector_returns_to_shadow_mode(statistics):
    stages = DetectorRollout()
    statistics.past = timedelta(days=9)
    for realised, days, stage in (
        (0.2, 100.0, Stage.ALERTING),
        (9.0, 0.5, Stage.ALERTING),  # one bad hour
        (1.5, 100.0, Stage.SHADOW),
        (0.7, 100.0, Stage.SHADOW),
        (0.4, 100.0, Stage.ALERTING),
        (0.9, 100.0, Stage.ALERTING),
    ):
        statistics.rate = AlarmRate(0.25, realised, 1.0, days)
        assert judged(stages, statistics).stage is stage, (realised, days)


def test_shadow_mode_raises_and_resolves_no_alert(statistics):
    statistics.past = timedelta(hours=3)
    silent = NoVerdict("seasonal-gpu", GPUS[2], NoVerdictReason.NO_EXPECTATION)
    status = judged(DetectorRollout(), statistics, finding(), silent)
    alertable = alertable_verdicts(status, (finding(), silent))
    assert alertable == (silent, NoVerdict("seasonal-gpu", None, NoVerdictReason.WARMING_UP))


def test_the_start_of_a_stage_survives_a_restart(statistics):
    state, stages = MemoryStateStore(), DetectorRollout()
    before = judged(stages, statistics)
    again = DetectorRollout()
    again.restore((before,))
    assert judged(again, statistics, now=NOW + timedelta(hours=1)).since == NOW
    assert state.detector_statuses() == ()


def test_a_shadow_finding_is_stored_and_raises_no_alert(statistics):
    rule = Rule("anomaly", EntityKind.GPU, detectors=("seasonal",), priority=Priority.P3)
    cycle = wiring_platform.cycle_in_memory(Settings(), ScrapeManager([]), ManualClock(NOW), interval=STEP)
    cycle.parts.detection = Detection([statistics], STEP)
    cycle.parts.rules = (rule,)
    for hours, firing in ((3, 0), (50, 1)):
        statistics.past = timedelta(hours=hours)
        at = NOW + timedelta(hours=hours)
        statistics.verdicts = (finding(now=at),)
        record = cycle.run_stages(at, Collected())
        assert (record.findings, record.alerts_firing) == (1, firing)
        (status,) = cycle.parts.state.detector_statuses()
        assert len(status.shadowed) == 1 - firing


def samples(now, rng, keys, hot=()):
    values = 50.0 + rng.normal(size=(len(GPUS), len(keys)))
    values[list(hot)] *= 3.0
    return SampleBatch(
        "t", now, EntityKind.GPU, keys, GPUS, values, np.full(values.shape, CellStatus.PRESENT, np.uint8)
    )


def test_an_entity_kind_learns_from_values_without_gaps():
    detector = SeasonalDetector(EntityKind.GPU, ("hw_accel_power_watts",))
    detection = Detection([detector], STEP)
    rng, now = np.random.default_rng(1), NOW
    for _ in range(40):
        now += STEP
        detection.run(now, Collected((samples(now, rng, detector.keys),)), Topology.build(()))
    now += timedelta(hours=5)
    result = detection.run(now, Collected((samples(now, rng, detector.keys),)), Topology.build(()))
    (status,) = result.detector_statuses
    assert 600 <= status.learnt_seconds <= 600 + 615
    assert status.needed_seconds == 2 * 86400


def test_statuses_are_reported_once_a_minute_and_on_change(statistics):
    detection = Detection([statistics], STEP)

    def reported(seconds):
        return bool(detection.run(NOW + timedelta(seconds=seconds), Collected(), Topology.build(())).detector_statuses)

    assert [reported(seconds) for seconds in (0, 15, 30, 45, 60, 75)] == [True, False, False, False, True, False]
    statistics.past = timedelta(hours=1)
    assert reported(90)


def test_statuses_are_stored(tmp_path):
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/o.db"))
    platform = wiring_platform.platform(settings, ManualClock(NOW), lockstep=True)
    platform.cycle.run_stages(NOW, Collected())
    stored = {one.detector: one for one in platform.state.detector_statuses()}
    asyncio.run(platform.close())
    assert (stored["liveness"].stage, stored["liveness"].reason) == (Stage.ALERTING, StageReason.NEEDS_NO_PAST)
    assert stored["seasonal-gpu"].stage is Stage.LEARNING
    again = wiring_platform.platform(settings, ManualClock(NOW + timedelta(hours=1)), lockstep=True)
    again.warm(NOW + timedelta(hours=1))
    again.cycle.run_stages(NOW + timedelta(hours=1), Collected())
    assert {one.detector: one.since for one in again.state.detector_statuses()} == dict.fromkeys(stored, NOW)
    asyncio.run(again.close())


def test_the_budgets_of_a_class_are_shared_by_its_detectors():
    settings = Settings.model_validate({"detect": {"alarms_per_entity_day": {"gpu": 0.1, "service": 0.3}}})
    cycle = wiring_platform.cycle_in_memory(settings, ScrapeManager([]), ManualClock(NOW), interval=STEP)
    cycle.run_stages(NOW, Collected())
    budgets = {one.detector: one.rate.budget for one in cycle.parts.state.detector_statuses() if one.rate}
    gpu = ("seasonal-gpu", "isolation-gpu", "level-shift-gpu", "drift-gpu", "power-draw", "memory-use")
    service = ("seasonal-service", "level-shift-service", "robust-z-service", "drift-service")
    assert [budgets[name] for name in gpu] == [pytest.approx(0.1 / 6)] * 6
    assert [budgets[name] for name in service] == [pytest.approx(0.3 / 4)] * 4
    assert budgets["seasonal-node"] == pytest.approx(0.5 / 4)


def test_holidays_begin_at_midnight_in_their_time_zone():
    given = {"holidays": ["2027-02-06"], "timezone": "Asia/Shanghai"}
    ((start, end),) = Settings.model_validate({"detect": given}).detect.holiday_spans
    assert datetime.fromtimestamp(start, tz=UTC) == datetime(2027, 2, 5, 16, tzinfo=UTC)
    assert end - start == 86400


def test_holidays_of_the_country_and_the_list_reach_detectors_and_planner():
    given = {"detect": {"holidays": ["2027-02-06"]}, "planner": {"holidays": "CN", "zone": "Asia/Shanghai"}}
    settings = Settings.model_validate(given)
    assert settings.zone.key == "Asia/Shanghai"
    days = {datetime.fromtimestamp(start, tz=UTC) for start, _ in holiday_spans(settings, NOW)}
    assert {datetime(2027, 2, 5, 16, tzinfo=UTC), datetime(NOW.year, 9, 30, 16, tzinfo=UTC)} <= days
    calendar = calendar_of(with_holidays(settings), datetime(2027, 2, 6, tzinfo=UTC))
    assert datetime(2027, 2, 5, 16, tzinfo=UTC) in {event.start for event in calendar.events}
    assert len({(event.name, event.start) for event in calendar.events}) == len(calendar.events)


def test_detection_follows_the_zone_of_the_users_unless_it_names_its_own():
    assert Settings().zone.key == "UTC"
    own = {"detect": {"timezone": "Europe/Berlin"}, "planner": {"zone": "Asia/Shanghai"}}
    assert Settings.model_validate(own).zone.key == "Europe/Berlin"
    settings = Settings.model_validate({"planner": {"zone": "Asia/Shanghai"}})
    cycle = wiring_platform.cycle_in_memory(settings, ScrapeManager([]), ManualClock(NOW), interval=STEP)
    (entry,) = (one for one in cycle.parts.detection.detector_set.detectors if one.name == "entry")
    assert entry._zone.key == "Asia/Shanghai"


def test_an_alert_of_a_detector_back_in_shadow_mode_is_kept(statistics):
    rule = Rule("anomaly", EntityKind.GPU, detectors=("seasonal",), priority=Priority.P3)
    cycle = wiring_platform.cycle_in_memory(Settings(), ScrapeManager([]), ManualClock(NOW), interval=STEP)
    cycle.parts.detection, cycle.parts.rules = Detection([statistics], STEP), (rule,)
    statistics.past, statistics.verdicts = timedelta(days=3), (finding(),)
    cycle.run_stages(NOW, Collected())
    statistics.past = timedelta(hours=1)
    cycle.run_stages(NOW + STEP, Collected())
    (alert,) = cycle.parts.state.alerts(states=[AlertState.FIRING])
    assert alert.reason.value == "kept_without_values"
    assert replace(alert, muted_by=None).rule == "anomaly"
