"""The safety rules that concern remediation; each test bears the number of its rule."""

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason, EntityRef, Verdict
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.playbooks.model import RESTARTING
from store.state import state_rows

TAKING = (ActionKind.CORDON, ActionKind.DRAIN)


def allowed(actions, *kinds):
    return [a for a in actions if a.decision is Verdict.ALLOWED and (not kinds or a.kind in kinds)]


# --- 1: a metrics outage never scales in, never cordons -------------------------------------------


def test_rule_1_lost_monitoring_holds_everything_with_its_reason(fleet, words):
    fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.recommend(8, 5)
    fleet.facts = replace(fleet.facts, blind=True)
    made = fleet.cycle()
    assert made
    assert {(a.decision, a.reason) for a in made} == {(Verdict.REFUSED, DecisionReason.MONITOR_BLIND)}
    assert fleet.cycle() == (), "reported once, not in every cycle"


def test_rule_1_an_untrusted_node_is_not_cordoned(fleet, words):
    fleet.break_("gpu-thermal-throttle", fleet.gpus[0])
    fleet.facts = replace(fleet.facts, untrusted=frozenset({fleet.nodes[0]}))
    made = words(fleet.cycle())
    assert ("cordon", "node-0", "refused", "values_not_trusted") in made


def test_rule_1_an_exporter_that_is_down_holds_the_cordon_of_its_node(fleet, words):
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.raise_alert("exporter-down", fleet.nodes[0])
    assert words(fleet.cycle()) == [("cordon", "node-0", "refused", "values_not_trusted")]


@pytest.mark.parametrize("who", ["service", "replica"])
def test_rule_1_partial_values_never_scale_in(fleet, words, who):
    fleet.recommend(8, 5)
    doubtful = fleet.service if who == "service" else fleet.replicas[3]
    fleet.facts = replace(fleet.facts, untrusted=frozenset({doubtful}))
    assert words(fleet.cycle()) == [("scale", "chat", "refused", "values_not_trusted")]


def test_rule_1_unknown_need_never_scales_in(fleet, words):
    fleet.recommend(8, 5)
    fleet.facts = replace(fleet.facts, needed_replicas={})
    assert words(fleet.cycle()) == [("scale", "chat", "refused", "values_not_trusted")]


def test_rule_1_a_scale_out_is_not_held_by_partial_values(fleet, words):
    fleet.recommend(8, 10)
    fleet.facts = replace(fleet.facts, untrusted=frozenset({fleet.service}))
    assert words(fleet.cycle()) == [("scale", "chat", "allowed", "within_limits")]


def test_rule_1_the_cordon_follows_once_values_are_back(fleet, words):
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.facts = replace(fleet.facts, untrusted=frozenset({fleet.nodes[0]}))
    fleet.cycle()
    fleet.facts = replace(fleet.facts, untrusted=frozenset())
    assert words(fleet.cycle()) == [("cordon", "node-0", "allowed", "within_limits")]


# --- 3: scale-in models the survivors' load -------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "verdict", "reason"), [(4, "allowed", "within_limits"), (3, "refused", "no_headroom")]
)
def test_rule_3_the_remaining_replicas_must_carry_the_current_load(fleet, words, target, verdict, reason):
    fleet.policy = replace(fleet.policy, scale_in_step_ratio=1.0)
    fleet.recommend(8, target)  # 4 are needed
    assert words(fleet.cycle()) == [("scale", "chat", verdict, reason)]


def test_rule_3_a_scale_in_goes_in_steps(fleet):
    fleet.recommend(8, 4)
    assert [a.params["replicas"] for a in allowed(fleet.cycle())] == [6]
    fleet.recommend(6, 4)
    assert not allowed(fleet.run(20))
    fleet.now += timedelta(minutes=30)
    assert [a.params["replicas"] for a in allowed(fleet.cycle())] == [5]
    assert fleet.policy.scale_in_to(2, 1) == 1


