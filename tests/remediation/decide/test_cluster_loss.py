"""A lost cluster: switched once it is confirmed, verified, and returned step by step."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    DecisionReason,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Priority,
)
from outrider.topology import Topology
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.guards import held_by
from remediation.decide.limits import FleetFacts
from remediation.decide.policy import preview
from remediation.decide.recheck import recheck
from remediation.decide.service_entry import ServiceEntry
from remediation.playbooks.files import packaged
from remediation.procedures import files
from remediation.procedures.bundle import Procedures
from remediation.procedures.degrade_ladder import Ladders, ServiceOptions
from store.state import state_rows

CYCLE = timedelta(seconds=15)
HOME, STANDBY = "home", "standby"
NAMES = ("chat", "code")
OPTIONS = ServiceOptions(classes=frozenset({"vip", "standard", "offline"}))


def service(cluster: str, name: str) -> EntityRef:
    return EntityRef(cluster, EntityKind.SERVICE, "llm", name)


class World:
    """Two clusters with the same services, their probes, and the share of the home cluster."""

    def __init__(self, fleet) -> None:
        self.fleet = fleet
        edges = [
            (EntityRef(cluster, EntityKind.REPLICA, "llm", f"{name}-{number}"), service(cluster, name))
            for cluster in (HOME, STANDBY)
            for name in NAMES
            for number in range(4)
        ]
        fleet.topology = Topology.build(edges)
        self.procedures = Procedures(Ladders(files.ladder(), services=dict.fromkeys(NAMES, OPTIONS)), files.switch())
        self.up = {HOME: True, STANDBY: True}
        self.blind = self.unprobed = self.standby_serves = False
        self.needed: dict[EntityRef, int] = {}
        self.ready = dict.fromkeys(((cluster, name) for cluster in (HOME, STANDBY) for name in NAMES), 4)
        self.history: list[tuple[object, dict[str, bool]]] = []
        self.success = {HOME: 1.0, STANDBY: 1.0}
        self.incident = ""
        for _ in range(8):
            self.cycle()

    def entry(self, cluster: str) -> ServiceEntry:
        recent = [(at, up[cluster]) for at, up in self.history[-40:]]
        return ServiceEntry(
            probes=() if self.unprobed else tuple(recent),
            success=tuple((at, self.success[cluster]) for at, up in recent[-8:] if up),
            viewed=self.up[cluster] and not self.blind,
            load=50.0 if cluster == HOME or self.standby_serves or self.share("chat") < 1.0 else 0.1,
        )

    def share(self, name: str) -> float:
        """The home cluster's share."""
        done = self.switches(name)
        if not done:
            return 1.0
        share = done[-1].params["share"]
        return share if done[-1].params["cluster"] == HOME else 1.0 - share

    def switches(self, name: str = "chat") -> list[Action]:
        known = [a for a in self.fleet.actions.values() if a.kind is ActionKind.SWITCH_CLUSTER]
        return [a for a in known if a.status is ActionStatus.DONE and a.target == service(HOME, name)]

    def decide(self):
        entries = {service(c, name): self.entry(c) for c in (HOME, STANDBY) for name in NAMES}
        ready = {service(c, name): count if self.up[c] else 0 for (c, name), count in self.ready.items()}
        self.fleet.facts = replace(self.fleet.facts, entries=entries, ready_replicas=ready, needed_replicas=self.needed)
        return self.fleet.decide(procedures=self.procedures)

    def cycle(self, *, perform: bool = True):
        self.history.append((self.fleet.now, dict(self.up)))
        decisions = self.decide()
        for action in decisions.actions:
            self.fleet.actions[action.id] = action
        for session in decisions.sessions:
            self.fleet.sessions[session.id] = session
        if perform:
            self.fleet.perform()
        self.fleet.now += CYCLE
        return decisions

    def run(self, minutes: float):
        return [self.cycle() for _ in range(round(minutes * 4))]

    def lose(self, *, cycles: int = 4):
        """The home cluster fails; the incident names it, as the detector does after a minute."""
        self.up[HOME] = False
        for _ in range(cycles):
            self.cycle()
        whole = EntityRef(HOME, EntityKind.CLUSTER, None, HOME)
        self.incident = f"inc-{len(self.fleet.incidents)}"
        now = self.fleet.now
        self.fleet.incidents[self.incident] = Incident(
            self.incident, Layer.PLATFORM, Priority.P0, now, (Hypothesis(whole, "cluster-lost", 0.95),),
            (), (), (), now, services=NAMES,
        )  # fmt: skip

    def recover(self):
        self.up[HOME] = True
        known = self.fleet.incidents[self.incident]
        self.fleet.incidents[self.incident] = replace(known, resolved_at=self.fleet.now)


