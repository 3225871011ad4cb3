"""Audit records: an append-only log of decisions, separate from diagnostic logs.

Every record has the same join keys: cycle, subject, reason. ``AuditEvent`` lists all kinds of records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

_SECRET_WORDS = (
    "token", "secret", "password", "passwd", "authorization", "api_key", "apikey", "access_key", "private_key",
    "credential", "bearer", "dsn", "webhook_url",
)  # fmt: skip
# secret parts of a URL: the user before the @, and the values of its query
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)|(?<=[?&])([\w.-]+)=[^&\s'\"#]+")
REDACTED = "[redacted]"


class AuditEvent(StrEnum):
    """Kinds of audit records."""

    ALERT_CHANGED = "alert_changed"
    ALERT_MUTED = "alert_muted"
    ALERT_UNMUTED = "alert_unmuted"
    INCIDENT_OPENED = "incident_opened"
    INCIDENT_RESOLVED = "incident_resolved"
    CAUSE_CHANGED = "cause_changed"
    HELD = "held"
    MESSAGE_DECIDED = "message_decided"
    ACTION_DECIDED = "action_decided"
    STEP_CHECKED = "step_checked"
    ACTION_PERFORMED = "action_performed"
    ACTION_APPROVED = "action_approved"
    ACTION_REJECTED = "action_rejected"
    PLAN_MADE = "plan_made"
    ACKNOWLEDGED = "acknowledged"
    INCIDENT_COMMENTED = "incident_commented"
    INCIDENT_ASSIGNED = "incident_assigned"
    ESCALATION_REQUESTED = "escalation_requested"
    FOLLOW_UP_ADDED = "follow_up_added"
    FOLLOW_UP_CHANGED = "follow_up_changed"
    FOLLOW_UP_CLOSED = "follow_up_closed"
    SHIFT_OVERRIDDEN = "shift_overridden"
    SHIFT_OVERRIDE_REMOVED = "shift_override_removed"
    BUTTON_USED = "button_used"
    BUTTON_REFUSED = "button_refused"
    RESOLVED_BY_HAND = "resolved_by_hand"
    SILENCED = "silenced"
    UNSILENCED = "unsilenced"
    ACTION_REQUESTED = "action_requested"
    SERVICE_RESTORED = "service_restored"
    BREAKER_OPENED = "breaker_opened"
    BREAKER_RESET = "breaker_reset"
    KILL_SWITCH_ON = "kill_switch_on"
    KILL_SWITCH_OFF = "kill_switch_off"
    PAUSED = "paused"
    RESUMED = "resumed"
    CLOCK_STEPPED_BACK = "clock_stepped_back"
    CONFIG_LOADED = "config_loaded"
    MESSAGE_DELIVERED = "message_delivered"
    MESSAGE_FAILED = "message_failed"
    MESSAGE_RETRIED = "message_retried"
    FALLBACK_USED = "fallback_used"
    WRITE_REFUSED = "write_refused"
    DRILL_STARTED = "drill_started"
    DRILL_STOPPED = "drill_stopped"
    DRILL_REFUSED = "drill_refused"
    FEEDBACK_GIVEN = "feedback_given"
    RULE_TUNED = "rule_tuned"
    RULE_REVERTED = "rule_reverted"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One decision or action. ``by`` is a person's name or ``outrider``; ``id`` is assigned by the store, 0 before."""

    at: datetime
    event: AuditEvent
    subject: str
    reason: str
    cycle: str = ""
    by: str = "outrider"
    detail: Mapping[str, str] = field(default_factory=dict)
    id: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        """Redacts secrets in every record."""
        object.__setattr__(self, "detail", redact(self.detail))


def redact(values: Mapping[str, str]) -> dict[str, str]:
    """Replaces the values of secret keys, and secrets in the URLs of other values."""
    return {key: REDACTED if is_secret(key) else redact_text(value) for key, value in values.items()}


def redact_text(text: str) -> str:
    """Removes users and query values from every URL in a text; everything else stays readable."""
    if "://" not in text:
        return text
    return _IN_URL.sub(lambda match: f"{match[1]}={REDACTED}" if match[1] else REDACTED, text)


def is_secret(key: str) -> bool:
    """True for a key whose value must never be written out."""
    lowered = key.lower()
    if lowered.startswith(("tokens", "engine_", "svc_")) or lowered.endswith(("_file", "_tokens")):
        return False
    return any(word in lowered for word in _SECRET_WORDS)