def test_rule_3_constant_load_never_flaps(fleet):
    fleet.recommend(8, 6)
    assert len(allowed(fleet.cycle())) == 1
    fleet.recommend(6, 6)
    assert fleet.run(200) == []
    fleet.recommend(6, 5)
    fleet.now -= timedelta(minutes=45)  # ten minutes after the last one
    assert not allowed(fleet.cycle()), "a scale-in waits out its cooldown"


def test_rule_3_a_service_with_an_incident_is_not_scaled_in(fleet):
    fleet.break_("engine-dead", fleet.replicas[0])
    fleet.recommend(8, 5)
    assert not [a for a in fleet.cycle() if a.kind is ActionKind.SCALE]


# --- 5: recovery during a drain cancels the rest --------------------------------------------------


def drain_under_way(fleet):
    """gpu-lost up to the drain that waits for a person."""
    incident = fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.sick.add(fleet.replicas[0])
    fleet.facts = replace(fleet.facts, ready_replicas={fleet.service: 7})
    fleet.run(3)
    fleet.mend(fleet.replicas[0])  # its new pod runs on another node
    fleet.run(3)
    waiting = [a for a in fleet.actions.values() if a.status is ActionStatus.WAITING_APPROVAL]
    assert [a.kind for a in waiting] == [ActionKind.DRAIN]
    return incident, waiting[0]


def test_rule_5_recovery_cancels_the_rest_of_the_plan(fleet, words):
    incident, drain = drain_under_way(fleet)
    fleet.mend(fleet.gpus[0], resolve=incident)
    made = fleet.cycle()
    cancelled = [a for a in made if a.status is ActionStatus.CANCELLED]
    assert [(a.id, a.reason) for a in cancelled] == [(drain.id, DecisionReason.RECOVERED)]
    assert ("uncordon", "node-0", "allowed", "recovered_by_values") in words(made)
    fleet.cycle()
    assert [s.closed_at is not None for s in fleet.sessions.values()] == [True]
    assert not [a for a in fleet.run(20) if a.kind in TAKING]


def test_rule_5_recovery_during_evictions_cancels_the_rest_and_uncordons(fleet, words):
    incident, waiting = drain_under_way(fleet)
    cordon = next(a for a in fleet.actions.values() if a.kind is ActionKind.CORDON)
    fleet.actions[cordon.id] = replace(cordon, status=ActionStatus.FAILED)  # only the drain has cordoned the node
    drain = state_rows.decided(waiting, "ann", fleet.now, approve=True)
    fleet.actions[drain.id] = replace(drain, started_at=fleet.now, detail="3 pods are evicted")
    fleet.cycle(perform=False)
    fleet.mend(fleet.gpus[0], resolve=incident)
    made = words(fleet.cycle())
    assert fleet.actions[drain.id].status is ActionStatus.CANCELLED
    assert ("uncordon", "node-0", "allowed", "recovered_by_values") in made


def test_rule_5_recovery_before_a_step_is_performed_cancels_it(fleet):
    fleet.break_("engine-hung", fleet.replicas[0])
    fleet.cycle(perform=False)
    fleet.mend(fleet.replicas[0])
    made = fleet.cycle(perform=False)
    assert [(a.kind, a.status) for a in made] == [(ActionKind.SHIFT_TRAFFIC, ActionStatus.CANCELLED)]


def test_rule_5_a_fault_right_after_recovery_is_a_new_session(fleet):
    fleet.break_("engine-hung", fleet.replicas[0])
    fleet.cycle()
    fleet.mend(fleet.replicas[0])
    fleet.cycle()
    (first,) = fleet.sessions.values()
    fleet.raise_alert("engine-hung", fleet.replicas[0])
    fleet.sick.add(fleet.replicas[0])
    made = fleet.cycle()
    assert len(fleet.sessions) == 2
    assert {a.session for a in allowed(made)} == {key for key in fleet.sessions if key != first.id}
    assert [a.kind for a in allowed(made)] == [ActionKind.SHIFT_TRAFFIC]