@pytest.fixture
def world(fleet):
    fleet.facts = FleetFacts()
    return World(fleet)


def steps(world, name="chat"):
    return [(a.params["cluster"], a.params["share"]) for a in world.switches(name)]


def test_every_service_moves_at_once_and_returns_in_steps(world):
    world.lose()
    world.run(1)
    assert [steps(world, name) for name in NAMES] == [[(STANDBY, 1.0)]] * 2
    world.run(10)
    assert len(world.switches()) == 1, "it stays while the cluster is lost"
    world.recover()
    world.run(40)
    assert steps(world) == [(STANDBY, 1.0), (HOME, 0.01), (HOME, 0.1), (HOME, 0.5), (HOME, 1.0)]
    times = [action.decided_at for action in world.switches()]
    assert all(later - earlier >= files.switch().step_for for earlier, later in pairwise(times[1:]))
    assert all(session.closed_at for session in world.fleet.sessions.values())


def test_the_return_waits_until_the_cluster_is_healthy_for_long_enough(world):
    world.lose()
    world.run(1)
    world.recover()
    back = world.fleet.now
    world.run(20)
    first = next(action for action in world.switches() if action.params.get("fail_back"))
    assert first.decided_at - back >= files.switch().healthy_for - CYCLE


def test_a_failed_step_sends_all_traffic_back_to_the_standby_and_is_retried_later(world):
    world.lose()
    world.run(1)
    world.recover()
    while steps(world)[-1] != (HOME, 0.1):
        world.cycle()
    world.success[HOME] = 0.5
    world.run(2)
    assert steps(world)[-1] == (HOME, 0.0)
    failed = world.switches()[-1].decided_at
    world.success[HOME] = 1.0
    world.run(30)
    later = next(action for action in world.switches() if action.decided_at > failed)
    assert later.params["share"] == 0.01
    assert later.decided_at - failed >= files.switch().retry_after


def test_a_blind_monitor_is_not_a_lost_cluster(world):
    """Our view of every cluster is gone, and probes fail: nothing outside proves that it is the cluster."""
    world.blind = True
    world.up[STANDBY] = False
    world.lose()
    world.run(5)
    assert world.switches() == []


def test_probes_that_succeed_contradict_the_loss(world):
    world.lose()
    world.up[HOME] = True
    world.run(3)
    assert world.switches() == []


def test_without_probes_nothing_is_confirmed(world):
    world.unprobed = True
    world.lose()
    world.run(3)
    assert world.switches() == []


def test_blindness_in_the_lost_cluster_holds_neither_decision_nor_dispatch(world):
    world.fleet.facts = replace(world.fleet.facts, blind=True)
    world.lose()
    made = [action for decisions in world.run(0.5) for action in decisions.actions]
    assert {action.reason for action in made} == {DecisionReason.WITHIN_LIMITS}
    assert len(world.switches()) == 1
    facts, now = world.fleet.facts, world.fleet.now
    assert recheck(made[0], world.fleet.policy, facts, now) is None
    seen = replace(facts, entries={entity: replace(entry, viewed=False) for entity, entry in facts.entries.items()})
    assert recheck(made[0], world.fleet.policy, seen, now) is DecisionReason.MONITOR_BLIND


def test_a_lost_cluster_does_not_hold_the_repair_of_another_one(world):
    standby, home = service(STANDBY, "chat"), service(HOME, "chat")
    world.lose()
    world.run(0.5)
    facts = replace(world.fleet.facts, blind=True, blind_clusters=frozenset({HOME}))
    assert held_by(facts, standby) is None
    assert held_by(facts, home) is DecisionReason.MONITOR_BLIND
    both = replace(facts, blind_clusters=frozenset({HOME, STANDBY}))
    assert held_by(both, standby) is DecisionReason.MONITOR_BLIND
    unknown = replace(facts, blind_clusters=frozenset())
    assert held_by(unknown, standby) is DecisionReason.MONITOR_BLIND


def test_lost_sight_of_a_cluster_that_answers_holds_every_cluster(world):
    world.run(0.5)
    facts = replace(world.fleet.facts, blind=True, blind_clusters=frozenset({HOME}))
    assert held_by(facts, service(STANDBY, "chat")) is DecisionReason.MONITOR_BLIND


