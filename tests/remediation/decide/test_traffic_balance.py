"""Weights of ``balance_traffic`` in the playbook of a traffic skew."""

from __future__ import annotations

from dataclasses import replace

from outrider.model import ActionKind
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
