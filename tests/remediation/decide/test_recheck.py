"""Guards that are checked again before an intent is performed, minutes or an approval after its decision."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import pytest

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    BreakerState,
    DecisionReason,
    EntityKind,
    EntityRef,
    Verdict,
)
from outrider.topology import Topology
from outrider.vocabulary.time_spans import WeeklySpan
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.limits import FleetFacts, Policy
from remediation.decide.recheck import INTENT_EXPIRES, recheck
from remediation.decide.time_windows import TimeWindow

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
NODES = [EntityRef("c", EntityKind.NODE, None, f"node-{n}") for n in range(10)]
SERVICE = EntityRef("c", EntityKind.SERVICE, None, "chat")
POLICY = Policy(autonomy=AutonomyLevels(Autonomy.ACT), dry_run=False)
WELL = FleetFacts(nodes_total=10, ready_replicas={SERVICE: 6}, needed_replicas={SERVICE: 4})


def intent(kind, target, **params):
    return Action(
        id="a", session="s", kind=kind, target=target, params=params, because="i", dry_run=False,
        decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS, status=ActionStatus.CLAIMED, decided_at=NOW,
    )  # fmt: skip


CORDON = intent(ActionKind.CORDON, NODES[0])
UNCORDON = intent(ActionKind.UNCORDON, NODES[0])
SCALE_IN = intent(ActionKind.SCALE, SERVICE, replicas=5, current=6)


@pytest.mark.parametrize("action", [CORDON, UNCORDON, SCALE_IN, intent(ActionKind.RESTART_POD, NODES[0])])
def test_an_allowed_action_stays_allowed_while_nothing_changed(action):
    assert recheck(action, POLICY, WELL, NOW) is None


@pytest.mark.parametrize("action", [CORDON, UNCORDON, SCALE_IN])
def test_a_blind_monitor_and_a_pause_hold_everything(action):
    assert recheck(action, POLICY, replace(WELL, blind=True), NOW) is DecisionReason.MONITOR_BLIND
    assert recheck(action, POLICY, replace(WELL, paused=True), NOW) is DecisionReason.PAUSED


def test_values_lost_since_hold_a_cordon_and_a_scale_in_but_no_undo():
    facts = replace(WELL, untrusted=frozenset({NODES[0], SERVICE}))
    assert recheck(CORDON, POLICY, facts, NOW) is DecisionReason.VALUES_NOT_TRUSTED
    assert recheck(SCALE_IN, POLICY, facts, NOW) is DecisionReason.VALUES_NOT_TRUSTED
    assert recheck(UNCORDON, POLICY, facts, NOW) is None


def test_the_breaker_counts_currently_cordoned_nodes():
    facts = replace(WELL, nodes_cordoned_by_us=frozenset(NODES[1:3]))
    assert recheck(CORDON, POLICY, facts, NOW) is DecisionReason.TOO_MANY_NODES
    approved = replace(CORDON, approved_by="ann")
    assert recheck(approved, POLICY, facts, NOW) is DecisionReason.TOO_MANY_NODES, "an approval lifts no breaker"
    assert recheck(UNCORDON, POLICY, facts, NOW) is None


def test_a_scale_in_below_the_current_load_is_held():
    assert recheck(SCALE_IN, POLICY, replace(WELL, needed_replicas={SERVICE: 6}), NOW) is DecisionReason.NO_HEADROOM
    assert recheck(SCALE_IN, POLICY, replace(WELL, needed_replicas={}), NOW) is DecisionReason.VALUES_NOT_TRUSTED


def test_an_action_without_approval_expires():
    late = NOW + INTENT_EXPIRES + timedelta(seconds=1)
    assert recheck(CORDON, POLICY, WELL, late) is DecisionReason.EXPIRED
    assert recheck(replace(CORDON, approved_by="ann"), POLICY, WELL, late) is None
    assert recheck(UNCORDON, POLICY, WELL, late) is None


def test_an_action_that_has_begun_in_time_does_not_expire_between_its_attempts():
    begun = NOW + INTENT_EXPIRES / 2
    reboot = replace(intent(ActionKind.REBOOT_NODE, NODES[0]), started_at=begun)
    assert recheck(reboot, POLICY, WELL, NOW + 2 * INTENT_EXPIRES) is None
    late = replace(reboot, started_at=NOW + INTENT_EXPIRES + timedelta(seconds=1))
    assert recheck(late, POLICY, WELL, NOW + 2 * INTENT_EXPIRES) is DecisionReason.EXPIRED


OPEN = BreakerState(opened_at=NOW, unsuccessful=4, performed=5)
ALWAYS = TimeWindow("inventory", UTC, WeeklySpan(time(0), time(0)))
NEVER = TimeWindow("nightly", UTC, WeeklySpan(time(0), time(0), frozenset()))
RESTART = intent(ActionKind.RESTART_POD, NODES[0])


@pytest.mark.parametrize(
    ("policy", "facts", "reason"),
    [
        (POLICY, replace(WELL, killed=True), DecisionReason.KILL_SWITCH),
        (POLICY, replace(WELL, breaker=OPEN), DecisionReason.BREAKER_OPEN),
        (replace(POLICY, freezes=(ALWAYS,)), WELL, DecisionReason.FREEZE),
        (replace(POLICY, maintenance_windows=(NEVER,)), WELL, DecisionReason.NOT_IN_MAINTENANCE_WINDOW),
        (replace(POLICY, autonomy=AutonomyLevels(Autonomy.OBSERVE)), WELL, DecisionReason.AUTONOMY_OBSERVE),
    ],
)
def test_limits_that_came_after_the_decision_or_the_approval_hold_it(policy, facts, reason):
    assert recheck(RESTART, policy, facts, NOW) is reason
    assert recheck(replace(RESTART, approved_by="ann"), policy, facts, NOW) is reason


@pytest.mark.parametrize("level", [Autonomy.RECOMMEND, Autonomy.APPROVE])
def test_a_lowered_level_holds_what_nobody_approved(level):
    policy = replace(POLICY, autonomy=AutonomyLevels(level))
    assert recheck(RESTART, policy, WELL, NOW) is DecisionReason.AUTONOMY_APPROVE
    assert recheck(replace(RESTART, approved_by="ann"), policy, WELL, NOW) is None


def test_a_drain_that_began_in_its_window_may_end_after_it_but_not_in_a_freeze():
    drain = replace(intent(ActionKind.DRAIN, NODES[0]), detail="2 pods left")
    closed = replace(POLICY, maintenance_windows=(NEVER,))
    assert recheck(drain, closed, WELL, NOW) is None
    assert recheck(drain, replace(closed, freezes=(ALWAYS,)), WELL, NOW) is DecisionReason.FREEZE


def test_a_drain_whose_last_pod_has_left_the_service_ends_under_the_level_it_began_with():
    """A drained node has no service any more, so only the general level would be known."""
    policy = replace(POLICY, autonomy=AutonomyLevels(Autonomy.APPROVE, services={"chat": Autonomy.ACT}))
    drain = intent(ActionKind.DRAIN, NODES[0])
    serving = replace(WELL, topology=Topology.build([(NODES[0], SERVICE)]))
    assert recheck(drain, policy, serving, NOW) is None
    begun = replace(drain, detail="1 pod is evicted", started_at=NOW)
    assert recheck(begun, policy, WELL, NOW) is None
    assert recheck(drain, policy, WELL, NOW) is DecisionReason.AUTONOMY_APPROVE
    lowered = replace(policy, autonomy=AutonomyLevels(Autonomy.ACT, services={"chat": Autonomy.OBSERVE}))
    assert recheck(begun, lowered, serving, NOW) is DecisionReason.AUTONOMY_OBSERVE


def test_a_trial_that_failed_ends_under_every_level_and_breaker():
    """The diversion was allowed before; a replica that fails on trial must not keep its share of the requests."""
    replica = EntityRef("c", EntityKind.REPLICA, "llm", "chat-0")
    again = replace(intent(ActionKind.SHIFT_TRAFFIC, replica, weight=0.0), reason=DecisionReason.FAILED_AGAIN)
    policy = replace(POLICY, autonomy=AutonomyLevels(Autonomy.APPROVE), freezes=(ALWAYS,))
    assert recheck(again, policy, replace(WELL, breaker=OPEN), NOW) is None
    assert recheck(again, policy, replace(WELL, killed=True), NOW) is DecisionReason.KILL_SWITCH
