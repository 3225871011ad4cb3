"""Levels of autonomy: the strictest of those that name an action's playbook, service or environment."""

from dataclasses import replace

import pytest

from outrider.model import ActionStatus, DecisionReason, EntityKind, EntityRef, Verdict
from outrider.topology import Topology
from remediation.decide.autonomy import Autonomy, AutonomyLevels, Environment, scope_of, strictest

NODE = EntityRef("eu-1", EntityKind.NODE, None, "node-0")
CHAT = EntityRef("eu-1", EntityKind.SERVICE, "prod-llm", "chat")
BATCH = EntityRef("eu-1", EntityKind.SERVICE, "lab", "batch")
BOTH = Topology.build([(NODE, CHAT), (NODE, BATCH)])
ENVIRONMENTS = {"prod": Environment(namespaces=("prod-*",)), "europe": Environment(clusters=("eu-*",))}
OBSERVE, RECOMMEND, APPROVE, ACT = Autonomy


def level(levels, *, target=NODE, topology=BOTH, playbook="gpu-lost", environments=ENVIRONMENTS):
    return levels.of(scope_of(playbook, target, (), topology, environments))


def test_levels_are_ordered_strictest_first():
    assert strictest([ACT, RECOMMEND, APPROVE], ACT) is RECOMMEND
    assert strictest([], APPROVE) is APPROVE


def test_the_general_level_applies_where_nothing_is_named():
    assert level(AutonomyLevels(ACT)) is ACT
    assert level(AutonomyLevels()) is APPROVE


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"playbooks": {"gpu-lost": ACT}}, ACT),
        ({"playbooks": {"engine-hung": ACT}}, APPROVE),
        ({"services": {"chat": ACT}}, APPROVE),  # the other service of the node has the general level
        ({"services": {"chat": ACT, "batch": ACT}}, ACT),
        ({"services": {"prod-llm/chat": ACT, "lab/batch": RECOMMEND}}, RECOMMEND),
        ({"environments": {"europe": ACT}}, ACT),
        ({"environments": {"europe": ACT, "prod": OBSERVE}}, OBSERVE),
        ({"playbooks": {"gpu-lost": ACT}, "services": {"chat": RECOMMEND}}, RECOMMEND),
        ({"playbooks": {"gpu-lost": ACT}, "environments": {"prod": APPROVE}}, APPROVE),
    ],
)
def test_each_service_takes_the_strictest_level_that_names_it(named, expected):
    assert level(AutonomyLevels(APPROVE, **named)) is expected


def test_a_level_above_the_general_one_frees_only_what_it_names():
    levels = AutonomyLevels(OBSERVE, services={"chat": ACT})
    assert level(levels, target=CHAT) is ACT
    assert level(levels, target=BATCH) is OBSERVE
    assert level(levels, target=NODE) is OBSERVE


def test_a_target_without_services_has_its_own_environment():
    spare = EntityRef("eu-1", EntityKind.NODE, None, "spare")
    levels = AutonomyLevels(ACT, environments={"europe": RECOMMEND})
    assert level(levels, target=spare) is RECOMMEND
    assert level(levels, target=replace(spare, cluster="us-1")) is ACT


def test_a_pool_has_the_level_of_its_service():
    pool = replace(CHAT, name="chat-decode")
    topology = Topology.build([(NODE, pool)], labels={pool: {"pool_of": "chat"}})
    assert level(AutonomyLevels(ACT, services={"chat": OBSERVE}), topology=topology) is OBSERVE


def test_recommend_records_a_proposal_that_is_not_repeated(make_fleet):
    fleet = make_fleet(autonomy="recommend")
    fleet.break_("pcie-degraded", fleet.gpus[0])
    (proposed,) = fleet.cycle()
    assert (proposed.status, proposed.decision) == (ActionStatus.PROPOSED, Verdict.ASK)
    assert proposed.reason is DecisionReason.AUTONOMY_RECOMMEND
    assert [answer.guard for answer in proposed.objections] == ["autonomy"]
    assert fleet.run(5) == []


def test_recommend_needs_no_approval_for_a_doubtful_cause_either(make_fleet):
    fleet = make_fleet(autonomy="recommend")
    fleet.break_("engine-hung", fleet.replicas[0], confidence=0.3)
    (proposed,) = fleet.cycle()
    assert proposed.status is ActionStatus.PROPOSED
    assert {answer.reason for answer in proposed.objections} == {
        DecisionReason.LOW_CONFIDENCE,
        DecisionReason.AUTONOMY_RECOMMEND,
    }


@pytest.mark.parametrize(
    ("level", "status"), [("approve", ActionStatus.WAITING_APPROVAL), ("act", ActionStatus.INTENDED)]
)
def test_a_raised_level_replaces_a_recommendation(make_fleet, level, status):
    fleet = make_fleet(autonomy="recommend")
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.cycle()
    fleet.policy = replace(fleet.policy, autonomy=AutonomyLevels(Autonomy(level)))
    assert [action.status for action in fleet.cycle()] == [ActionStatus.CANCELLED, status]


def test_a_lowered_level_withdraws_a_request(make_fleet):
    fleet = make_fleet(autonomy="approve")
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.cycle()
    fleet.policy = replace(fleet.policy, autonomy=AutonomyLevels(RECOMMEND))
    assert [action.status for action in fleet.cycle()] == [ActionStatus.CANCELLED, ActionStatus.PROPOSED]


def test_one_playbook_acts_while_others_wait(make_fleet, words):
    fleet = make_fleet(autonomy="approve")
    fleet.policy = replace(fleet.policy, autonomy=AutonomyLevels(APPROVE, playbooks={"pcie-degraded": ACT}))
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.break_("engine-hung", fleet.replicas[5])
    assert words(fleet.cycle()) == [
        ("cordon", "node-0", "allowed", "within_limits"),
        ("shift_traffic", "chat-5", "ask", "autonomy_approve"),
    ]


def test_scaling_by_the_plan_counts_as_a_playbook(make_fleet):
    fleet = make_fleet(autonomy="act")
    fleet.policy = replace(fleet.policy, autonomy=AutonomyLevels(ACT, playbooks={"plan": RECOMMEND}))
    fleet.recommend(8, 12)
    (scale,) = fleet.cycle()
    assert (scale.status, scale.reason) == (ActionStatus.PROPOSED, DecisionReason.AUTONOMY_RECOMMEND)
