"""Scale actions of the plan and of playbooks, and the limits of both."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason, PlanReason


def test_a_planned_scale_out_starts_when_it_is_due(fleet):
    fleet.recommend(8, 12, needed_by=fleet.now + timedelta(minutes=10))
    assert fleet.run(40) == []
    (scale,) = fleet.run(5)
    assert (scale.kind, scale.target, scale.because) == (ActionKind.SCALE, fleet.service, "plan")
    assert (scale.params["replicas"], scale.params["current"]) == (12, 8)
    assert fleet.run(20) == [], "the replicas are coming"


def test_in_shadow_mode_no_action_follows_from_a_plan(make_fleet):
    fleet = make_fleet(plan_acts=False)
    fleet.recommend(8, 12)
    assert fleet.run(20) == []


def test_a_changed_plan_replaces_the_approval_request(make_fleet):
    fleet = make_fleet(autonomy="approve")
    fleet.recommend(8, 10)
    fleet.cycle()
    fleet.recommend(8, 12)
    made = fleet.cycle()
    assert [(a.status, a.params["replicas"]) for a in made] == [
        (ActionStatus.CANCELLED, 10),
        (ActionStatus.WAITING_APPROVAL, 12),
    ]
    assert made[0].reason is DecisionReason.REQUEST_CHANGED
    fleet.recommend(8, 8)
    assert [(a.status, a.reason) for a in fleet.cycle()] == [(ActionStatus.CANCELLED, DecisionReason.PLAN_CHANGED)]
    assert fleet.cycle() == ()


def test_a_failed_scale_out_is_tried_again_after_the_pause(fleet):
    fleet.recommend(8, 12)
    fleet.cycle(perform=False)
    fleet.perform(status=ActionStatus.FAILED)
    assert [a.reason for a in fleet.run(10)] == [DecisionReason.COOLDOWN]
    fleet.now += fleet.policy.cooldown
    assert [a.reason for a in fleet.cycle()] == [DecisionReason.WITHIN_LIMITS]
    assert len({a.id for a in fleet.actions.values()}) == 3


def test_a_surge_takes_the_plans_number_and_the_plan_does_not_scale_a_second_time(fleet):
    fleet.break_("traffic-surge", fleet.service)
    fleet.recommend(8, 13)
    (scale,) = fleet.cycle()
    assert (scale.params["replicas"], scale.because) == (13, "inc-0")


def test_a_surge_without_a_plan_adds_a_quarter_below_the_ceiling(fleet):
    fleet.break_("traffic-surge", fleet.service)
    assert fleet.cycle()[0].params["replicas"] == 10
    other = type(fleet)()
    other.break_("traffic-surge", other.service)
    other.recommend(8, 8, ceiling=9)
    assert other.cycle()[0].params["replicas"] == 9


@pytest.mark.parametrize(("fixed", "replicas"), [(True, None), (False, 10)])
def test_without_a_free_gpu_nothing_is_ordered_where_no_node_joins(fleet, fixed, replicas):
    """Each of the 8 nodes has one GPU, which a replica uses."""
    fleet.break_("traffic-surge", fleet.service)
    fleet.policy = replace(fleet.policy, fixed_nodes=fixed)
    assert [action.params["replicas"] for action in fleet.cycle()] == ([] if replicas is None else [replicas])


def test_an_incident_counts_from_the_replicas_set_since_the_plan(fleet):
    fleet.recommend(8, 7)
    (scale_in,) = fleet.cycle()
    assert (scale_in.params["replicas"], scale_in.status) == (7, ActionStatus.INTENDED)
    fleet.now += timedelta(minutes=11)
    fleet.break_("traffic-surge", fleet.service)
    (grown,) = [a for a in fleet.cycle() if a.because == "inc-0"]
    assert (grown.params["current"], grown.params["replicas"]) == (7, 9), "a quarter more than the 7 that were set"


def test_a_scale_out_never_goes_below_ordered_or_visible_replicas(fleet):
    fleet.recommend(8, 12)
    fleet.cycle()
    fleet.now += timedelta(minutes=11)
    fleet.recommend(8, 8)  # made before the four new ones are seen
    fleet.break_("traffic-surge", fleet.service)
    (grown,) = [a for a in fleet.cycle() if a.because == "inc-0"]
    assert (grown.params["current"], grown.params["replicas"]) == (12, 15)
    other = type(fleet)()
    other.recommend(6, 6)  # two were added by hand since
    other.break_("traffic-surge", other.service)
    assert other.cycle()[0].params["current"] == 8
    lost = type(fleet)(nodes=7)
    lost.recommend(8, 8)  # a pod is gone with its node, and ordered still
    lost.break_("traffic-surge", lost.service)
    assert (lost.cycle()[0].params["replicas"]) == 10


def test_a_failed_scaling_sets_no_number(fleet):
    fleet.recommend(8, 7)
    fleet.cycle(perform=False)
    fleet.perform(status=ActionStatus.FAILED)
    fleet.now += timedelta(minutes=11)
    fleet.break_("traffic-surge", fleet.service)
    assert [a.params["current"] for a in fleet.cycle() if a.because == "inc-0"] == [8]


def test_at_the_ceiling_nothing_is_scaled(fleet):
    fleet.break_("kv-pressure", fleet.replicas[0])
    fleet.recommend(8, 8, ceiling=8)
    assert not [action for action in fleet.run(3) if action.kind is ActionKind.SCALE]


@pytest.mark.parametrize(("free", "ordered"), [(9, [9]), (8, [])])
def test_no_more_is_scaled_than_the_free_gpus_hold(fleet, free, ordered):
    fleet.break_("traffic-surge", fleet.service)
    fleet.recommend(8, 8, most=free)
    assert [a.params["replicas"] for a in fleet.cycle() if a.kind is ActionKind.SCALE] == ordered


def test_a_surge_that_outgrows_a_scale_out_does_not_wait_for_the_cooldown(fleet, words):
    fleet.recommend(4, 6, need_now=6)
    assert words(fleet.cycle()) == [("scale", "chat", "allowed", "within_limits")]
    fleet.recommend(6, 9, need_now=9)
    assert words(fleet.cycle()) == [("scale", "chat", "allowed", "within_limits")]
    assert [a.params["replicas"] for a in fleet.actions.values()] == [6, 9]


def test_a_forecast_that_needs_more_waits_for_the_cooldown(fleet, words):
    fleet.recommend(4, 6, need_now=4)
    fleet.cycle()
    fleet.recommend(6, 9, need_now=5)
    assert words(fleet.cycle()) == [("scale", "chat", "refused", "cooldown")]


def test_a_plan_from_before_a_larger_scale_out_does_not_shrink_it(fleet):
    fleet.break_("traffic-surge", fleet.service)
    fleet.recommend(8, 12, need_now=12)
    fleet.cycle()
    fleet.mend(fleet.service)
    fleet.recommend(8, 10, need_now=10, made_at=fleet.now - timedelta(minutes=9))
    fleet.run(3)
    assert [a.params["replicas"] for a in fleet.actions.values() if a.kind is ActionKind.SCALE] == [12]


@pytest.mark.parametrize("reason", [PlanReason.AT_CEILING, PlanReason.AT_QUOTA])
def test_a_playbook_does_not_exceed_the_limit_that_the_plan_names(fleet, reason):
    fleet.recommend(4, 4, need_now=9, reason=reason)
    fleet.break_("traffic-surge", fleet.service)
    assert [a for a in fleet.run(3) if a.kind is ActionKind.SCALE] == []
