"""Notification messages, their reasons and their delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from outrider.model.findings import Priority


class NotifyReason(StrEnum):
    """Reason for a message (or for sending none)."""

    OPENED = "opened"
    PRIORITY_RAISED = "priority_raised"
    REPEAT = "repeat"
    STATUS = "status"
    ACKNOWLEDGED = "acknowledged"
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
class Button:
    """A link that a channel shows as a button. Its text depends on the language of the message.

    One that acts has a ``claim``. It has no ``url`` before its delivery signs it: a link in the store would let its
    readers act.
    """

    action: ButtonAction
    url: str = ""
    claim: ButtonClaim | None = None


@dataclass(frozen=True, slots=True)
class Recipient:
    """A person whom a message addresses, with the addresses that its channel can use.

    ``mentions`` are user ids of the channel. An empty ``phone`` or ``email`` means that none is known.
    """

    name: str
    mentions: tuple[str, ...] = ()
    phone: str = ""
    email: str = ""


class Fact(StrEnum):
    """A fact of an incident that short messages and programs receive by name."""

    WHAT = "what"
    WHERE = "where"
    SINCE = "since"
    IMPACT = "impact"
    CONFIDENCE = "confidence"
    ALERTS = "alerts"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one channel, kept in the outbox until delivery. ``id`` is the deduplication key.

    ``facts`` are in the language of the message. ``also`` are the ids of other incidents that it is about.
    ``failed_channels`` are the channels that could not deliver it; the message is then their fallback. ``recipients``
    empty: the channel notifies those of its own configuration.
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
    facts: Mapping[Fact, str] = field(default_factory=dict)
    buttons: tuple[Button, ...] = ()
    recipients: tuple[Recipient, ...] = ()
    failed_channels: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The rank of the priority; a message without one comes last."""
        return Priority.P3.rank + 1 if self.priority is None else self.priority.rank

    @property
    def is_urgent(self) -> bool:
        """True for a notification of a P0 or P1 that a person must see now."""
        return self.rank <= Priority.P1.rank and self.reason not in _INFORMATIVE


_INFORMATIVE = frozenset(
    {
        NotifyReason.STATUS,
        NotifyReason.ACKNOWLEDGED,
        NotifyReason.MOVED,
        NotifyReason.RESOLVED,
        NotifyReason.SHIFT_SUMMARY,
        NotifyReason.REPORT,
        NotifyReason.TEST,
    }
)


class DeliveryNote(StrEnum):
    """What is unusual about a delivery."""

    PLAIN_TEXT = "plain_text"
    TEMPLATE_FAILED = "template_failed"
    NOT_NEEDED = "not_needed"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof of a delivery. ``id`` is the id that the vendor returned; empty if it returned none.

    ``merged`` is the number of messages that were delivered as one. ``new_thread``: the first message of the incident
    is gone, so this one takes its place. ``unreached`` are the phone numbers that failed for now, while others were
    accepted.
    """

    id: str = ""
    note: DeliveryNote | None = None
    merged: int = 1
    new_thread: bool = False
    unreached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be delivered and is not retried any more."""

    message: Message
    failed_at: datetime
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``count`` messages in any time of length ``per``."""

    count: int
    per: timedelta


@dataclass(frozen=True, slots=True)
class ChannelPolicy:
    """How the messages of one channel are delivered.

    ``limit`` None: unlimited. ``merges``: messages that wait for the limit may become one. ``fallback`` receives what
    the channel cannot deliver: urgent messages at once, others ``fallback_after`` the first failure. ``accepts`` is
    False for messages that the channel does not send, such as the end of an incident on a phone; None accepts all.
    ``personal``: it delivers to the named recipients alone. ``per_number``: the limit is that of each phone number.
    """

    limit: RateLimit | None = None
    merges: bool = True
    fallback: str | None = None
    fallback_after: timedelta = timedelta(minutes=5)
    accepts: Callable[[Message], bool] | None = None
    personal: bool = False
    per_number: bool = False
