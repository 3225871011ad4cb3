"""Alerts: rules that hold for an entity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from outrider.model.entities import EntityRef
from outrider.model.findings import Priority

RECEIVED_FROM = "received_from"  # label of an alert that another monitor reported: its source
SCORE = "score"  # annotation of an alert: the highest score of its findings
SOURCE_LABEL = "label."  # prefix of the labels that the source gave


class AlertState(StrEnum):
    """pending -> firing -> resolved."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class AlertReason(StrEnum):
    """Reason for an alert's state."""

    CONDITION_SEEN = "condition_seen"
    WAITING_TIME_OVER = "waiting_time_over"
    STILL_TRUE = "still_true"
    CONDITION_GONE = "condition_gone"
    KEPT_WITHOUT_VALUES = "kept_without_values"
    ABSENT_TOO_LONG = "absent_too_long"
    NEVER_FIRED = "never_fired"
    RESOLVED_BY_HAND = "resolved_by_hand"
    ENTITY_DELETED = "entity_deleted"
    RECEIVED = "received"
    ENDED_AT_SOURCE = "ended_at_source"
    FLAPPING = "flapping"


class MuteReason(StrEnum):
    """Reason why a firing alert sends no notification."""

    ACKNOWLEDGED = "acknowledged"
    SILENCED = "silenced"
    FOLDED = "folded"
    INHIBITED = "inhibited"


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that holds for an entity. ``fingerprint`` is (rule, entity)."""

    fingerprint: str
    rule: str
    priority: Priority
    entity: EntityRef
    state: AlertState
    reason: AlertReason
    starts_at: datetime
    seen_at: datetime
    ends_at: datetime | None = None
    value: float | None = None
    fault: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    muted_by: MuteReason | None = None
    incident: str | None = None

    @property
    def is_received(self) -> bool:
        """True if another monitor reported it."""
        return RECEIVED_FROM in self.labels

    @property
    def score(self) -> float:
        """The highest score (0-1) of its findings in the last cycle; 1 for an alert without a finding."""
        return float(self.annotations.get(SCORE, 1.0))
