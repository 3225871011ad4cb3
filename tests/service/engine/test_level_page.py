"""A degrade level that nothing measures: one page after some time, in the language of its channel."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from outrider.audit import AuditEvent
from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, Message, RemediationSession, Verdict
from remediation.procedures import files
from remediation.procedures.bundle import Procedures
from remediation.procedures.degrade_ladder import Ladders
from service.engine.audit_trail import StandingReasons
from service.engine.decide import decide
from service.engine.inputs import StoredState
from tests.service.engine.test_decide import NOW, SERVICE, STEP, collected, inputs, setup

MINUTE = timedelta(minutes=1)
SESSION = RemediationSession("ses", "inc", NOW - 30 * MINUTE)
LADDERS = Ladders(files.ladder())
LEVEL = Action(
    "act", "ses", ActionKind.DEGRADE_SERVICE, SERVICE, LADDERS.parameters("chat", 4), "inc", False, Verdict.ALLOWED,
    DecisionReason.WITHIN_LIMITS, ActionStatus.DONE, NOW - 20 * MINUTE, NOW - 20 * MINUTE, NOW - 20 * MINUTE,
)  # fmt: skip


def cycles(count: int, *, language: str = "en") -> tuple[list[tuple[timedelta, Message]], list[str]]:
    """The pages of these cycles with their times, and the reasons of the holds on record."""
    detection, config = setup()
    config = replace(
        config,
        procedures=Procedures(LADDERS),
        messaging=replace(config.messaging, language=language),
    )
    standing, pages, held = StandingReasons(), [], []
    for number in range(count):
        now = NOW + 2 * number * STEP
        given = inputs(detection, collected(), now, StoredState(sessions=(SESSION,), actions=(LEVEL,)))
        outcome = decide(replace(given, standing=standing), config)
        standing = outcome.standing
        pages += [(now - NOW, message) for message in outcome.commit.messages]
        held += [record.reason for record in outcome.commit.audit if record.event is AuditEvent.HELD]
    return pages, held


def test_a_level_without_values_is_held_once_and_paged_once_after_the_wait() -> None:
    pages, held = cycles(60)
    ((after, message),) = pages
    assert after == files.ladder().unmeasured_exit
    assert message.incident == "inc"
    assert message.title == "[degraded] chat does not return by itself"
    assert "outrider remediate restore" in message.body
    assert held == ["level_unmeasured"]


def test_a_short_gap_pages_nobody() -> None:
    pages, _ = cycles(19)
    assert not pages


def test_the_page_is_in_the_language_of_the_channel() -> None:
    ((_, message),) = cycles(25, language="zh")[0]
    assert "保持降级" in message.body