def test_below_autonomy_act_an_approval_is_requested_once(world):
    world.fleet.policy = replace(world.fleet.policy, autonomy=AutonomyLevels(Autonomy.APPROVE))
    world.lose()
    world.run(5)
    waiting = [a for a in world.fleet.actions.values() if a.status is ActionStatus.WAITING_APPROVAL]
    assert sorted(a.target.name for a in waiting) == sorted(NAMES)
    assert {a.reason for a in waiting} == {DecisionReason.AUTONOMY_APPROVE}
    world.up[HOME] = True
    world.run(1)
    withdrawn = [world.fleet.actions[a.id] for a in waiting]
    assert {a.status for a in withdrawn} == {ActionStatus.CANCELLED}
    assert {a.reason for a in withdrawn} == {DecisionReason.CLUSTER_ANSWERS}


def test_a_request_to_switch_stands_while_only_measurements_change(world):
    world.fleet.policy = replace(world.fleet.policy, autonomy=AutonomyLevels(Autonomy.APPROVE))
    world.procedures = replace(world.procedures, ladders=Ladders())
    world.lose()
    world.run(1)
    waits = {a.id for a in world.fleet.actions.values() if a.status is ActionStatus.WAITING_APPROVAL}
    assert len(waits) == len(NAMES)
    for free in (6, 5, 7):
        world.ready |= {(STANDBY, name): free for name in NAMES}
        assert world.cycle().actions == (), "the standby has room for all: nobody is notified again"
    world.ready |= {(STANDBY, name): 1 for name in NAMES}
    again = world.cycle().actions
    switches = [a.status for a in again if a.kind is ActionKind.SWITCH_CLUSTER]
    assert switches == [ActionStatus.CANCELLED, ActionStatus.WAITING_APPROVAL] * 2, "another share needs an approval"


@pytest.mark.parametrize("level", [Autonomy.OBSERVE, Autonomy.RECOMMEND, Autonomy.APPROVE])
def test_the_return_and_a_retreat_from_it_need_no_approval(world, level):
    """A return is an undo: at 10 % of failing requests nobody must be waited for."""
    world.lose()
    world.run(1)
    kinds = frozenset({ActionKind.SWITCH_CLUSTER})
    world.fleet.policy = replace(world.fleet.policy, autonomy=AutonomyLevels(level), two_person=kinds, ask_for=kinds)
    world.recover()
    while steps(world)[-1] != (HOME, 0.1):
        world.cycle()
        assert world.fleet.now < world.fleet.incidents[world.incident].resolved_at + timedelta(hours=1)
    world.success[HOME] = 0.5
    world.run(2)
    assert steps(world)[-1] == (HOME, 0.0)


def test_a_short_standby_is_degraded_before_the_traffic_arrives(world):
    world.ready[STANDBY, "chat"] = 3
    world.lose()
    decisions = world.cycle()
    kinds = [a.kind for a in decisions.actions if a.target.name == "chat"]
    assert kinds == [ActionKind.DEGRADE_SERVICE, ActionKind.SWITCH_CLUSTER]
    level = next(a for a in decisions.actions if a.kind is ActionKind.DEGRADE_SERVICE)
    assert level.target == service(STANDBY, "chat")
    assert level.params["name"] == "cap_output", "3 of 4 replicas carry 0.6 of the work"
    assert steps(world) == [(STANDBY, 1.0)]
    assert not [a for a in decisions.actions if a.kind is ActionKind.DEGRADE_SERVICE and a.target.name == "code"]


def test_a_standby_that_cannot_carry_all_gets_what_it_can(world):
    world.procedures = replace(world.procedures, ladders=Ladders())
    world.ready[STANDBY, "chat"] = 1
    world.lose()
    world.run(0.5)
    assert steps(world) == [(STANDBY, 0.25)]


