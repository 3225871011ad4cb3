"""Pages about failed repair steps."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from alerts.oncall.roster import Person, Roster, Team
from alerts.routing import failed_steps
from alerts.routing.escalation import Responders
from alerts.routing.routes import NotificationSettings
from outrider.model import (
    ActionKind,
    ButtonAction,
    DecisionReason,
    EntityKind,
    EntityRef,
    GuardAnswer,
    Incident,
    Layer,
    Priority,
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


def test_a_page_goes_to_the_person_who_responds_to_the_incident() -> None:
    incident = Incident("inc-1", Layer.HARDWARE, Priority.P1, NOW, (), (), (), (), NOW)
    team = Team("hardware", ("zhao",), lead="zhao", groups={"im": ("ding-hw",)})
    responders = Responders(Roster({"zhao": Person("zhao")}, (team,)))
    step = StepStatus("inc-1", ActionKind.DRAIN, NODE, StepState.FAILED, page="playbooks.step_held")
    messaging = NotificationSettings(routes={"im": ("oncall",)})
    (message,) = failed_steps.messages([step], {}, messaging, NOW, [incident], responders)
    assert message.channel == "ding-hw"
    assert [recipient.name for recipient in message.recipients] == ["zhao"]
    assert [button.action for button in message.buttons] == [ButtonAction.OPEN]
