"""Every guard names what it compared: numbers, times and objects."""

from __future__ import annotations

from dataclasses import replace
from datetime import time, timedelta
from zoneinfo import ZoneInfo

import pytest

from outrider.documents.summaries import compared
from outrider.model import ActionKind, BreakerState, Verdict
from outrider.text.i18n import LANGUAGES
from outrider.topology import EVICTION_BLOCKED_BY, Topology
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.owners import Owners
from remediation.decide.policy import preview
from remediation.decide.time_windows import TimeWindow, WeeklySpan
from remediation.playbooks.files import packaged
from tests.remediation.conftest import SERVICE, T0

UTC_ZONE = ZoneInfo("UTC")
NIGHT = TimeWindow("night", UTC_ZONE, WeeklySpan(time(22), time(4)))
NOON = TimeWindow("noon", UTC_ZONE, WeeklySpan(time(11), time(13)))


PLAYBOOKS = {"pcie-degraded": replace(packaged()["gpu-lost"], serving=True)}


def answers(fleet, kind):
    """The answers to the step of a kind for a fault of the first GPU, whose replica still serves, by guard."""
    incident = fleet.incidents[fleet.break_("pcie-degraded", fleet.gpus[0])]
    rows = preview(
        fleet.policy,
        incident,
        list(fleet.alerts.values()),
        fleet.plan,
        list(fleet.actions.values()),
        fleet.topology,
        fleet.facts_now(),
        fleet.now,
        PLAYBOOKS,
    )
    return next({answer.guard: answer for answer in row.answers} for action, row in rows if action.kind is kind)


def texts(fleet, kind, language="en"):
    return {guard: compared(answer.compared, language) for guard, answer in answers(fleet, kind).items()}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", [ActionKind.CORDON, ActionKind.DRAIN])
def test_every_guard_that_passes_names_what_it_compared(fleet, kind, language):
    for guard, text in texts(fleet, kind, language).items():
        assert text, guard
        assert "{" not in text, guard
        assert "guards." not in text, guard
        assert "[" not in text, guard


def test_the_numbers_of_a_drain(make_fleet):
    fleet = make_fleet(max_actions_per_hour=5, max_cordoned_nodes=3, max_cordoned_ratio=0.5)
    shown = texts(fleet, ActionKind.DRAIN)
    assert shown["rate_limit"] == "0 of 5 actions of the last hour used"
    assert shown["node_breaker"] == "0 of 3 nodes cordoned by Outrider; 0 of 4 out of service in all, of 8"
    assert shown["headroom"] == "chat: headroom 4 replicas, needs 1 (8 serving, load needs 4)"
    assert shown["service_minimum"] == "chat: 7 of 8 replicas left serving, minimum 1"
    assert shown["confidence"] == "confidence 0.90, required 0.60"
    assert shown["cooldown"] == "drain: not done before, cooldown 10m"
    assert shown["autonomy"] == "level act"


def test_the_facts_are_numbers_of_their_own(fleet):
    (headroom,) = answers(fleet, ActionKind.DRAIN)["headroom"].compared
    assert headroom.arguments == {"service": "chat", "headroom": "4", "count": "1", "ready": "8", "needed": "4"}


def test_a_cooldown_names_the_time_since_the_last_action(fleet):
    fleet.break_("pcie-degraded", fleet.gpus[0])
    fleet.cycle()
    fleet.now += timedelta(minutes=4)
    assert texts(fleet, ActionKind.CORDON)["cooldown"] == "cordon: last done 4m 15s ago, cooldown 10m"


def test_windows_and_freezes_name_their_times(fleet):
    fleet.policy = replace(fleet.policy, maintenance_windows=(NIGHT,), freezes=(NIGHT,))
    shown = texts(fleet, ActionKind.DRAIN)
    assert shown["maintenance_window"] == "next opening: night at 2026-05-04T22:00:00Z"
    assert shown["freeze"] == "next: night from 2026-05-04T22:00:00Z"
    fleet.policy = replace(fleet.policy, maintenance_windows=(NOON,), freezes=(NOON,))
    shown = texts(fleet, ActionKind.DRAIN)
    assert shown["maintenance_window"] == "noon is open until 2026-05-04T13:00:00Z"
    assert shown["freeze"] == "noon until 2026-05-04T13:00:00Z"
    assert texts(fleet, ActionKind.CORDON)["maintenance_window"] == "cordon: needs no maintenance window"


def test_a_disruption_budget_and_an_owner_are_named(fleet):
    labels = {fleet.pods[0]: {EVICTION_BLOCKED_BY: "llm/chat-pdb"}}
    fleet.topology = Topology.build(fleet.topology.edges, labels=labels)
    fleet.facts = replace(fleet.facts, owners={fleet.nodes[0]: Owners(quarantined_by="NVSentinel")})
    shown = texts(fleet, ActionKind.DRAIN)
    assert shown["disruption_budget"] == "no eviction allowed by llm/chat-pdb"
    assert shown["owner"] == "managed by NVSentinel"


def test_an_open_breaker_names_its_counts(fleet):
    fleet.facts = replace(fleet.facts, breaker=BreakerState(T0, unsuccessful=4, performed=6))
    assert texts(fleet, ActionKind.CORDON)["breaker"] == "open since 2026-05-04T12:00:00Z: 4 of 6 actions did not help"


def test_untrusted_values_and_burning_budgets_are_named(fleet):
    fleet.facts = replace(fleet.facts, untrusted=frozenset({fleet.nodes[0]}), burning=frozenset({SERVICE}))
    shown = texts(fleet, ActionKind.DRAIN)
    assert shown["trusted_values"] == "no trusted values of node-0"
    assert shown["headroom"].endswith("; chat: the error budget burns")


def test_the_answer_about_a_foreign_cordon_is_that_of_a_guard_of_its_own(fleet):
    fleet.facts = replace(fleet.facts, nodes_cordoned_by_others=frozenset({fleet.nodes[0]}))
    given = answers(fleet, ActionKind.CORDON)
    assert given["foreign_cordon"].verdict is Verdict.REFUSED
    assert compared(given["foreign_cordon"].compared) == "others cordoned node-0"
    assert given["node_breaker"].verdict is Verdict.ALLOWED


def test_an_action_keeps_what_its_guards_compared(fleet):
    fleet.policy = replace(fleet.policy, autonomy=AutonomyLevels(Autonomy.APPROVE))
    fleet.break_("pcie-degraded", fleet.gpus[0])
    (cordon,) = (action for action in fleet.cycle() if action.kind is ActionKind.CORDON)
    assert [compared(answer.compared) for answer in cordon.objections] == ["level approve"]
