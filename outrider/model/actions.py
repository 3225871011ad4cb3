"""What remediation may do, why, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from outrider.model.entities import EntityRef


class ActionKind(StrEnum):
    """What remediation can do to a cluster."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    RESTART_POD = "restart_pod"
    SHIFT_TRAFFIC = "shift_traffic"
    RESTORE_TRAFFIC = "restore_traffic"
    SCALE = "scale"
    ROLLBACK = "rollback"


class Verdict(StrEnum):
    """The guard rails' answer."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    ASK = "ask"


class DecisionReason(StrEnum):
    """Why the guard rails answered so. The first that applies, in this order of severity."""

    WITHIN_LIMITS = "within_limits"
    PAUSED = "paused"
    MONITOR_BLIND = "monitor_blind"
    VALUES_NOT_TRUSTED = "values_not_trusted"
    LOW_CONFIDENCE = "low_confidence"
    AUTONOMY_SUGGEST = "autonomy_suggest"
    NEEDS_APPROVAL = "needs_approval"
    COOLDOWN = "cooldown"
    RATE_LIMIT = "rate_limit"
    TOO_MANY_NODES = "too_many_nodes"
    SERVICE_MINIMUM = "service_minimum"
    NO_HEADROOM = "no_headroom"
    NOT_OURS = "not_ours"
    ALREADY_DONE = "already_done"
    NOT_IN_MAINTENANCE_WINDOW = "not_in_maintenance_window"
    UNKNOWN_TARGET = "unknown_target"
    APPROVED = "approved"
    REJECTED_BY_HAND = "rejected_by_hand"
    RECOVERED = "recovered"
    EXPIRED = "expired"


class HoldReason(StrEnum):
    """Why nothing new is done about an open incident, or about a plan that wants another number of replicas."""

    CAUSE_UNKNOWN = "cause_unknown"
    NO_PLAYBOOK = "no_playbook"
    RECOVERED = "recovered"
    NO_STEP_DUE = "no_step_due"  # what could be done is under way, was tried, refused, or waits its turn
    NOT_DUE_YET = "not_due_yet"
    SERVICE_IN_TROUBLE = "service_in_trouble"
    STANDS = "stands"  # decided before, and that decision stands


class ActionStatus(StrEnum):
    """Life of an action: an intent is claimed, performed and its outcome recorded."""

    PROPOSED = "proposed"
    WAITING_APPROVAL = "waiting_approval"
    INTENDED = "intended"
    CLAIMED = "claimed"
    DONE = "done"
    DRY_RUN = "dry_run"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Action:
    """One step to take. ``id`` is the idempotency key: the same id is never performed twice."""

    id: str
    session: str
    kind: ActionKind
    target: EntityRef
    params: Mapping[str, Any]
    because: str  # incident id, or "plan"
    dry_run: bool
    decision: Verdict
    reason: DecisionReason
    status: ActionStatus
    decided_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    detail: str = ""
    approved_by: str | None = None


class OutcomeStatus(StrEnum):
    """What became of a performed action."""

    DONE = "done"
    ALREADY = "already"
    DRY_RUN = "dry_run"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of one performed action."""

    action_id: str
    status: OutcomeStatus
    detail: str
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class RemediationSession:
    """All actions taken for one incident. ``cordoned`` are the nodes this session cordoned."""

    id: str
    incident: str
    opened_at: datetime
    closed_at: datetime | None = None
    cordoned: tuple[EntityRef, ...] = ()
