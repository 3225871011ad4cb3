"""Audit records of what a cycle decided."""

from __future__ import annotations

from datetime import UTC, datetime

from outrider.audit import AuditEvent
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    GuardAnswer,
    HoldReason,
    Verdict,
)
from remediation.decide.limits import Decisions, Hold
from service.engine.audit_trail import CycleDecisions, StandingReasons, of_cycle

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
RECORD = CycleRecord("cycle", NOW, 0.1, 1, 1, 1, 0, 0, 0)


def held_by(budget: str) -> CycleDecisions:
    objection = GuardAnswer("disruption_budget", Verdict.REFUSED, DecisionReason.DISRUPTION_BUDGET, budget)
    decisions = Decisions(holds=(Hold("inc-1", HoldReason.HELD_BY_GUARD, objection),))
    return CycleDecisions((), (), (), (), None, decisions, {})


def test_a_withdrawn_request_names_what_withdrew_it() -> None:
    node = EntityRef("c", EntityKind.NODE, None, "node-3")
    drain = Action(
        "act-1", "ses", ActionKind.DRAIN, node, {}, "inc-1", False, Verdict.ASK, DecisionReason.OWNED,
        ActionStatus.CANCELLED, NOW, detail="NVSentinel",
    )  # fmt: skip
    decided = CycleDecisions((), (), (), (), None, Decisions(actions=(drain,)), {})
    (record,), _ = of_cycle(RECORD, decided, StandingReasons())
    assert (record.reason, record.detail["status"], record.detail["about"]) == ("owned", "cancelled", "NVSentinel")


def test_a_hold_names_the_budget_and_is_recorded_again_for_another_one() -> None:
    (first,), standing = of_cycle(RECORD, held_by("web/router"), StandingReasons())
    assert (first.event, first.subject, first.reason) == (AuditEvent.HELD, "inc-1", "held_by_guard")
    assert first.detail == {"guard": "disruption_budget web/router"}
    repeated, standing = of_cycle(RECORD, held_by("web/router"), standing)
    assert repeated == ()
    (other,), _ = of_cycle(RECORD, held_by("web/cache"), standing)
    assert other.detail == {"guard": "disruption_budget web/cache"}
