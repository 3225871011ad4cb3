"""Pages about failed repair steps."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from alerts.routing import failed_steps
from alerts.routing.routes import NotificationSettings
from outrider.model import (
    ActionKind,
    DecisionReason,
    EntityKind,
    EntityRef,
    GuardAnswer,
    StepState,
    StepStatus,
    Verdict,
)
from outrider.text.i18n import Language

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NODE = EntityRef("c1", EntityKind.NODE, None, "node-0")
BUDGET = GuardAnswer("disruption_budget", Verdict.REFUSED, DecisionReason.DISRUPTION_BUDGET, "web/router")


@pytest.mark.parametrize(("language", "reason"), [("en", "Held by: "), ("zh", "阻止原因：")])
def test_a_page_names_what_the_guard_objects_to(language: Language, reason: str) -> None:
    messaging = NotificationSettings(routes={"im": ("oncall",)}, language=language)
    step = StepStatus("inc-1", ActionKind.DRAIN, NODE, StepState.FAILED, page="playbooks.step_held", objection=BUDGET)
    (message,) = failed_steps.messages([step], {}, messaging, NOW)
    (line,) = [line for line in message.body.splitlines() if line.startswith(reason)]
    assert "web/router" in line