def test_a_standby_that_grows_takes_more_while_the_cluster_is_lost(world):
    """Each further share follows only once the standby serves the last one well."""
    world.procedures = replace(world.procedures, ladders=Ladders())
    world.ready[STANDBY, "chat"] = 2
    world.lose()
    world.run(5)
    assert steps(world) == [(STANDBY, 0.5)], "the headroom has not grown"
    world.ready[STANDBY, "chat"] = 3
    world.success[STANDBY] = 0.5
    world.run(3)
    assert steps(world) == [(STANDBY, 0.5)], "a standby that fails gets no more"
    world.success[STANDBY] = 1.0
    world.run(3)
    assert steps(world) == [(STANDBY, 0.5), (STANDBY, 0.75)]
    world.ready[STANDBY, "chat"] = 1
    world.run(5)
    assert steps(world)[-1] == (STANDBY, 0.75), "what was moved stays"
    world.ready[STANDBY, "chat"] = 4
    world.run(3)
    assert steps(world)[-1] == (STANDBY, 1.0)
    times = [action.decided_at for action in world.switches()]
    assert all(later - earlier >= files.switch().verify_for for earlier, later in pairwise(times))
    world.recover()
    world.run(40)
    assert steps(world)[-1] == (HOME, 1.0)


def test_the_share_that_a_standby_has_taken_is_not_its_own_load(world):
    """The plan of the standby counts the moved traffic among its needed replicas."""
    world.procedures = replace(world.procedures, ladders=Ladders())
    world.ready[STANDBY, "chat"] = 4
    world.needed, world.standby_serves = {service(STANDBY, "chat"): 2}, True
    world.lose()
    world.run(3)
    assert steps(world) == [(STANDBY, 0.5)], "two of four replicas are free"
    world.needed = {service(STANDBY, "chat"): 4}
    world.ready[STANDBY, "chat"] = 6
    world.run(3)
    assert steps(world) == [(STANDBY, 0.5), (STANDBY, 1.0)]


@pytest.mark.parametrize(("age", "share"), [(timedelta(minutes=1), 0.5), (timedelta(minutes=16), 1.0)])
def test_a_standby_whose_own_load_falls_takes_more_once_a_plan_counts_the_moved_traffic(world, age, share):
    """A plan from shortly after the switch may lack what moved, and would show too little of its own load."""
    world.procedures = replace(world.procedures, ladders=Ladders())
    standby = service(STANDBY, "chat")
    world.needed, world.standby_serves = {standby: 2}, True
    world.lose()
    world.run(3)
    assert steps(world) == [(STANDBY, 0.5)], "two of four replicas are free"
    world.run(20)
    world.needed = {standby: 2}  # all of it for the moved half: four replicas at home
    (switch,) = world.switches()
    world.fleet.recommend(4, 4, made_at=switch.ended_at + age)
    (entry,) = world.fleet.plan.recommendations
    world.fleet.plan = replace(world.fleet.plan, recommendations=(replace(entry, service=standby),))
    world.run(10)
    assert steps(world)[-1] == (STANDBY, share)


def test_a_cluster_that_answers_again_gets_no_more_of_its_traffic_moved(world):
    world.procedures = replace(world.procedures, ladders=Ladders())
    world.ready[STANDBY, "chat"] = 2
    world.lose()
    world.run(3)
    world.up[HOME] = True
    world.ready[STANDBY, "chat"] = 4
    world.run(4)
    assert steps(world) == [(STANDBY, 0.5)]


def test_a_request_for_a_switch_stands_until_the_headroom_changes_much(world):
    """Small changes of the standby neither repeat the request nor its message, also after it expired."""
    world.fleet.policy = replace(world.fleet.policy, autonomy=AutonomyLevels(Autonomy.APPROVE))
    world.procedures = replace(world.procedures, ladders=Ladders())
    world.lose()
    world.needed = dict.fromkeys([service(HOME, name) for name in NAMES], 40)
    for ready in (20, 21, 20, 21):
        world.ready |= {(STANDBY, name): ready for name in NAMES}
        world.run(12)
    known = [a for a in world.fleet.actions.values() if a.kind is ActionKind.SWITCH_CLUSTER]
    assert sorted(a.target.name for a in known) == sorted(NAMES)
    assert {a.reason for a in known} == {DecisionReason.EXPIRED}
    world.ready |= {(STANDBY, name): 40 for name in NAMES}
    world.run(1)
    waiting = [a for a in world.fleet.actions.values() if a.status is ActionStatus.WAITING_APPROVAL]
    assert {a.params["share"] for a in waiting if a.kind is ActionKind.SWITCH_CLUSTER} == {1.0}


def test_an_unknown_headroom_asks(world):
    world.lose()
    del world.ready[STANDBY, "chat"]
    decisions = world.cycle()
    (action,) = [a for a in decisions.actions if a.target.name == "chat"]
    assert (action.status, action.reason) == (ActionStatus.WAITING_APPROVAL, DecisionReason.NEEDS_APPROVAL)


