"""Pages about repair steps that failed, and about degrade levels that do not end: the reason, the step, its check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from alerts.routing import buttons, wording
from alerts.routing.escalation import Responders, addressees
from alerts.routing.routes import NotificationSettings
from outrider.documents.summaries import word
from outrider.model import Incident, Message, NotifyReason, Priority, Recipient, StepState, StepStatus
from outrider.text.i18n import Language, translate


def messages(
    steps: Iterable[StepStatus],
    reasons: Mapping[str, NotifyReason],
    messaging: NotificationSettings,
    now: datetime,
    incidents: Iterable[Incident] = (),
    responders: Responders | None = None,
) -> tuple[Message, ...]:
    """The messages about steps whose page is due, to the people who respond to their incidents.

    ``reasons`` are those of the incidents: a muted one is silent.
    """
    known = {incident.id: incident for incident in incidents}
    return tuple(
        message
        for step in steps
        if step.page and reasons.get(step.incident) is not NotifyReason.MUTED
        for message in _messages(step, known.get(step.incident), messaging, responders or Responders(), now)
    )


def _messages(
    step: StepStatus, incident: Incident | None, messaging: NotificationSettings, responders: Responders, now: datetime
) -> Iterator[Message]:
    team, people = addressees(incident, responders, messaging.ladders, now) if incident is not None else (None, ())
    messaging = messaging.of_team(team)
    for channel in messaging.channels(Priority.P1):
        message = _message(step, channel, messaging, responders.roster.recipients(people, channel), now)
        if incident is not None:
            personal = channel in messaging.personal
            valid = messaging.buttons_valid
            message = buttons.with_buttons(message, incident, valid, personal=personal, escalates=team is not None)
        yield message


def _message(
    step: StepStatus,
    channel: str,
    messaging: NotificationSettings,
    recipients: tuple[Recipient, ...],
    now: datetime,
) -> Message:
    language = messaging.language_of(channel)
    name = wording.action_name(step.kind, step.target, language)
    return Message(
        id=f"{step.incident}:{NotifyReason.STEP_FAILED}:{channel}:{step.kind}:{step.target.key}",
        channel=channel,
        reason=NotifyReason.STEP_FAILED,
        priority=Priority.P1,
        incident=step.incident,
        title=_title(step, name, language),
        body="\n".join(_lines(step, name, language)),
        created_at=now,
        language=language,
        link=wording.link_to(messaging.base_url, step.incident),
        recipients=recipients,
    )


def _title(step: StepStatus, name: str, language: Language) -> str:
    if step.state is StepState.LEVEL_UNMEASURED:
        return wording.localize("title.level_unmeasured", language, service=step.target.name)
    return wording.localize("title.step_failed", language, action=name)


def _lines(step: StepStatus, name: str, language: Language) -> list[str]:
    if step.state is StepState.LEVEL_UNMEASURED:
        return [translate(step.page, language)]
    lines = [translate(step.page, language), wording.localize("line.failed_step", language, action=name)]
    if step.check:
        name, _, value = step.check.partition(" ")
        condition = word("condition", name, language)
        lines.append(wording.localize("line.failed_check", language, check=f"{condition} {value}".strip()))
    if step.objection is not None:
        reason = word("decision_reason", step.objection.reason, language)
        detail = f" ({step.objection.detail})" if step.objection.detail else ""
        lines.append(wording.localize("line.held_by", language, reason=f"{reason}{detail}"))
    return lines
