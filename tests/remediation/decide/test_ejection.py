"""A route that only ejects outliers: the replica may keep its traffic, so it is not taken for diverted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.model import ActionKind, DecisionReason, HoldReason
from remediation.decide.recheck import recheck
from tests.remediation.conftest import SERVICE


def shifted(make_fleet, *services):
    """A fleet that has shifted the traffic of a replica with a memory problem, which still serves."""
    fleet = make_fleet(2, ejecting=frozenset(services))
    fleet.facts = replace(fleet.facts, needed_replicas={SERVICE: 1}, carrying_replicas={SERVICE: 1})
    incident = fleet.break_("gpu-oom", fleet.replicas[0])
    made = [action for action in fleet.run(1) if action.kind is ActionKind.SHIFT_TRAFFIC]
    assert [action.target for action in made] == [fleet.replicas[0]]
    return fleet, incident


@pytest.mark.parametrize("name", ["chat", "llm/chat"])
def test_an_ejection_does_not_open_the_way_to_a_restart(make_fleet, name):
    fleet, _ = shifted(make_fleet, name)
    assert not [action for action in fleet.run(3) if action.kind is ActionKind.RESTART_POD]
    assert HoldReason.PRECONDITION_NOT_MET in {hold.reason for hold in fleet.decide().holds}


def test_a_route_with_weights_does(make_fleet):
    fleet, _ = shifted(make_fleet, "embed")
    assert [action.kind for action in fleet.run(1)] == [ActionKind.RESTART_POD]


def test_an_ejection_is_undone_after_the_recovery(make_fleet):
    fleet, incident = shifted(make_fleet, "chat")
    fleet.mend(fleet.replicas[0], resolve=incident)
    assert [action.kind for action in fleet.run(4)] == [ActionKind.RESTORE_TRAFFIC]


@pytest.mark.parametrize(("service", "held"), [("chat", DecisionReason.SERVICE_MINIMUM), ("embed", None)])
def test_the_restart_of_an_ejected_replica_takes_a_replica(make_fleet, service, held):
    fleet, _ = shifted(make_fleet, service)
    (shift,) = fleet.actions.values()
    restart = replace(shift, id="r", kind=ActionKind.RESTART_POD, target=fleet.pods[0])
    facts = replace(
        fleet.facts_now(), topology=fleet.topology, serving=frozenset(fleet.replicas[:1]), ready_replicas={SERVICE: 1}
    )
    assert recheck(restart, fleet.policy, facts, fleet.now, others=[shift]) is held
