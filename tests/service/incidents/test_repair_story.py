"""The audit of one incident as a story."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    GuardAnswer,
    ReasonText,
    Verdict,
)
from outrider.text.i18n import LANGUAGES
from service.incidents.repair_story import of_incident, sentence

T0 = datetime(2026, 11, 25, 12, tzinfo=UTC)
NODE = EntityRef("c", EntityKind.NODE, None, "node-3")
DRAIN = Action(
    "act-1", "ses", ActionKind.DRAIN, NODE, {}, "inc-1", False, Verdict.ASK, DecisionReason.NEEDS_APPROVAL,
    ActionStatus.DONE, T0,
)  # fmt: skip


def record(
    minutes: int, event: AuditEvent, subject: str, reason: str, by: str = "outrider", **detail: str
) -> AuditRecord:
    return AuditRecord(T0 + timedelta(minutes=minutes), event, subject, reason, by=by, detail=detail, id=minutes)


DONE = {"action": "act-1", "said": "node-3 is drained"}
RECORDS = [
    record(7, AuditEvent.INCIDENT_RESOLVED, "inc-1", "resolved"),
    record(6, AuditEvent.ACTION_PERFORMED, "drain node/node-3", "done", **DONE),
    record(5, AuditEvent.ACTION_APPROVED, "act-1", "by_hand", by="ann"),
    record(4, AuditEvent.HELD, "inc-1", "no_step_due"),
    record(3, AuditEvent.ACTION_DECIDED, "cordon node/node-9", "within_limits", action="act-9", because="inc-2"),
    record(
        2, AuditEvent.ACTION_DECIDED, "drain node/node-3", "needs_approval",
        action="act-1", because="inc-1", decision="ask",
        objections="disruption_budget: disruption_budget (llm/web)",
    ),
    record(1, AuditEvent.STEP_CHECKED, "cordon node/node-3", "verified", because="inc-1", check="cordoned"),
    record(0, AuditEvent.INCIDENT_OPENED, "inc-1", "opened", cause="gpu-lost node/node-3", priority="P1"),
]  # fmt: skip


def test_the_records_of_an_incident_are_in_order_without_those_of_others() -> None:
    story = [sentence(item, {"act-1": DRAIN}, "en", "inc-1") for item in of_incident(RECORDS, [DRAIN], "inc-1")]
    assert story == [
        "Opened as P1. Suspected cause: GPU lost, node-3.",
        "cordon (node-3): verified (node is cordoned).",
        "drain (node-3): approval requested, a PodDisruptionBudget allows no disruption (llm/web).",
        "ann approved: drain (node-3).",
        "drain (node-3): done. node-3 is drained",
        "Resolved.",
    ]


def test_a_withdrawn_request_is_not_a_second_request() -> None:
    withdrawn = record(
        3, AuditEvent.ACTION_DECIDED, "drain node/node-3", "owned", action="act-1", because="inc-1",
        decision="ask", status="cancelled", about="NVSentinel",
    )  # fmt: skip
    assert sentence(withdrawn, {}, "en", "inc-1") == (
        "drain (node-3): request withdrawn, managed by another program or person (NVSentinel)."
    )
    unmet = replace(withdrawn, reason="precondition_not_met", detail={**withdrawn.detail, "about": "drained"})
    assert sentence(unmet, {}, "en", "inc-1").endswith("a precondition is not met any more (no replica is left).")


HEADROOM = ReasonText("guards.headroom", {
    "service": "chat", "headroom": "0", "count": "1", "ready": "8", "needed": "8",
})  # fmt: skip
TIGHT = GuardAnswer("headroom", Verdict.ASK, DecisionReason.NO_HEADROOM, compared=(HEADROOM,))


@pytest.mark.parametrize("status", [ActionStatus.CANCELLED, ActionStatus.REFUSED])
def test_the_numbers_of_the_guard_are_part_of_the_reason(status: ActionStatus) -> None:
    decided = record(
        3, AuditEvent.ACTION_DECIDED, "drain node/node-3", "no_headroom", action="act-1", because="inc-1",
        decision="refused", status=status, objections="headroom: no_headroom",
    )  # fmt: skip
    known = {"act-1": replace(DRAIN, status=status, objections=(TIGHT,))}
    assert sentence(decided, known, "en", "inc-1").endswith(
        ", remaining capacity would be insufficient (chat: headroom 0 replicas, needs 1 (8 serving, load needs 8))."
    )


def test_a_hold_names_the_guard_that_holds() -> None:
    held = record(3, AuditEvent.HELD, "inc-1", "held_by_guard", guard="disruption_budget llm/web")
    assert sentence(held, {}, "en", "inc-1") == (
        "No action: a guard holds the next step (a PodDisruptionBudget allows no disruption: llm/web)."
    )


def test_a_scaling_names_its_numbers_and_the_plan_that_ordered_it() -> None:
    chat = EntityRef("c", EntityKind.SERVICE, "llm", "chat")
    scaled = replace(DRAIN, kind=ActionKind.SCALE, target=chat, params={"current": 8, "replicas": 10}, because="plan")
    decided = record(
        1, AuditEvent.ACTION_DECIDED, "scale service/chat", "within_limits", action="act-1", because="plan",
        decision="allowed",
    )  # fmt: skip
    known = {"act-1": scaled}
    assert of_incident([decided], [scaled], "inc-1") == [decided]
    assert sentence(decided, known, "en", "inc-1") == (
        "scale (service chat, 8 to 10 replicas), ordered by the capacity plan: allowed, within the configured limits."
    )
    other = replace(decided, detail={**decided.detail, "because": "inc-2"})
    assert "ordered for incident inc-2" in sentence(other, known, "en", "inc-1")


def test_a_recommendation_is_not_a_request() -> None:
    recommended = record(
        3, AuditEvent.ACTION_DECIDED, "drain node/node-3", "autonomy_recommend", action="act-1", because="inc-1",
        decision="ask", status="proposed",
    )  # fmt: skip
    assert sentence(recommended, {}, "en", "inc-1") == "drain (node-3): recommended, the autonomy level is recommend."


@pytest.mark.parametrize("event", list(AuditEvent))
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_event_has_a_sentence_in_every_language(event: AuditEvent, language: str) -> None:
    text = sentence(record(0, event, "cordon node/node-3", "opened"), {}, language, "inc-1")
    assert text
    assert "story." not in text
    assert "{" not in text