# --- 6: un-cordon only what we cordoned, and always -----------------------------------------------


def test_rule_6_only_our_own_cordon_is_undone_and_always(fleet, words):
    others = frozenset({fleet.nodes[5]})
    fleet.facts = replace(fleet.facts, nodes_cordoned_by_others=others)
    fleet.policy = replace(fleet.policy, max_cordoned_ratio=0.5)
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    made = fleet.cycle()
    assert words(made) == [("cordon", "node-0", "allowed", "within_limits")]
    session = made[0].session
    assert {"owner": "outrider", "session": session}.items() <= made[0].params.items()
    fleet.mend(fleet.gpus[0], resolve=incident)
    undone = fleet.run(4)
    assert words(undone) == [("uncordon", "node-0", "allowed", "recovered_by_values")]
    assert undone[0].params["session"] == session


def test_rule_6_a_node_cordoned_by_others_is_not_taken_over(fleet, words):
    fleet.facts = replace(fleet.facts, nodes_cordoned_by_others=frozenset({fleet.nodes[0]}))
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    assert words(fleet.cycle()) == [("cordon", "node-0", "refused", "already_done")]
    fleet.mend(fleet.gpus[0], resolve=incident)
    assert fleet.run(4) == []


def test_rule_6_it_waits_for_the_node_to_be_healthy_however_long(fleet, words):
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.cycle()
    fleet.cycle()
    fleet.mend(fleet.gpus[0], resolve=incident)
    fleet.sick.add(fleet.nodes[0])
    assert fleet.run(10) == []
    fleet.actions.clear()  # days later the actions are no longer at hand; the session remembers
    fleet.now += timedelta(days=3)
    fleet.incidents.clear()
    fleet.sick.clear()
    assert words(fleet.cycle()) == [("uncordon", "node-0", "allowed", "recovered")]
    fleet.cycle()
    assert [s.closed_at is not None for s in fleet.sessions.values()] == [True]


def test_rule_6_a_failed_uncordon_is_tried_again(fleet, words):
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.mend(fleet.gpus[0], resolve=incident)
    fleet.cycle(perform=False)
    fleet.perform(status=ActionStatus.FAILED)
    again = fleet.cycle()
    assert words(again) == [("uncordon", "node-0", "allowed", "recovered_by_values")]
    assert len({a.id for a in fleet.actions.values() if a.kind is ActionKind.UNCORDON}) == 2


def test_rule_6_a_second_fault_on_the_node_keeps_it_cordoned(fleet):
    first = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.mend(fleet.gpus[0], resolve=first)
    fleet.raise_alert("gpu-xid-hardware", fleet.gpus[0])
    assert not [a for a in fleet.run(3) if a.kind is ActionKind.UNCORDON]


@pytest.mark.parametrize("autonomy", ["observe", "recommend", "approve", "act"])
def test_rule_6_undoing_does_not_depend_on_autonomy(fleet, words, autonomy):
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.policy = replace(fleet.policy, autonomy=AutonomyLevels(Autonomy(autonomy)))
    fleet.mend(fleet.gpus[0], resolve=incident)
    assert words(fleet.cycle()) == [("uncordon", "node-0", "allowed", "recovered_by_values")]


# --- 7: breakers in absolute numbers, percent and per-service minimum -----------------------------


def cordons_of(fleet, count):
    for n in range(count):
        fleet.break_("pcie-degraded", fleet.gpus[n])
    return fleet.cycle()


