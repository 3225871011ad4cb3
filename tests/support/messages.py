"""Messages for tests and pictures of channels, planned by the pipeline from one incident."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from alerts.routing import pipeline
from alerts.routing.routes import NotificationSettings
from alerts.rules.context import SERVICE_LEVEL
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    Button,
    ButtonAction,
    DecisionReason,
    EntityKind,
    EntityRef,
    Evidence,
    Hypothesis,
    Incident,
    Layer,
    Message,
    NotifyReason,
    Priority,
    Verdict,
)

NOW = datetime(2026, 5, 4, 12, 1, tzinfo=UTC)
BASE = "https://outrider.example"
BUTTONS = tuple(
    Button(action, f"{BASE}/buttons/{action.value}?token=abc.def-{action.value}")
    for action in (ButtonAction.ACKNOWLEDGE, ButtonAction.SILENCE_1H, ButtonAction.ESCALATE)
)
_REPLICA = EntityRef("c1", EntityKind.REPLICA, "llm", "chat-0")
_SERVICE = EntityRef("c1", EntityKind.SERVICE, "llm", "chat")
_OPENED = NOW - timedelta(minutes=1)


def _alert(rule: str, entity: EntityRef, **fields: Any) -> Alert:
    return Alert(
        f"{rule}@{entity.name}", rule, Priority.P0, entity, AlertState.FIRING, AlertReason.STILL_TRUE, _OPENED, NOW,
        **fields,
    )  # fmt: skip


def _planned(language: str) -> Message:
    """The first page of a P0, as the pipeline writes it."""
    evidence = Evidence("generation_tokens", 0.0, None, "findings.no_progress", {"seconds": "45"})
    alerts = [
        _alert(
            "engine-hung", _REPLICA, fault="engine-hung",
            annotations={
                "default_action_text": "alerts.engine-hung.action", "runbook": "docs/runbooks/engine-hung.md"
            },
        ),
        _alert("slo-chat-availability", _SERVICE, labels={SERVICE_LEVEL: "true"}),
        _alert("users-wait", _SERVICE),
    ]  # fmt: skip
    incident = Incident(
        "inc-20260504T1200-3f2a", Layer.ENGINE, Priority.P0, _OPENED,
        (Hypothesis(_REPLICA, "engine-hung", 0.92, (evidence,)),), (),
        tuple(alert.fingerprint for alert in alerts), (), NOW, services=("chat",),
    )  # fmt: skip
    restart = Action(
        "act-1", "ses", ActionKind.RESTART_POD, EntityRef("c1", EntityKind.POD, "llm", "chat-0"), {}, incident.id,
        dry_run=False, decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS,
        status=ActionStatus.INTENDED, decided_at=NOW,
    )  # fmt: skip
    messaging = NotificationSettings(routes={"im": ("im",)}, base_url=BASE, languages={"im": language})  # type: ignore[dict-item]
    plan = pipeline.messages([], [incident], alerts, [restart], messaging, NOW)
    (message,) = (message for message in plan.messages if message.reason is NotifyReason.OPENED)
    return replace(message, buttons=BUTTONS)


def a_message(language: str = "zh", **fields: Any) -> Message:
    """The first page of a P0, with changed fields."""
    return replace(_planned(language), **fields)
