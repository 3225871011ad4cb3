"""Weights of ``balance_traffic`` in the playbook of a traffic skew."""

from __future__ import annotations

from dataclasses import replace

from outrider.model import ActionKind, ActionStatus
from tests.remediation.conftest import CYCLE, SERVICE, Fleet

WEIGHTS = {"chat-0": 10, "chat-1": 30, "chat-2": 60}


def test_known_weights_are_set_once_and_stay():
    fleet = Fleet()
    fleet.facts = replace(fleet.facts, traffic_weights={SERVICE: WEIGHTS})
    incident = fleet.break_("traffic-skew", fleet.replicas[0])
    (action,) = fleet.run(3)
    assert (action.kind, action.target) == (ActionKind.BALANCE_TRAFFIC, SERVICE)
    assert (action.params["weights"], action.params["undo"]) == (WEIGHTS, "none")
    fleet.mend(fleet.replicas[0], resolve=incident)
    fleet.now += CYCLE
    assert not [each for each in fleet.run(3) if each.kind is ActionKind.RESTORE_TRAFFIC]


def test_without_known_weights_nothing_is_proposed():
    fleet = Fleet()
    fleet.break_("traffic-skew", fleet.replicas[0])
    assert not [action for action in fleet.run(3) if action.kind is ActionKind.BALANCE_TRAFFIC]


def skewed(fleet, **weights):
    """The weights of this cycle."""
    given = {name.replace("_", "-"): weight for name, weight in weights.items()}
    fleet.facts = replace(fleet.facts, traffic_weights={SERVICE: given})


def test_a_request_stands_while_the_weights_differ_little():
    fleet = Fleet(autonomy="approve")
    skewed(fleet, chat_0=10, chat_1=30, chat_2=60)
    fleet.break_("traffic-skew", fleet.replicas[0])
    (request,) = fleet.cycle()
    assert request.status is ActionStatus.WAITING_APPROVAL
    for drift in (1, 4, 8, 3):
        skewed(fleet, chat_0=10 + drift, chat_1=30 - drift, chat_2=60)
        assert fleet.cycle() == (), "the same request: nobody is notified again"
    skewed(fleet, chat_0=30, chat_1=10, chat_2=60)
    cancelled, renewed = fleet.cycle()
    assert (cancelled.id, cancelled.status) == (request.id, ActionStatus.CANCELLED)
    assert (renewed.status, renewed.params["weights"]["chat-0"]) == (ActionStatus.WAITING_APPROVAL, 30)


def test_a_small_share_of_many_replicas_that_falls_much_is_another_request():
    fleet = Fleet(autonomy="approve")
    even = {f"chat_{number}": 125 for number in range(8)}
    skewed(fleet, **even)
    fleet.break_("traffic-skew", fleet.replicas[0])
    fleet.cycle()
    skewed(fleet, **even | {"chat_0": 110, "chat_1": 140})
    assert fleet.cycle() == (), "it differs little"
    skewed(fleet, **even | {"chat_0": 30, "chat_1": 220})
    assert [action.status for action in fleet.cycle()] == [ActionStatus.CANCELLED, ActionStatus.WAITING_APPROVAL]


def test_weights_of_other_replicas_are_another_request():
    fleet = Fleet(autonomy="approve")
    skewed(fleet, chat_0=10, chat_1=30, chat_2=60)
    fleet.break_("traffic-skew", fleet.replicas[0])
    fleet.cycle()
    skewed(fleet, chat_0=10, chat_1=30, chat_3=60)
    assert [action.status for action in fleet.cycle()] == [ActionStatus.CANCELLED, ActionStatus.WAITING_APPROVAL]


def test_an_expired_request_is_not_repeated_for_other_measurements():
    fleet = Fleet(autonomy="approve")
    skewed(fleet, chat_0=10, chat_1=30, chat_2=60)
    fleet.break_("traffic-skew", fleet.replicas[0])
    (request,) = fleet.cycle()
    fleet.now += fleet.policy.approval_expires
    (expired,) = fleet.decide().actions
    fleet.actions[request.id] = expired
    skewed(fleet, chat_0=12, chat_1=28, chat_2=60)
    assert fleet.run(3) == []
