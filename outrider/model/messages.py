"""Notification messages and their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from outrider.model.findings import Priority


class NotifyReason(StrEnum):
    """Reason for a message (or for sending none)."""

    OPENED = "opened"
    PRIORITY_RAISED = "priority_raised"
    REPEAT = "repeat"
    STATUS = "status"
    ESCALATED = "escalated"
    REROUTED = "rerouted"
    MOVED = "moved"
    ASSIGNED = "assigned"
    RESOLVED = "resolved"
    APPROVAL_WANTED = "approval_wanted"
    STEP_FAILED = "step_failed"
    APPROVAL_EXPIRED = "approval_expired"
    BREAKER_OPENED = "breaker_opened"
    SHIFT_SUMMARY = "shift_summary"
    REPORT = "report"
    TEST = "test"
    NOT_CHANGED = "not_changed"
    MUTED = "muted"


class ButtonAction(StrEnum):
    """What a button does."""

    ACKNOWLEDGE = "acknowledge"
    SILENCE_1H = "silence_1h"
    ESCALATE = "escalate"
    APPROVE = "approve"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Button:
    """A link that a channel shows as a button. Its text depends on the language of the message."""

    action: ButtonAction
    url: str


@dataclass(frozen=True, slots=True)
class Recipient:
    """A person whom a message addresses, with the addresses that its channel can use.

    ``mentions`` are user ids of the channel. An empty ``phone`` or ``email`` means that none is known.
    """

    name: str
    mentions: tuple[str, ...] = ()
    phone: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one channel, kept in the outbox until delivery. ``id`` is the deduplication key.

    ``also`` are the ids of other incidents that it is about. ``recipients`` empty: the channel
    notifies those of its own configuration.
    """

    id: str
    channel: str
    reason: NotifyReason
    priority: Priority | None
    incident: str | None
    title: str
    body: str
    created_at: datetime
    language: str = "en"
    link: str | None = None
    is_page: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    buttons: tuple[Button, ...] = ()
    recipients: tuple[Recipient, ...] = ()
