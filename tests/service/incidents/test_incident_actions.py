"""The actions of an incident, whoever ordered them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Priority,
    Verdict,
)
from outrider.ports import CycleCommit
from outrider.topology import Topology
from service.incidents.incident_actions import of_incident
from store.memory import MemoryStateStore

T0 = datetime(2026, 11, 25, 12, tzinfo=UTC)
CHAT, CODE, POOL = (EntityRef("c", EntityKind.SERVICE, "llm", name) for name in ("chat", "code", "chat-prefill"))
NOBODY = Topology.build([], at=T0)
ALERT = Alert(
    "early", "ttft", Priority.P1, CHAT, AlertState.RESOLVED, AlertReason.CONDITION_GONE, T0 - timedelta(seconds=30),
    T0, ends_at=T0 + timedelta(minutes=4),
)  # fmt: skip
SURGE = Incident(
    "inc-1", Layer.TRAFFIC, Priority.P1, T0, (Hypothesis(CHAT, "traffic-surge", 0.9),), (), ("early",), (), T0,
    resolved_at=T0 + timedelta(minutes=5), services=("chat",),
)  # fmt: skip


def scaled(name: str, seconds: float, service: EntityRef = CHAT, because: str = "plan") -> Action:
    return Action(
        name, because, ActionKind.SCALE, service, {"current": 4, "replicas": 6}, because, False, Verdict.ALLOWED,
        DecisionReason.WITHIN_LIMITS, ActionStatus.DONE, T0 + timedelta(seconds=seconds),
    )  # fmt: skip


def listed(*actions: Action, incident: Incident = SURGE, topology: Topology = NOBODY) -> list[str]:
    state = MemoryStateStore()
    cycle = CycleRecord("cyc-1", T0, 0.1, 1, 1, 1, 0, 0, 0)
    state.commit(CycleCommit(cycle, alerts=(ALERT,), incidents=(incident,), actions=actions))
    return [action.id for action in of_incident(state, incident, topology)]


def test_a_scale_out_of_the_plan_just_before_the_incident_opens_belongs_to_it() -> None:
    degraded = replace(scaled("degrade", 1, because="inc-1"), kind=ActionKind.DEGRADE_SERVICE)
    assert listed(scaled("by plan", -15), degraded) == ["degrade", "by plan"]


@pytest.mark.parametrize("seconds", [-45, 300, 400])
def test_a_scaling_before_the_first_alert_or_after_the_end_is_another_story(seconds: float) -> None:
    assert listed(scaled("other", seconds)) == []


def test_an_incident_that_is_open_has_no_end_yet() -> None:
    assert listed(scaled("late", 400), incident=replace(SURGE, resolved_at=None)) == ["late"]


def test_a_scaling_by_the_playbook_of_another_incident_counts_too() -> None:
    assert listed(scaled("of the other", 60, because="inc-2")) == ["of the other"]


def test_scalings_of_other_services_do_not_count() -> None:
    assert listed(scaled("code", 60, CODE)) == []


def test_a_pool_is_scaled_for_its_service() -> None:
    pools = Topology.build([], [POOL], {POOL: {"pool_of": "chat"}}, T0)
    assert listed(scaled("pool", 60, POOL), topology=pools) == ["pool"]


def test_other_actions_of_other_incidents_do_not_count() -> None:
    assert listed(replace(scaled("drain", 60, because="inc-2"), kind=ActionKind.ROLLBACK)) == []