@pytest.mark.parametrize(
    ("nodes", "most", "ratio", "faulty", "cordoned"),
    [
        (3, 2, 0.2, 2, 1),
        (8, 2, 0.5, 4, 2),
        (8, 9, 0.25, 4, 2),
        (8, 9, 0.0, 1, 0),
        (8, 0, 1.0, 1, 0),
        (40, 5, 0.1, 8, 4),
    ],
)
def test_rule_7_nodes_count_in_numbers_and_percent(make_fleet, nodes, most, ratio, faulty, cordoned):
    fleet = make_fleet(nodes, max_cordoned_nodes=most, max_cordoned_ratio=ratio)
    made = cordons_of(fleet, faulty)
    assert len(allowed(made)) == cordoned
    refused = [a.reason for a in made if a.decision is Verdict.REFUSED]
    assert refused == [DecisionReason.TOO_MANY_NODES] * (faulty - cordoned)
    assert not allowed(fleet.cycle()), "and they still count in the next cycle"


def test_rule_7_nodes_cordoned_by_people_count_in_the_percentage(fleet):
    fleet.facts = replace(fleet.facts, nodes_cordoned_by_others=frozenset(fleet.nodes[6:]))
    assert not allowed(cordons_of(fleet, 1))


def test_rule_7_what_is_in_flight_counts(fleet):
    fleet.policy = replace(fleet.policy, max_cordoned_nodes=1)
    fleet.break_("pcie-degraded", fleet.gpus[0])
    assert allowed(fleet.cycle(perform=False))
    fleet.break_("pcie-degraded", fleet.gpus[1])
    assert not allowed(fleet.cycle(perform=False))


def test_rule_7_a_breaker_never_blocks_an_uncordon(fleet, words):
    fleet.policy = replace(fleet.policy, max_cordoned_nodes=1, max_actions_per_hour=1)
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.facts = replace(
        fleet.facts, untrusted=frozenset({fleet.service}), nodes_cordoned_by_others=frozenset(fleet.nodes[1:])
    )
    fleet.mend(fleet.gpus[0], resolve=incident)
    assert words(fleet.cycle()) == [("uncordon", "node-0", "allowed", "recovered_by_values")]


def test_rule_7_the_last_serving_replicas_are_kept(make_fleet, words):
    fleet = make_fleet(2, service_minimum=2)
    fleet.break_("gpu-slow-peer", fleet.gpus[0])  # slow, but it serves
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "refused", "service_minimum")]


def test_rule_7_traffic_is_never_shifted_without_a_destination(make_fleet, words):
    fleet = make_fleet(1)
    fleet.break_("engine-hung", fleet.replicas[0])
    fleet.facts = replace(fleet.facts, ready_replicas={fleet.service: 0})
    assert words(fleet.run(2)) == [
        ("shift_traffic", "chat-0", "refused", "service_minimum"),
        ("restart_pod", "chat-0", "allowed", "within_limits"),
    ]


def test_rule_7_the_hourly_rate_is_kept(fleet):
    fleet.policy = replace(fleet.policy, max_actions_per_hour=3)
    for n in range(6):
        fleet.break_("engine-asleep", fleet.replicas[n])
    made = fleet.cycle()
    assert len(allowed(made)) == 3
    assert {a.reason for a in made if a.decision is Verdict.REFUSED} == {DecisionReason.RATE_LIMIT}
    fleet.now += timedelta(hours=1)
    assert len(allowed(fleet.cycle())) == 3


def test_rule_7_services_below_the_minimum_in_one_cycle_together(make_fleet):
    """Each shift alone would leave enough; together they would not."""
    fleet = make_fleet(4, max_ejected_ratio=1.0)
    fleet.facts = replace(fleet.facts, needed_replicas={fleet.service: 0})
    for n in range(4):
        fleet.break_("gpu-slow-peer", fleet.gpus[n])
    made = fleet.cycle()
    assert len(allowed(made)) == 3
    assert [a.reason for a in made if a.decision is Verdict.REFUSED] == [DecisionReason.SERVICE_MINIMUM]
    assert not allowed(fleet.cycle()), "those whose traffic is held off no longer serve"


