"""Names and texts that databases reject or that are too long: a whole cycle with them is stored on every backend."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    Calibration,
    CycleRecord,
    DecisionReason,
    DetectorState,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Hypothesis,
    Incident,
    Layer,
    Message,
    NoPlanReason,
    NoRecommendation,
    NotifyReason,
    Plan,
    Priority,
    SampleBatch,
    SignalKey,
    Verdict,
)
from outrider.ports import CycleCommit, Silence
from outrider.records.change_log import Change, ChangeEnd, ChangeStatus, Startup
from outrider.records.drill import Drill
from outrider.records.feedback import Feedback, Usefulness
from outrider.records.ingest_buffer import PushedBlock
from outrider.records.on_call import ButtonPress, PressResult, ShiftOverride, StoredCalendar
from outrider.records.response import FollowUp
from outrider.topology import Topology
from store.factory import SqlMetricStore, SqlStateStore, open_change_log, open_ingest_buffer, urls_of

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
_LONG = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=1_000_000))  # incompressible
BAD = {
    "nul": "pod\0name",
    "trailing nul": "pod\0",
    "half a pair": "pod-\ud83d",
    "long": _LONG,
    "long in four bytes": "𠜎" * 5_000,
    "all": "\0\udfff" + _LONG,
}


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest) -> str:
    return BAD[request.param]


def pods(bad: str) -> tuple[EntityRef, ...]:
    return tuple(EntityRef("prod", EntityKind.POD, "llm", name) for name in (bad, "good"))


@pytest.mark.slow
def test_values_of_bad_and_good_names_are_stored(metrics: SqlMetricStore, bad: str) -> None:
    key, both = SignalKey("kube_pod_restarts_total"), pods(bad)
    values = np.array([[1.0], [2.0]])
    batch = SampleBatch("push", T0, EntityKind.POD, (key,), both, values, np.zeros(values.shape, np.uint8))
    attributes = {bad: bad}
    events = [Event("e", EventKind.LOG, both[0], T0, bad, "oom", attributes, f"e/{bad}")] * 2
    for number in range(2):
        assert metrics.write(T0 + number * MINUTE, [batch], events) == 2
    window = metrics.read_windows(EntityKind.POD, [key], T0, T0 + 2 * MINUTE, MINUTE, both)
    assert window.values[:, :, 0].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert set(metrics.entities(EntityKind.POD)) == set(both)
    (event,) = metrics.events(T0, T0 + MINUTE, both[0])
    assert event.entity == both[0]
    assert event.attributes == attributes


def test_a_cycle_with_bad_text_everywhere_is_committed_and_read_back(state: SqlStateStore, bad: str) -> None:
    pod, good = pods(bad)
    fingerprint = f"rule/{pod.key}/{bad}"
    alert = Alert(
        fingerprint, bad, Priority.P1, pod, AlertState.FIRING, AlertReason.STILL_TRUE, T0, T0, labels={bad: bad},
        incident=bad,
    )  # fmt: skip
    incident = Incident(
        bad, Layer.ENGINE, Priority.P1, T0, (Hypothesis(pod, bad, 0.5),), (), (fingerprint,), (), T0,
        acknowledged_at=T0, acknowledged_by=bad,
    )  # fmt: skip
    action = Action(
        bad, bad, ActionKind.CORDON, pod, {bad: bad}, bad, True, Verdict.ASK, DecisionReason.COOLDOWN,
        ActionStatus.WAITING_APPROVAL, T0,
    )  # fmt: skip
    calibration = Calibration(pod, bad, 1.0, 1.0, 1.0, 1, 1, 1.0, 1, "measured", bad, bad, bad, T0)
    commit = CycleCommit(
        CycleRecord(f"c{bad}", T0, 0.1, 1, 1, 1, 1, 1, 1, (bad,)),
        alerts=(alert,),
        incidents=(incident,),
        plan=Plan((), (NoRecommendation(pod, NoPlanReason.NO_VALUES, T0),), (calibration,)),
        actions=(action,),
        messages=(Message(bad, bad, NotifyReason.OPENED, None, bad, bad, bad, T0),),
        audit=(AuditRecord(T0, AuditEvent.ALERT_CHANGED, f"{bad} {pod}", bad, bad, bad, {"text": bad}),),
        topology=Topology.build([(good, pod)], (), {pod: {"zone": bad}}, T0),
    )
    for _ in range(2):
        state.commit(commit)
    assert state.alert(fingerprint) == alert
    assert state.incident(bad) == incident
    assert state.actions(incident=bad) == (action,)
    assert len(state.messages(incident=bad)) == 1
    assert state.audit()[0].detail == {"text": bad}
    assert state.baselines(pod) == (calibration,)
    assert state.topology().labels == {pod: {"zone": bad}}
    state.commit(CycleCommit(CycleRecord("c", T0 + MINUTE, 0.1, 1, 1, 1, 1, 1, 1), topology=Topology.build([], [good])))
    past = state.topology(T0)
    assert past.edges == ((good, pod),)
    assert len(past.label(pod, "zone")) == len(bad)
    assert state.decide_action(bad, True, bad, T0)
    assert state.claim_actions(bad, T0, MINUTE)


def test_bad_text_from_ingest_endpoints_and_operators_is_stored(state: SqlStateStore, store_url: str, bad: str) -> None:
    pod, _ = pods(bad)
    url = urls_of(store_url)[0]
    state.add_silence(Silence(bad, bad, pod, T0 + MINUTE, bad, bad))
    assert state.remove_silence(bad)
    state.save_drill(Drill(bad, bad, pod, 1, T0, T0 + MINUTE, bad))
    assert state.drills()[0].id == bad
    verdict = Feedback(bad, T0, bad, pod, Priority.P1, Usefulness.WRONG_CAUSE, bad, T0, bad, bad, bad)
    assert (state.save_feedback([verdict]), state.save_feedback([verdict])) == (1, 0)
    assert state.feedback(rule=bad, incident=bad) == (verdict,)
    work = FollowUp(bad, bad, bad, bad, T0.date(), bad, T0, bad, pod)
    state.save_follow_up(work, bad, T0)
    assert state.follow_ups(incident=bad) == (work,)
    override = ShiftOverride(bad, bad, bad, T0, T0 + MINUTE, bad, T0)
    state.add_shift_override(override)
    assert state.shift_overrides(T0) == (override,)
    state.save_calendar(StoredCalendar(bad, bad, T0, bad))
    assert len(state.calendars()) == 1
    press = ButtonPress(bad, bad, T0, silences=(Silence(bad, bad, pod, T0 + MINUTE, bad, bad),))
    assert [state.press_button(press) for _ in range(2)] == [PressResult.DONE, PressResult.USED]
    memory = DetectorState(1, (pod,), {"level": np.array([1.0])})
    state.save_detector_states({"forest": memory}, T0)
    assert state.load_detector_states()["forest"].entities == (pod,)
    ingest_buffer = open_ingest_buffer(url)
    assert ingest_buffer.put(PushedBlock("otlp", bad, T0, 1, b"x"), 100)
    ingest_buffer.count({bad: 2})
    ingest_buffer.count({bad: 3})
    assert list(ingest_buffer.counted().values()) == [5]
    ingest_buffer.close()
    change_log = open_change_log(url)
    assert change_log.append_changes([Change(bad, bad, pod, T0, bad, actor=bad)] * 2) == 1
    change_log.append_ends([ChangeEnd(bad, ChangeStatus.FAILED, T0)])
    (change,) = change_log.changes()
    assert (change.id, change.ended) == (bad, ChangeStatus.FAILED)
    change_log.save_startups([Startup(bad, pod, T0, node=bad)])
    assert change_log.startups()[0].pod == pod
    event = Event("e", EventKind.LOG, pod, T0, bad, bad, {bad: bad}, bad)
    assert change_log.post([event, event], T0) == 1
    assert change_log.posted(0, T0)[0][1] == event
    change_log.put_document("audit", {"found": bad}, T0)
    assert change_log.document("audit") == (T0, {"found": bad})
    change_log.close()