def test_without_a_standby_nothing_can_be_switched(world):
    world.fleet.topology = Topology.build([e for e in world.fleet.topology.edges if e[0].cluster == HOME])
    world.lose()
    decisions = world.cycle()
    assert not decisions.actions
    assert {line.what for line in decisions.progress[world.incident].lines} == {"cluster.no_standby"}


def test_the_progress_follows_the_states(world):
    world.lose()
    seen = [decisions.progress[world.incident].state for decisions in world.run(2)]
    assert list(dict.fromkeys(seen)) == ["switching", "verifying", "verified"]
    world.up[STANDBY] = False
    seen = [decisions.progress[world.incident].state for decisions in world.run(3)]
    assert seen[-1] == "failing"
    assert world.cycle().progress[world.incident].every == timedelta(minutes=15)


def test_a_restart_in_the_middle_of_the_return_continues(world):
    world.lose()
    world.run(1)
    world.recover()
    while steps(world)[-1] != (HOME, 0.1):
        world.cycle()
    again = World.__new__(World)
    again.__dict__ = dict(world.__dict__)
    again.history = []  # the values in memory are lost, the decisions are stored
    again.run(12)
    assert steps(again)[:5] == [(STANDBY, 1.0), (HOME, 0.01), (HOME, 0.1), (HOME, 0.5), (HOME, 1.0)]


def test_a_kill_before_the_dispatch_repeats_nothing(world):
    world.lose()
    world.cycle(perform=False)
    made = set(world.fleet.actions)
    world.cycle(perform=False)
    assert set(world.fleet.actions) == made


def test_another_loss_during_the_return_moves_everything_again(world):
    world.lose()
    world.run(1)
    world.recover()
    while steps(world)[-1] != (HOME, 0.5):
        world.cycle()
    world.lose()
    world.run(1)
    assert steps(world)[-1] == (STANDBY, 1.0) or steps(world)[-1] == (HOME, 0.0)
    assert world.share("chat") == 0.0


def test_the_preview_shows_the_switch_of_every_service(world):
    world.lose()
    world.decide()
    fleet = world.fleet
    shown = preview(
        fleet.policy, fleet.incidents[world.incident], [], None, [], fleet.topology, fleet.facts, fleet.now,
        packaged(), world.procedures,
    )  # fmt: skip
    assert [(action.kind, action.target.name) for action, _ in shown] == [
        (ActionKind.SWITCH_CLUSTER, "chat"),
        (ActionKind.SWITCH_CLUSTER, "code"),
    ]


def test_a_rule_switches_a_burning_service_to_its_standby(world, words):
    """The default action of availability-low names cluster and share, as the actuator needs them."""
    home, fleet = service(HOME, "chat"), world.fleet
    alert = Alert(
        "low", "availability-low", Priority.P0, home, AlertState.FIRING, AlertReason.STILL_TRUE, fleet.now, fleet.now,
        annotations={"then": "switch_cluster"},
    )  # fmt: skip
    fleet.alerts[home] = alert
    fleet.incidents["low"] = Incident(
        "low", Layer.TRAFFIC, Priority.P0, fleet.now, (), (), (), (), fleet.now, services=("chat",)
    )
    fleet.incidents["low"] = replace(fleet.incidents["low"], alerts=("low",))
    (request,) = world.cycle().actions
    assert words([request]) == [("switch_cluster", "chat", "ask", "low_confidence")]
    assert (request.params["cluster"], request.params["share"]) == (STANDBY, 1.0)
    assert "lost_cluster" not in request.params, "the cluster answers, so no guard is passed over"
    fleet.actions[request.id] = state_rows.decided(request, "ann", fleet.now, approve=True)
    world.run(1)
    assert world.share("chat") == 0.0
    fleet.incidents["low"] = replace(fleet.incidents["low"], resolved_at=fleet.now)
    del fleet.alerts[home]
    world.run(30)
    assert steps(world)[1:] == [(HOME, 0.01), (HOME, 0.1), (HOME, 0.5), (HOME, 1.0)]
    returned = world.switches()[1].decided_at
    assert returned - request.decided_at >= files.switch().healthy_for


def test_without_the_procedure_no_rule_and_no_playbook_switches(world):
    world.procedures = replace(world.procedures, switch=None)
    world.lose()
    world.run(2)
    assert world.switches() == []