# --- 8: before capacity is taken away, headroom and budget are checked ----------------------------


def short_of(fleet, needed):
    fleet.facts = replace(fleet.facts, needed_replicas={fleet.service: needed})


def test_rule_8_without_headroom_it_needs_approval(fleet, words):
    short_of(fleet, 8)
    fleet.break_("gpu-memory-leak", fleet.replicas[0])
    assert words(fleet.cycle()) == [("restart_pod", "chat-0", "ask", "no_headroom")]


def test_rule_8_without_headroom_capacity_is_added_first(fleet, words):
    short_of(fleet, 8)
    fleet.break_("gpu-slow-peer", fleet.gpus[0])
    assert words(fleet.cycle()) == [
        ("scale", "chat", "allowed", "within_limits"),
        ("shift_traffic", "chat-0", "refused", "no_headroom"),
    ]
    assert not fleet.cycle()
    fleet.facts = replace(fleet.facts, ready_replicas={fleet.service: 9})
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "allowed", "within_limits")]


def test_rule_8_a_shift_needs_room_for_the_present_load_only(fleet, words):
    """The buffer is for later, and the faulty replica is what burns the budget."""
    short_of(fleet, 8)
    facts = replace(fleet.facts, carrying_replicas={fleet.service: 7}, burning=frozenset({fleet.service}))
    fleet.facts = facts
    fleet.break_("gpu-slow-peer", fleet.gpus[0])
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "allowed", "within_limits")]


def test_rule_8_an_unknown_need_needs_approval(fleet, words):
    fleet.facts = replace(fleet.facts, needed_replicas={})
    fleet.break_("gpu-slow-peer", fleet.gpus[0])
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "ask", "no_headroom")]


def test_rule_8_a_burning_budget_needs_approval(fleet, words):
    fleet.facts = replace(fleet.facts, burning=frozenset({fleet.service}))
    fleet.break_("gpu-slow-peer", fleet.gpus[0])
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "ask", "no_headroom")]


def test_rule_8_with_headroom_an_approval_request_becomes_an_action(fleet, words):
    fleet.facts = replace(fleet.facts, burning=frozenset({fleet.service}))
    fleet.break_("gpu-slow-peer", fleet.gpus[0])
    fleet.cycle()
    fleet.facts = replace(fleet.facts, burning=frozenset())
    made = fleet.cycle()
    assert [a.status for a in made] == [ActionStatus.CANCELLED, ActionStatus.INTENDED]


def test_rule_8_a_broken_replica_needs_no_headroom(fleet, words):
    short_of(fleet, 8)
    fleet.break_("engine-hung", fleet.replicas[0])
    fleet.facts = replace(fleet.facts, ready_replicas={fleet.service: 7})
    assert words(fleet.run(2)) == [
        ("shift_traffic", "chat-0", "allowed", "within_limits"),
        ("restart_pod", "chat-0", "allowed", "within_limits"),
    ]


def reject_all(fleet):
    for action in list(fleet.actions.values()):
        if action.status is ActionStatus.WAITING_APPROVAL:
            fleet.actions[action.id] = replace(
                action, status=ActionStatus.REFUSED, reason=DecisionReason.REJECTED_BY_HAND
            )


def test_rule_8_a_drain_adds_capacity_first(fleet, words):
    short_of(fleet, 8)
    fleet.break_("gpu-ecc-uncorrectable", fleet.gpus[0])
    fleet.policy = replace(fleet.policy, min_confidence=0.5)
    (first,) = [a for a in fleet.cycle() if a.kind is ActionKind.SHIFT_TRAFFIC]
    assert (first.decision, first.reason) == (Verdict.ASK, DecisionReason.NO_HEADROOM)
    reject_all(fleet)
    assert words(fleet.cycle()) == [("restart_pod", "chat-0", "ask", "no_headroom")]
    reject_all(fleet)
    made = words(fleet.cycle())
    assert made == [("scale", "chat", "allowed", "within_limits"), ("drain", "node-0", "refused", "no_headroom")]
    scale = next(a for a in fleet.actions.values() if a.kind is ActionKind.SCALE)
    assert scale.params["replicas"] == 9
    assert fleet.cycle() == (), "the drain is held while replicas start"
    fleet.facts = replace(fleet.facts, ready_replicas={fleet.service: 9})
    assert words(fleet.cycle()) == [("drain", "node-0", "ask", "needs_approval")]


