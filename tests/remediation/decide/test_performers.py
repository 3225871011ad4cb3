"""A guard refuses what the configured performer cannot do: its kind, or the cluster of its target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, Verdict
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.limits import Policy
from remediation.decide.policy import preview
from remediation.decide.recheck import recheck
from remediation.playbooks.files import packaged

NEAR, FAR = (dict.fromkeys(ActionKind, cluster) for cluster in ("c1", "west"))


def test_nothing_is_performed_in_a_cluster_of_another_server(make_fleet, words):
    fleet = make_fleet(clusters=FAR)
    fleet.break_("gpu-lost", fleet.gpus[0])
    made = fleet.run(8)
    assert made
    assert {(row[2], row[3]) for row in words(made)} == {("refused", "other_cluster")}
    assert {action.status for action in made} == {ActionStatus.REFUSED}


def test_the_plan_of_a_playbook_names_both_clusters(make_fleet):
    fleet = make_fleet(clusters={ActionKind.CORDON: "west"})
    incident = fleet.incidents[fleet.break_("gpu-lost", fleet.gpus[0])]
    steps = preview(
        fleet.policy, incident, list(fleet.alerts.values()), None, [], fleet.topology, fleet.facts_now(), fleet.now,
        packaged(),
    )  # fmt: skip
    by_kind = {action.kind: {answer.guard: answer for answer in row.answers} for action, row in steps}
    refusal = by_kind[ActionKind.CORDON]["cluster"]
    assert (refusal.verdict, refusal.reason) == (Verdict.REFUSED, DecisionReason.OTHER_CLUSTER)
    assert refusal.detail == "c1, not west"
    assert by_kind[ActionKind.SHIFT_TRAFFIC]["cluster"].verdict is Verdict.ALLOWED, (
        "its performer reaches every cluster"
    )


@pytest.mark.parametrize(("clusters", "expected"), [(NEAR, None), (FAR, DecisionReason.OTHER_CLUSTER), ({}, None)])
def test_an_approved_action_is_refused_after_the_server_has_changed(fleet, clusters, expected):
    fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.cycle(perform=False)
    (cordon,) = (action for action in fleet.actions.values() if action.kind is ActionKind.CORDON)
    approved: Action = replace(cordon, approved_by="ann")
    policy = Policy(AutonomyLevels(Autonomy.ACT), dry_run=False, clusters=clusters)
    facts = replace(fleet.facts_now(), topology=fleet.topology)
    assert recheck(approved, policy, facts, fleet.now, playbooks=packaged()) is expected


def test_no_approval_is_requested_for_what_nothing_can_perform(make_fleet, words):
    fleet = make_fleet(unperformed=frozenset({ActionKind.CORDON}))
    fleet.break_("gpu-lost", fleet.gpus[0])
    made = words(fleet.run(8))
    assert ("cordon", "node-0", "refused", "no_performer") in made
    assert ("restart_pod", "chat-0", "allowed", "within_limits") in made, "the other steps go on"
