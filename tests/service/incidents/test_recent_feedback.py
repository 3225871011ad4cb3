"""Verdicts on findings of the ensemble reach it while the platform runs."""

from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.rules.files import load_rules
from outrider.model import Alert, AlertReason, AlertState, CycleRecord, EntityKind, EntityRef, Priority
from outrider.ports import CycleCommit
from outrider.records.feedback import Usefulness, judged
from service.incidents import recent_feedback
from store.memory import MemoryStateStore
from tests.service.engine.test_detector_rollout import NOW

GPU = EntityRef("lab", EntityKind.GPU, None, "gpu-0")
BEGAN, ENDED = NOW - timedelta(hours=5), NOW - timedelta(hours=3)


def alert(rule):
    return Alert(
        f"{rule}:{GPU.key}",
        rule,
        Priority.P3,
        GPU,
        AlertState.RESOLVED,
        AlertReason.CONDITION_GONE,
        BEGAN,
        ENDED,
        ENDED,
    )


@pytest.fixture
def state():
    store = MemoryStateStore()
    record = CycleRecord("c", NOW, 0.1, 1, 1, 1, 0, 0, 0)
    store.commit(CycleCommit(record, alerts=(alert("anomaly"), alert("gpu-slow"))))
    return store


def judge(state, rule, word, by="ada", at=NOW):
    state.save_feedback([judged(alert(rule), word, by=by, at=at)])


def feedback(state, now=NOW):
    return [(one.entity, one.start, one.end, one.useful) for one in recent_feedback.of(state, load_rules(), now)]


def test_a_verdict_on_an_anomaly_is_feedback_on_its_occurrence(state):
    assert feedback(state) == []
    judge(state, "gpu-slow", Usefulness.NOT_USEFUL)
    assert feedback(state) == [], "that rule uses no statistical detector"
    judge(state, "anomaly", Usefulness.NOT_USEFUL)
    assert feedback(state) == [(GPU, BEGAN, ENDED, False)]


def test_a_verdict_that_found_a_fault_prevails(state):
    judge(state, "anomaly", Usefulness.NOT_USEFUL)
    judge(state, "anomaly", Usefulness.WRONG_CAUSE, by="bob")
    assert feedback(state) == [(GPU, BEGAN, ENDED, True)]


def test_a_verdict_older_than_a_month_is_ignored(state):
    judge(state, "anomaly", Usefulness.NOT_USEFUL, at=NOW - timedelta(days=31))
    assert feedback(state) == []


def test_a_rule_for_one_entity_kind_is_included(state):
    judge(state, "anomaly", Usefulness.NOT_USEFUL)
    mine = [replace(rule, detectors=("isolation-gpu",)) for rule in load_rules() if rule.name == "anomaly"]
    assert len(recent_feedback.of(state, mine, NOW)) == 1
    other = [replace(rule, detectors=("seasonal",)) for rule in mine]
    assert recent_feedback.of(state, other, NOW) == ()
