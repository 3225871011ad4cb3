"""Buttons of messages: which ones a message has, and what each of them claims when it is pressed.

The number of a button derives from its message, so that two engines give the same button the same number. It acts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from outrider.model import Action, Button, ButtonAction, ButtonClaim, Incident, Message, NotifyReason

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


Sign = Callable[[ButtonClaim], str]  # returns the URL of a claim


def nonce_of(message_id: str, action: ButtonAction) -> str:
    """The number of a button: 24 hex digits."""
    return hashlib.sha256(f"{message_id}\n{action}".encode(errors="surrogatepass")).hexdigest()[:24]


def with_buttons(
    message: Message,
    incident: Incident | None,
    valid: timedelta | None,
    *,
    personal: bool,
    escalates: bool = False,
    action: Action | None = None,
) -> Message:
    """The message with its buttons, which are ``valid`` for a time; None: only the one that opens the incident.

    ``personal``: the channel mails the recipients alone. ``escalates``: the incident has a ladder. An approval of the
    plan has no ``incident``.
    """
    buttons: list[Button] = []
    if valid is not None:
        alone = personal and len(message.recipients) == 1 and message.recipients[0].email
        owner = message.recipients[0].name if alone else ""
        for kind in _kinds(message, incident, action, escalates=escalates):
            subject = action.id if kind is ButtonAction.APPROVE and action is not None else message.incident or ""
            expires_at, nonce = message.created_at + valid, nonce_of(message.id, kind)
            buttons.append(Button(kind, claim=ButtonClaim(kind, subject, owner, message.channel, expires_at, nonce)))
    if message.link:
        buttons.append(Button(ButtonAction.OPEN, message.link))
    return replace(message, buttons=tuple(buttons))


def signed(message: Message, sign: Sign | None) -> Message:
    """The message as its channel sends it: with a link for each claim. Without ``sign`` those buttons are left out."""
    buttons = [
        replace(button, url=sign(button.claim), claim=None) if button.claim is not None and sign else button
        for button in message.buttons
        if button.claim is None or sign is not None
    ]
    return replace(message, buttons=tuple(buttons))


def _kinds(
    message: Message, incident: Incident | None, action: Action | None, *, escalates: bool
) -> list[ButtonAction]:
    if message.reason is NotifyReason.APPROVAL_WANTED and action is not None:
        return [ButtonAction.APPROVE]
    if incident is None or message.reason not in _OF_INCIDENT or incident.resolved_at is not None:
        return []
    kinds = [] if incident.acknowledged_at is not None else [ButtonAction.ACKNOWLEDGE]
    kinds.append(ButtonAction.SILENCE_1H)
    return [*kinds, ButtonAction.ESCALATE] if escalates else kinds