def test_rule_8_a_surge_that_never_starts_needs_approval(fleet, words):
    short_of(fleet, 8)
    fleet.break_("gpu-ecc-uncorrectable", fleet.gpus[0])
    for _ in range(2):
        fleet.cycle()
        reject_all(fleet)
    fleet.cycle()
    fleet.now += timedelta(minutes=16)
    assert words(fleet.cycle()) == [("drain", "node-0", "ask", "no_headroom")]


# --- 10: hung is restarted, saturated is not ------------------------------------------------------


@pytest.mark.parametrize("fault", ["engine-hung", "engine-core-dead"])
def test_rule_10_a_hung_engine_is_taken_out_and_restarted(fleet, words, fault):
    fleet.break_(fault, fleet.replicas[0])
    assert words(fleet.run(2)) == [
        ("shift_traffic", "chat-0", "allowed", "within_limits"),
        ("restart_pod", "chat-0", "allowed", "within_limits"),
    ]


@pytest.mark.parametrize("fault", ["traffic-surge", "kv-pressure"])
def test_rule_10_an_engine_saturated_for_an_hour_is_not_restarted(fleet, fault):
    target = fleet.service if fault == "traffic-surge" else fleet.replicas[0]
    fleet.break_(fault, target)
    made = [action for _ in range(240) for action in fleet.cycle()]
    assert ActionKind.SCALE in {action.kind for action in made}
    assert not {action.kind for action in made} & RESTARTING


# --- 11: once and only once -----------------------------------------------------------------------


def test_rule_11_deciding_twice_does_nothing_twice(fleet):
    fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.recommend(8, 10)
    one, two = fleet.decide(), fleet.decide()
    assert one == two
    fleet.cycle(perform=False)
    assert fleet.cycle(perform=False) == (), "what is on its way is not decided again"
    assert len({a.id for a in one.actions}) == len(one.actions)


def test_rule_11_a_resolved_incident_starts_nothing(fleet):
    incident = fleet.break_("engine-hung", fleet.replicas[0])
    fleet.incidents[incident] = replace(fleet.incidents[incident], resolved_at=fleet.now)
    assert fleet.run(3) == []


# --- 13 and 14 ------------------------------------------------------------------------------------


def test_rule_13_a_weak_cause_needs_approval(fleet, words):
    fleet.break_("engine-hung", fleet.replicas[0], confidence=0.3)
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "ask", "low_confidence")]


def test_rule_14_blind_monitoring_known_from_alerts_alone_holds(fleet, words):
    cluster = EntityRef("c1", fleet.service.kind.__class__.CLUSTER, None, "c1")
    fleet.break_("engine-hung", fleet.replicas[0])
    fleet.raise_alert("monitor-blind", cluster)
    assert words(fleet.cycle()) == [("shift_traffic", "chat-0", "refused", "monitor_blind")]


def test_rule_14_blindness_holds_even_an_uncordon(fleet, words):
    """Nobody can see that the node is healthy; it follows when there is sight again."""
    incident = fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.run(2)
    fleet.mend(fleet.gpus[0], resolve=incident)
    fleet.facts = replace(fleet.facts, blind=True)
    assert words(fleet.run(3)) == [("uncordon", "node-0", "refused", "monitor_blind")]
    fleet.facts = replace(fleet.facts, blind=False)
    assert words(fleet.cycle()) == [("uncordon", "node-0", "allowed", "recovered_by_values")]
