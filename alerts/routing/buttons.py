"""Buttons of messages: which ones a message has, and what each of them claims when it is pressed.

The number of a button derives from its message, so that two engines give the same button the same number. It acts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outrider.model import Action, Button, ButtonAction, Incident, Message, NotifyReason

_OF_INCIDENT = frozenset(
    {
        NotifyReason.OPENED,
        NotifyReason.PRIORITY_RAISED,
        NotifyReason.REPEAT,
        NotifyReason.ESCALATED,
        NotifyReason.REROUTED,
        NotifyReason.ASSIGNED,
        NotifyReason.STATUS,
        NotifyReason.STEP_FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class ButtonClaim:
    """What a pressed button asks for. ``subject`` is the id of an incident or action.

    ``recipient`` is the only person who received it; empty if several people did, who then give their name.
    """

    action: ButtonAction
    subject: str
    recipient: str
    channel: str
    expires_at: datetime
    nonce: str


@dataclass(frozen=True, slots=True)
class ButtonLinks:
    """``sign`` returns the URL of a claim. A button is valid for a time from its message on."""

    sign: Callable[[ButtonClaim], str]
    valid: timedelta = timedelta(hours=12)


def nonce_of(message_id: str, action: ButtonAction) -> str:
    """The number of a button: 24 hex digits."""
    return hashlib.sha256(f"{message_id}\n{action}".encode(errors="surrogatepass")).hexdigest()[:24]


def with_buttons(
    message: Message,
    incident: Incident,
    links: ButtonLinks | None,
    *,
    escalates: bool,
    personal: bool,
    action: Action | None,
) -> Message:
    """The message with its buttons. Without ``links`` there is only the one that opens the incident.

    ``escalates``: the incident has a ladder. ``personal``: the channel mails the recipients alone.
    """
    buttons: list[Button] = []
    if links is not None:
        alone = personal and len(message.recipients) == 1 and message.recipients[0].email
        owner = message.recipients[0].name if alone else ""
        for kind in _kinds(message, incident, action, escalates=escalates):
            subject = action.id if kind is ButtonAction.APPROVE and action is not None else incident.id
            claim = ButtonClaim(
                kind, subject, owner, message.channel, message.created_at + links.valid, nonce_of(message.id, kind)
            )
            buttons.append(Button(kind, links.sign(claim)))
    if message.link:
        buttons.append(Button(ButtonAction.OPEN, message.link))
    return replace(message, buttons=tuple(buttons))


def _kinds(message: Message, incident: Incident, action: Action | None, *, escalates: bool) -> list[ButtonAction]:
    if message.reason is NotifyReason.APPROVAL_WANTED and action is not None:
        return [ButtonAction.APPROVE]
    if message.reason not in _OF_INCIDENT or incident.resolved_at is not None:
        return []
    kinds = [] if incident.acknowledged_at is not None else [ButtonAction.ACKNOWLEDGE]
    kinds.append(ButtonAction.SILENCE_1H)
    return [*kinds, ButtonAction.ESCALATE] if escalates else kinds
