"""The degrade ladder: entered late, left early, one level at a time, and never on doubt."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, Hypothesis, Verdict
from remediation.decide import degrade
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.service_load import LoadSample, ServiceLoad
from remediation.procedures import files
from remediation.procedures.bundle import Procedures
from remediation.procedures.degrade_ladder import Ladders, ServiceOptions

CYCLE = timedelta(seconds=15)
CLASSES = frozenset({"vip", "standard", "offline"})
DEPTH = {0: 0} | {level.number: depth for depth, level in enumerate(files.ladder().levels)}  # without the prompt limit
CHANGES = (ActionKind.DEGRADE_SERVICE, ActionKind.RESTORE_SERVICE)


def procedures(**options: object) -> Procedures:
    chat = ServiceOptions(**{"classes": CLASSES, "fallback_model": "chat-8b", **options})  # type: ignore[arg-type]
    return Procedures(Ladders(files.ladder(), services={"chat": chat}))


class Surge:
    """A service whose queue follows its load, and the ladder that acts on it."""

    def __init__(self, fleet, **options) -> None:
        self.fleet, self.procedures = fleet, procedures(**options)
        self.samples: list[LoadSample] = []
        self.waiting = 0.0
        self.obeys = True
        fleet.facts = replace(fleet.facts, ready_replicas={fleet.service: 8}, needed_replicas={})
        fleet.policy = replace(fleet.policy, ceilings={fleet.service.name: 10})  # too few for its load

    def level(self) -> int:
        performed = [action for action in self.changes() if action.status is ActionStatus.DONE]
        return performed[-1].params["level"] if performed else 0

    def changes(self) -> list[Action]:
        return [action for action in self.fleet.actions.values() if action.kind in CHANGES]

    def cycle(self, offered: float, capacity: float = 80.0) -> list[Action]:
        """One cycle with an offered load and a capacity at level 0, in requests/s."""
        work = offered * (files.ladder().load_ratio(self.level()) if self.obeys else 1.0)
        self.waiting = max(0.0, self.waiting + (work - capacity) * CYCLE.total_seconds())
        served = min(work, capacity) if self.waiting == 0 else capacity
        self.samples.append(LoadSample(self.fleet.now, self.waiting, served, 0.0, offered - work))
        load = ServiceLoad(tuple(self.samples[-24:]))
        self.fleet.facts = replace(self.fleet.facts, load={self.fleet.service: load})
        before = set(self.fleet.actions)
        decisions = self.fleet.decide(procedures=self.procedures)
        for action in decisions.actions:
            self.fleet.actions[action.id] = action
        for session in decisions.sessions:
            self.fleet.sessions[session.id] = session
        self.fleet.perform()
        self.fleet.now += CYCLE
        return [a for a in self.changes() if a.id not in before]

    def run(self, cycles: int, offered: float, capacity: float = 80.0) -> list[int]:
        """The levels of these cycles."""
        result = []
        for _ in range(cycles):
            self.cycle(offered, capacity)
            result.append(self.level())
        return result


@pytest.fixture
def surge(fleet):
    return Surge(fleet)


def opened(surge, fault="traffic-surge", **options):
    surge.run(8, 60.0)
    return surge.fleet.break_(fault, surge.fleet.service, **options)


def test_a_surge_descends_one_level_at_a_time_and_returns_by_itself(surge):
    incident = opened(surge)
    surge.obeys = False  # nothing helps: the ladder goes to its end
    levels = surge.run(60, 110.0)
    assert {DEPTH[second] - DEPTH[first] for first, second in pairwise([0, *levels])} <= {0, 1}
    assert levels[-1] == 6
    assert surge.changes()[-1].params["reject"] == ["offline", "standard"]
    surge.obeys, surge.waiting = True, 0.0
    surge.fleet.mend(surge.fleet.service, resolve=incident)
    levels = surge.run(120, 40.0)
    assert levels[-1] == 0
    assert {DEPTH[second] - DEPTH[first] for first, second in pairwise(levels)} <= {0, -1}
    surge.run(2, 40.0)
    assert all(session.closed_at for session in surge.fleet.sessions.values())


def test_an_incident_is_unfinished_while_its_load_is_shed(surge):
    incident = opened(surge)
    known = surge.fleet.incidents.values()
    assert degrade.unfinished(surge.fleet.actions.values(), known) == frozenset()
    surge.run(20, 110.0)
    assert degrade.unfinished(surge.fleet.actions.values(), known) == {incident}
    surge.fleet.mend(surge.fleet.service, resolve=incident)
    surge.run(160, 40.0)
    assert degrade.unfinished(surge.fleet.actions.values(), known) == frozenset()


def test_the_incident_of_another_fault_ends_although_a_service_is_degraded(surge):
    """A lost cluster ends before the standby, which is degraded for it, is relieved."""
    incident = opened(surge)
    surge.run(20, 110.0)
    lost = replace(surge.fleet.incidents[incident], hypotheses=(Hypothesis(surge.fleet.service, "cluster-lost", 0.9),))
    assert degrade.unfinished(surge.fleet.actions.values(), [lost]) == frozenset()


def test_changes_keep_the_dwell_and_carry_the_content_of_the_level(surge):
    opened(surge)
    surge.obeys = False
    surge.run(40, 110.0)
    changes = surge.changes()
    for first, second in pairwise(changes):
        assert second.decided_at - first.decided_at >= files.ladder().dwell
    assert [action.params["name"] for action in changes][:2] == ["pause_offline", "defer_low_priority"]
    assert changes[2].params["max_output_tokens"] == 192
    assert changes[0].params["capacity_per_replica"] == 10.0
    assert {action.params["session"] for action in changes} == {changes[0].session}


def test_scaling_that_covers_the_load_within_the_patience_is_enough(fleet):
    """The replicas of the newest scale-out start within a minute, and then drain the queue."""
    surge = Surge(fleet, startup=timedelta(seconds=60))
    opened(surge)
    assert surge.run(4, 85.0)[-1] == 0
    assert [a for a in fleet.actions.values() if a.kind is ActionKind.SCALE], "it was scaled"


@pytest.mark.parametrize(("lead", "level"), [(timedelta(seconds=60), 0), (timedelta(minutes=5), 2)])
def test_the_measured_lead_time_of_the_plan_comes_before_the_configured_one(fleet, lead, level):
    surge = Surge(fleet, startup=timedelta(minutes=6) - lead)
    fleet.recommend(8, 8)
    (planned,) = fleet.plan.recommendations
    fleet.plan = replace(fleet.plan, recommendations=(replace(planned, lead_time=lead),))
    opened(surge)
    assert surge.run(4, 85.0)[-1] == level


def test_a_queue_that_drains_by_itself_is_left_alone(surge):
    surge.waiting = 4000.0
    opened(surge)
    assert surge.waiting > 1000.0
    assert set(surge.run(10, 60.0)) == {0}


@pytest.mark.parametrize("fault", ["engine-hung", "traffic-skew", "retry-storm", "gateway-fault"])
def test_another_fault_never_degrades(surge, fault):
    opened(surge, fault)
    assert set(surge.run(30, 110.0)) == {0}


def test_without_an_incident_nothing_is_degraded(surge):
    assert set(surge.run(40, 110.0)) == {0}


def test_untrusted_values_neither_enter_nor_leave_a_level(surge):
    service = surge.fleet.service
    opened(surge)
    surge.fleet.facts = replace(surge.fleet.facts, untrusted=frozenset({service}))
    assert set(surge.run(20, 110.0)) == {0}
    refused = [action for action in surge.changes() if action.status is ActionStatus.REFUSED]
    assert {action.reason for action in refused} == {DecisionReason.VALUES_NOT_TRUSTED}
    surge.fleet.facts = replace(surge.fleet.facts, untrusted=frozenset())
    level = surge.run(20, 110.0)[-1]
    assert level > 0
    surge.fleet.facts = replace(surge.fleet.facts, untrusted=frozenset({service}))
    surge.waiting = 0.0
    assert set(surge.run(40, 20.0)) == {level}


def test_missing_values_keep_the_level(surge):
    opened(surge)
    level = surge.run(20, 110.0)[-1]
    surge.fleet.facts = replace(surge.fleet.facts, load={})
    for _ in range(40):
        surge.fleet.decide(procedures=surge.procedures)
        surge.fleet.now += CYCLE
    assert surge.level() == level


def test_below_autonomy_act_a_level_is_requested_once(make_fleet):
    surge = Surge(make_fleet(autonomy="approve"))
    opened(surge)
    surge.run(30, 110.0)
    (waiting,) = surge.changes()
    assert (waiting.status, waiting.reason) == (ActionStatus.WAITING_APPROVAL, DecisionReason.AUTONOMY_APPROVE)


def test_a_request_that_nobody_answered_is_not_repeated(make_fleet):
    """Its level counts: the capacity that it carries is measured anew in each cycle."""
    surge = Surge(make_fleet(autonomy="approve"))
    opened(surge)
    for offered in (110.0, 130.0, 120.0, 140.0):
        surge.run(80, offered)
    (expired,) = surge.changes()
    assert (expired.status, expired.reason) == (ActionStatus.REFUSED, DecisionReason.EXPIRED)
    surge.fleet.policy = replace(surge.fleet.policy, autonomy=AutonomyLevels(Autonomy.ACT))
    surge.cycle(150.0)
    assert surge.level() == 2, "with more autonomy it needs no answer"
    assert surge.changes()[-1].params != expired.params, "the measured values are those of its own time"


def test_a_dry_run_shows_the_first_level_once(make_fleet):
    surge = Surge(make_fleet(dry_run=True))
    opened(surge)
    surge.run(30, 110.0)
    (shown,) = surge.changes()
    assert (shown.status, shown.params["level"]) == (ActionStatus.DRY_RUN, 2)


def test_stepping_up_is_not_blocked_by_the_breaker(surge):
    incident = opened(surge)
    assert surge.run(20, 110.0)[-1] > 0
    surge.fleet.policy = replace(surge.fleet.policy, max_actions_per_hour=0, autonomy=AutonomyLevels(Autonomy.OBSERVE))
    surge.fleet.mend(surge.fleet.service, resolve=incident)
    surge.waiting = 0.0
    assert surge.run(120, 20.0)[-1] == 0
    restored = [action for action in surge.changes() if action.kind is ActionKind.RESTORE_SERVICE]
    assert {action.decision for action in restored} == {Verdict.ALLOWED}


def test_a_pause_holds_the_ladder(surge):
    opened(surge)
    surge.fleet.facts = replace(surge.fleet.facts, paused=True)
    surge.run(20, 110.0)
    assert surge.level() == 0
    assert {action.reason for action in surge.changes()} == {DecisionReason.PAUSED}


def test_a_level_stays_while_the_load_does_not_fit_without_it(surge):
    """The queue is empty because of the level: the offered load decides."""
    opened(surge)
    level = surge.run(30, 95.0)[-1]
    assert level > 0
    surge.waiting = 0.0
    assert set(surge.run(80, 95.0)) == {level}
    assert surge.run(80, 50.0)[-1] == 0


def test_a_restart_of_the_engine_continues_at_the_level(surge):
    """Nothing but the stored actions and sessions is carried over."""
    opened(surge)
    level = surge.run(10, 110.0)[-1]
    again = Surge(surge.fleet)
    again.samples, again.waiting = surge.samples, surge.waiting
    assert again.level() == level > 0
    levels = again.run(20, 110.0)
    assert levels[0] in (level, level + 1)


def test_a_service_whose_ladder_was_switched_off_returns_to_normal(surge):
    opened(surge)
    assert surge.run(20, 110.0)[-1] > 1
    surge.procedures = procedures(enabled=False)
    assert surge.run(2, 110.0)[-1] == 0


def test_a_rejected_level_is_not_proposed_again(surge):
    opened(surge)
    surge.fleet.policy = replace(surge.fleet.policy, autonomy=AutonomyLevels(Autonomy.APPROVE))
    surge.run(10, 110.0)
    (waiting,) = surge.changes()
    rejected = replace(waiting, status=ActionStatus.REFUSED, reason=DecisionReason.REJECTED_BY_HAND)
    surge.fleet.actions[waiting.id] = rejected
    surge.fleet.policy = replace(surge.fleet.policy, autonomy=AutonomyLevels(Autonomy.ACT))
    surge.run(20, 110.0)
    assert surge.changes() == [rejected]


def test_clients_that_mark_no_class_only_get_shorter_answers(fleet):
    surge = Surge(fleet, classes=frozenset(), fallback_model=None)
    opened(surge)
    surge.obeys = False
    surge.run(60, 110.0)
    names = [action.params["name"] for action in surge.changes()]
    assert names == ["cap_output", "smaller_model"]
    assert not any(action.params["reject"] for action in surge.changes())


LOADS = st.lists(st.tuples(st.floats(10.0, 200.0), st.integers(1, 30)), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(loads=LOADS, obeys=st.booleans())
def test_a_flapping_load_never_makes_the_ladder_oscillate(make_fleet, loads, obeys):
    """Whatever the load does: one level at a time, with the dwell, and returns become rarer with each one."""
    surge = Surge(make_fleet())
    opened(surge)
    surge.obeys = obeys
    for offered, cycles in loads:
        surge.run(cycles, offered)
    ladder, changes = files.ladder(), surge.changes()
    numbers = [0, *(DEPTH[action.params["level"]] for action in changes)]
    assert all(abs(second - first) == 1 for first, second in pairwise(numbers))
    for first, second in pairwise(changes):
        assert second.decided_at - first.decided_at >= ladder.dwell
        if second.kind is ActionKind.RESTORE_SERVICE:
            level = ladder.level(second.params["previous"])
            hour = [a for a in changes if second.decided_at - a.decided_at < timedelta(hours=1)]
            entries = sum(
                a.kind is ActionKind.DEGRADE_SERVICE
                and a.params["level"] == level.number
                and a.decided_at < second.decided_at
                for a in hour
            )
            waited = second.decided_at - first.decided_at
            assert waited >= min(level.exit_for * 2 ** max(0, entries - 1), ladder.longest_exit)
