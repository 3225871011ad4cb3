"""Undo passes every limit: only a pause, the kill switch and lost monitoring hold it (safety rules 6 and 7)."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model import ActionKind, ActionStatus, BreakerState, DecisionReason, EntityKind, EntityRef, Verdict
from outrider.vocabulary.time_spans import WeeklySpan
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.history import UNDO
from remediation.decide.limits import BreakerLimits, FleetFacts, Policy
from remediation.decide.recheck import recheck
from remediation.decide.time_windows import TimeWindow
from tests.remediation.conftest import Fleet
from tests.remediation.decide.test_recheck import intent

ALWAYS = TimeWindow("always", UTC, WeeklySpan(time(0), time(0)))
NEVER = TimeWindow("never", UTC, WeeklySpan(time(0), time(0), frozenset()))
KINDS = st.frozensets(st.sampled_from(list(ActionKind)))
NODE = EntityRef("c", EntityKind.NODE, None, "node-0")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)

POLICIES = st.builds(
    Policy,
    autonomy=st.builds(AutonomyLevels, st.sampled_from(list(Autonomy))),
    dry_run=st.just(False),
    maintenance_windows=st.sampled_from([(), (NEVER,)]),
    freezes=st.sampled_from([(), (ALWAYS,)]),
    disruptive=KINDS,
    ask_for=KINDS,
    two_person=KINDS,
    approval_expires=st.sampled_from([timedelta(seconds=1), timedelta(hours=1)]),
    breaker=st.sampled_from([BreakerLimits(), BreakerLimits(max_unsuccessful=0, max_unsuccessful_ratio=0.0)]),
    max_actions_per_hour=st.sampled_from([0, 20]),
    max_cordoned_nodes=st.sampled_from([0, 2]),
    min_confidence=st.sampled_from([0.0, 1.0]),
)
BREAKERS = st.sampled_from([BreakerState(), BreakerState(opened_at=NOW, unsuccessful=9, performed=9)])


@given(policy=POLICIES, breaker=BREAKERS)
def test_a_recovered_node_is_uncordoned_under_every_policy(policy, breaker):
    fleet = Fleet()
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    assert fleet.sessions, "the node is cordoned"
    fleet.policy, fleet.facts = policy, replace(fleet.facts, breaker=breaker)
    fleet.mend(fleet.gpus[0], resolve=incident)
    (undo,) = fleet.cycle(perform=False)
    assert (undo.kind, undo.status, undo.decision) == (ActionKind.UNCORDON, ActionStatus.INTENDED, Verdict.ALLOWED)
    assert recheck(undo, policy, fleet.facts_now(), fleet.now) is None


@given(policy=POLICIES, breaker=BREAKERS, kind=st.sampled_from(sorted(UNDO)), age=st.integers(0, 10_000))
def test_an_undo_is_performed_under_every_policy(policy, breaker, kind, age):
    facts = FleetFacts(breaker=breaker)
    later = intent(kind, NODE).decided_at + timedelta(minutes=age)
    assert recheck(intent(kind, NODE), policy, facts, later) is None
    for held, reason in (
        (replace(facts, paused=True), DecisionReason.PAUSED),
        (replace(facts, killed=True), DecisionReason.KILL_SWITCH),
        (replace(facts, blind=True), DecisionReason.MONITOR_BLIND),
    ):
        assert recheck(intent(kind, NODE), policy, held, later) is reason


@pytest.mark.parametrize("held", ["paused", "killed", "blind"])
def test_a_rollout_that_we_paused_is_resumed_after_a_pause_of_remediation(held):
    """The session stays open until its rollout goes on, although the undo was refused in between."""
    fleet = Fleet()
    incident = fleet.break_("bad-rollout", fleet.service)
    (pause, *_) = fleet.cycle()
    assert pause.kind is ActionKind.PAUSE_ROLLOUT
    fleet.facts = replace(fleet.facts, **{held: True})
    fleet.mend(fleet.service, resolve=incident)
    fleet.run(5)
    assert [session.closed_at for session in fleet.sessions.values()] == [None]
    fleet.facts = replace(fleet.facts, **{held: False})
    kinds = [action.kind for action in fleet.run(3) if action.status is ActionStatus.INTENDED]
    assert ActionKind.RESUME_ROLLOUT in kinds
    assert all(session.closed_at for session in fleet.sessions.values())


def test_an_engine_that_we_put_to_sleep_wakes_under_every_limit():
    """Waking is a repair elsewhere, so its kind alone does not pass the limits."""
    replica = EntityRef("c", EntityKind.REPLICA, "llm", "chat-0")
    wake = intent(ActionKind.WAKE_ENGINE, replica)
    policy = Policy(autonomy=AutonomyLevels(Autonomy.OBSERVE), freezes=(ALWAYS,))
    facts = FleetFacts(breaker=BreakerState(opened_at=NOW))
    assert recheck(replace(wake, reason=DecisionReason.RECOVERED), policy, facts, wake.decided_at) is None
    assert recheck(wake, policy, facts, wake.decided_at) is DecisionReason.BREAKER_OPEN


def test_an_undo_that_always_fails_is_tried_less_and_less_often():
    fleet = Fleet()
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.mend(fleet.gpus[0], resolve=incident)
    tried = []
    for _ in range(240):  # an hour
        tried += [action.decided_at for action in fleet.cycle(perform=False)]
        fleet.perform(status=ActionStatus.FAILED)
    waits = [later - earlier for earlier, later in pairwise(tried)]
    assert waits[0] == timedelta(seconds=15)
    assert waits == sorted(waits)
    assert fleet.policy.cooldown <= waits[-1] <= fleet.policy.cooldown + timedelta(minutes=1)
    assert [session.closed_at for session in fleet.sessions.values()] == [None]
