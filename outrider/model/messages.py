"""What people are sent, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from outrider.model.findings import Priority


class NotifyReason(StrEnum):
    """Why a message goes out (or why none does)."""

    OPENED = "opened"
    PRIORITY_RAISED = "priority_raised"
    REPEAT = "repeat"
    RESOLVED = "resolved"
    APPROVAL_WANTED = "approval_wanted"
    REPORT = "report"
    TEST = "test"
    NOT_CHANGED = "not_changed"
    MUTED = "muted"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one channel, kept in the outbox until it is delivered. ``id`` deduplicates.

    ``also`` are the ids of further incidents that it is the first message about.
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
