"""A manually sent replica count obeys the guard rails of the live loop."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import ActuationError, UsageError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    PlanReason,
    Recommendation,
    Verdict,
)
from outrider.ports import CycleCommit
from remediation.decide.limits import Policy
from service.config.settings import Settings
from service.scaling import emitting, manual_scale_guard
from store.memory import MemoryStateStore

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "prod", "chat")
PLAN = Recommendation(
    CHAT, "H100", 4, 6, 24, 1, 20, "load", None, None, timedelta(minutes=5), None, "USD", {"need_now": 5},
    PlanReason.FORECAST_PEAK, NOW,
)  # fmt: skip


def acted(minutes: float, status: ActionStatus = ActionStatus.DONE) -> Action:
    at = NOW - timedelta(minutes=minutes)
    return Action(
        id=f"a-{minutes}", session="plan", kind=ActionKind.SCALE, target=CHAT, params={"replicas": 4, "current": 3},
        because="plan", dry_run=False, decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS, status=status,
        decided_at=at,
    )  # fmt: skip


def state(*actions: Action) -> MemoryStateStore:
    store = MemoryStateStore()
    store.commit(CycleCommit(CycleRecord("c1", NOW, NOW, 1, 1, 0, 0, 0, 0), actions=actions))
    return store


def test_the_cooldown_of_the_live_loop_refuses_a_manual_scale() -> None:
    assert manual_scale_guard.refusal(Policy(), state(), PLAN, NOW) is None
    assert manual_scale_guard.refusal(Policy(), state(acted(5)), PLAN, NOW) == "cooldown"
    assert manual_scale_guard.refusal(Policy(), state(acted(11)), PLAN, NOW) is None
    less = replace(PLAN, target_replicas=3, derivation={"need_now": 2})
    assert manual_scale_guard.refusal(Policy(), state(acted(11)), less, NOW) == "cooldown"  # a scale-in waits longer
    with pytest.raises(UsageError, match="chat is not scaled to 6 now: cooldown"):
        emitting.send(Settings(), state(acted(5)), PLAN, NOW, Policy(), dry_run=True)


def test_earlier_manual_scales_count_unless_they_were_dry_runs() -> None:
    for dry_run, reason in (("False", "cooldown"), ("True", None)):
        known = state()
        detail = {"action": f"emit:{CHAT.key}:1:6", "said": "", "dry_run": dry_run}
        known.append_audit(
            [AuditRecord(NOW - timedelta(minutes=2), AuditEvent.ACTION_PERFORMED, "scale", "done", detail=detail)]
        )
        assert manual_scale_guard.refusal(Policy(), known, PLAN, NOW) == reason


def test_rates_and_survivors_refuse_it() -> None:
    assert manual_scale_guard.refusal(Policy(max_actions_per_hour=0), state(), PLAN, NOW) == "rate_limit"
    too_few = replace(PLAN, target_replicas=2, derivation={"need_now": 3})
    assert manual_scale_guard.refusal(Policy(), state(), too_few, NOW) is not None


def test_a_service_of_another_cluster_is_not_scaled_on_the_configured_server() -> None:
    receiver = {"service": "chat", "type": "hpa"}
    scaling = {"emit": [receiver], "kubernetes": {"url": "https://127.0.0.1:9", "cluster": "west"}}
    settings = Settings.model_validate({"cluster": "c", "planner": {"scaling": scaling}})
    with pytest.raises(ActuationError, match="in the cluster c, but scale reaches only west"):
        emitting.send(settings, state(), PLAN, NOW, Policy(), dry_run=True)
    own = settings.model_copy(update={"cluster": "west"})
    assert (
        manual_scale_guard.refusal(Policy(clusters={ActionKind.SCALE: "west"}), state(), PLAN, NOW) == "other_cluster"
    )
    with pytest.raises(ActuationError, match="cannot be reached"):
        emitting.send(own, state(), replace(PLAN, service=replace(CHAT, cluster="west")), NOW, Policy(), dry_run=True)
