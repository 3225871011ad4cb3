"""Default actions of rules: through the policy, only where no playbook repairs the cause, and none without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from alerts.rules.files import load_rules
from outrider.model import (
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    DecisionReason,
    Priority,
)
from outrider.vocabulary.rules import RULE_ACTIONS
from remediation.decide.rule_actions import TARGETS
from remediation.playbooks.files import packaged
from remediation.playbooks.model import UNDOES, Playbook


def fire(fleet, rule, entity, then, *, incident="inc-0", priority=Priority.P2):
    """An alert of a rule without a fault, in an open incident without a cause."""
    alert = Alert(
        f"{rule}-{entity.name}", rule, priority, entity, AlertState.FIRING, AlertReason.STILL_TRUE, fleet.now,
        fleet.now, annotations={"then": then},
    )  # fmt: skip
    fleet.break_("kv-pressure", entity, id_=incident, alert=False)
    fleet.incidents[incident] = replace(fleet.incidents[incident], hypotheses=(), alerts=(alert.fingerprint,))
    fleet.alerts[entity] = alert
    return alert


def test_an_incident_without_a_cause_gets_the_default_action_of_its_rule_as_a_request(fleet, words):
    fire(fleet, "kv-cache-full", fleet.replicas[0], "scale")
    fleet.recommend(8, 10)
    fleet.policy = replace(fleet.policy, plan_acts=False)
    decided = fleet.cycle()
    assert words(decided) == [("scale", "chat", "ask", "low_confidence")]
    (action,) = decided
    assert (action.params["rule"], action.params["replicas"], action.because) == ("kv-cache-full", 10, "inc-0")
    (session,) = fleet.sessions.values()
    assert (session.incident, action.session) == ("inc-0", session.id)
    assert fleet.run(5) == [], "the request is not repeated"


def test_a_playbook_for_the_cause_takes_precedence(fleet, words):
    fleet.break_("gpu-xid-application", fleet.pods[0], alert=False)
    alert = fire(fleet, "mine", fleet.pods[0], "cordon", incident="inc-1")
    fleet.incidents["inc-0"] = replace(fleet.incidents["inc-0"], alerts=(alert.fingerprint,))
    del fleet.incidents["inc-1"]
    assert [kind for kind, *_ in words(fleet.cycle())] == ["restart_pod"]


def test_a_cause_without_a_playbook_gives_its_confidence_to_the_action(fleet, words):
    fleet.break_("clock-skew", fleet.nodes[0], confidence=0.9, alert=False)
    playbooks = {fault: playbook for fault, playbook in packaged().items() if fault != "clock-skew"}
    alert = fire(fleet, "mine", fleet.nodes[0], "cordon", incident="inc-1")
    fleet.incidents["inc-0"] = replace(fleet.incidents["inc-0"], alerts=(alert.fingerprint,))
    del fleet.incidents["inc-1"]
    assert words(fleet.decide(playbooks=playbooks).actions) == [("cordon", "node-0", "allowed", "within_limits")]


def test_the_guards_hold_for_default_actions(make_fleet, words):
    fleet = make_fleet(max_cordoned_nodes=0)
    fire(fleet, "mine", fleet.nodes[0], "cordon")
    assert words(fleet.cycle()) == [("cordon", "node-0", "refused", "too_many_nodes")]


def test_a_symptom_of_a_service_shifts_no_replica(fleet):
    fire(fleet, "mine", fleet.service, "shift_traffic")
    assert fleet.cycle() == ()
    assert fleet.sessions == {}


def test_two_rules_with_one_action_propose_it_once(fleet, words):
    first = fire(fleet, "one", fleet.replicas[0], "scale")
    second = fire(fleet, "two", fleet.replicas[1], "scale", incident="inc-1")
    fleet.incidents["inc-0"] = replace(fleet.incidents["inc-0"], alerts=(first.fingerprint, second.fingerprint))
    del fleet.incidents["inc-1"]
    assert words(fleet.cycle()) == [("scale", "chat", "ask", "low_confidence")]


@pytest.mark.parametrize("state", [AlertState.PENDING, AlertState.RESOLVED])
def test_only_a_firing_alert_acts(fleet, state):
    alert = fire(fleet, "mine", fleet.replicas[0], "scale")
    fleet.alerts[alert.entity] = replace(alert, state=state)
    assert fleet.cycle() == ()


def test_a_rejected_default_action_is_not_proposed_again(fleet):
    fire(fleet, "mine", fleet.replicas[0], "scale")
    (request,) = fleet.cycle()
    fleet.actions[request.id] = replace(request, status=ActionStatus.REFUSED, reason=DecisionReason.REJECTED_BY_HAND)
    assert fleet.run(5) == []


UNDOABLE = sorted(frozenset(UNDOES) & RULE_ACTIONS)


@pytest.mark.parametrize("kind", UNDOABLE)
def test_an_approved_default_action_is_undone_after_the_recovery(fleet, kind):
    """Safety rule 6: the object returns, whoever caused the change."""
    fleet.facts = replace(fleet.facts, traffic_weights={fleet.service: {"chat-0": 1, "chat-1": 3}})
    alert = fire(fleet, "mine", fleet.replicas[0], kind.value)
    (request,) = fleet.cycle()
    fleet.actions[request.id] = replace(request, status=ActionStatus.INTENDED, approved_by="alice")
    fleet.run(2)
    assert all(session.closed_at is None for session in fleet.sessions.values())
    fleet.mend(alert.entity, resolve="inc-0")
    assert [(action.kind, action.target) for action in fleet.run(4)] == [(UNDOES[kind], request.target)]
    assert all(session.closed_at for session in fleet.sessions.values())


@pytest.mark.parametrize("kind", [ActionKind.CORDON, ActionKind.DRAIN])
def test_a_node_that_a_rule_cordoned_counts_for_the_session(fleet, kind):
    fire(fleet, "mine", fleet.nodes[0], kind.value)
    (request,) = fleet.cycle()
    fleet.actions[request.id] = replace(request, status=ActionStatus.INTENDED, approved_by="alice")
    fleet.run(2)
    assert [session.cordoned for session in fleet.sessions.values()] == [(fleet.nodes[0],)]


def test_a_node_that_a_rule_cordoned_for_an_unknown_cause_returns_by_a_diagnostic(make_fleet):
    fleet = make_fleet(diagnostic=True)
    alert = fire(fleet, "mine", fleet.nodes[0], "cordon")
    (request,) = fleet.cycle()
    fleet.actions[request.id] = replace(request, status=ActionStatus.INTENDED, approved_by="alice")
    fleet.run(2)
    fleet.mend(alert.entity, resolve="inc-0")
    kinds = [action.kind for action in fleet.run(4)]
    assert kinds == [ActionKind.RUN_DIAGNOSTIC, ActionKind.UNCORDON]


@pytest.mark.parametrize("then", ["cordon", "scale"])
def test_a_cause_whose_playbook_is_none_gives_no_rule_a_free_hand(fleet, words, then):
    """The author of the playbook decided that nothing is done automatically."""
    fleet.break_("disk-slow", fleet.nodes[0], confidence=0.9, alert=False)
    playbooks = {**packaged(), "disk-slow": Playbook("disk-slow", (), none="Our storage team replaces these disks.")}
    alert = fire(fleet, "mine", fleet.nodes[0], then, incident="inc-1")
    fleet.incidents["inc-0"] = replace(fleet.incidents["inc-0"], alerts=(alert.fingerprint,))
    del fleet.incidents["inc-1"]
    (decided,) = words(fleet.decide(playbooks=playbooks).actions)
    assert (decided[0], *decided[2:]) == (then, "ask", "needs_approval")


def test_every_action_that_a_rule_may_name_has_a_target():
    assert frozenset(TARGETS) == RULE_ACTIONS


@pytest.mark.parametrize("rule", load_rules(), ids=lambda rule: rule.name)
def test_no_packaged_rule_names_an_action_that_nothing_reads(rule):
    """Where every fault of a rule has a playbook, its default actions would never be used."""
    actions = [word for word in rule.then if isinstance(word, ActionKind)]
    faults = {*rule.faults, *filter(None, [rule.fault])}
    repaired = bool(faults) and all(packaged().get(fault) and packaged()[fault].steps for fault in faults)
    assert not (actions and repaired)
    opens_no_incident = rule.priority is Priority.P3 and not faults
    assert not (rule.then and opens_no_incident), "the alert opens no incident, so that nothing would read it"
