"""Remediation actions: kinds, reasons, status and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from outrider.model.entities import EntityKind, EntityRef
from outrider.model.plans import ReasonText


class ActionKind(StrEnum):
    """Actions that remediation can perform on a cluster."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    RESTART_POD = "restart_pod"
    DELETE_STUCK_POD = "delete_stuck_pod"
    SHIFT_TRAFFIC = "shift_traffic"
    RESTORE_TRAFFIC = "restore_traffic"
    SCALE = "scale"
    ROLLBACK = "rollback"
    PAUSE_ROLLOUT = "pause_rollout"
    RESUME_ROLLOUT = "resume_rollout"
    BALANCE_TRAFFIC = "balance_traffic"
    SWITCH_CLUSTER = "switch_cluster"
    SLEEP_ENGINE = "sleep_engine"
    WAKE_ENGINE = "wake_engine"
    DRAIN_ENGINE = "drain_engine"
    RESUME_ENGINE = "resume_engine"
    RESET_PREFIX_CACHE = "reset_prefix_cache"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    RUN_DIAGNOSTIC = "run_diagnostic"
    DEGRADE_SERVICE = "degrade_service"
    RESTORE_SERVICE = "restore_service"


_ON_NODES = frozenset({EntityKind.NODE})
_ON_HARDWARE = frozenset({EntityKind.NODE, EntityKind.GPU})
_ON_PODS = frozenset({EntityKind.POD, EntityKind.REPLICA})
_ON_SERVICES = frozenset({EntityKind.SERVICE})
TARGET_KINDS: Mapping[ActionKind, frozenset[EntityKind]] = {
    ActionKind.CORDON: _ON_NODES,
    ActionKind.UNCORDON: _ON_NODES,
    ActionKind.DRAIN: _ON_NODES,
    ActionKind.RESTART_POD: _ON_PODS,
    ActionKind.DELETE_STUCK_POD: _ON_PODS,
    ActionKind.SHIFT_TRAFFIC: _ON_PODS | _ON_SERVICES,
    ActionKind.RESTORE_TRAFFIC: _ON_PODS | _ON_SERVICES,
    ActionKind.SCALE: _ON_SERVICES,
    ActionKind.ROLLBACK: _ON_SERVICES,
    ActionKind.PAUSE_ROLLOUT: _ON_SERVICES,
    ActionKind.RESUME_ROLLOUT: _ON_SERVICES,
    ActionKind.BALANCE_TRAFFIC: _ON_SERVICES,
    ActionKind.SWITCH_CLUSTER: _ON_SERVICES | {EntityKind.CLUSTER},
    ActionKind.SLEEP_ENGINE: _ON_PODS,
    ActionKind.WAKE_ENGINE: _ON_PODS,
    ActionKind.DRAIN_ENGINE: _ON_PODS,
    ActionKind.RESUME_ENGINE: _ON_PODS,
    ActionKind.RESET_PREFIX_CACHE: _ON_PODS,
    ActionKind.RESET_GPU: _ON_HARDWARE,
    ActionKind.REBOOT_NODE: _ON_HARDWARE,
    ActionKind.RUN_DIAGNOSTIC: _ON_HARDWARE,
    ActionKind.DEGRADE_SERVICE: _ON_SERVICES,
    ActionKind.RESTORE_SERVICE: _ON_SERVICES,
}
"""The kinds of entities on which an action can be performed.

A replica stands for its pods if no page or list names them. The node of a device is restarted, reset or diagnosed.
"""


class Verdict(StrEnum):
    """Verdict of the guard rails."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    ASK = "ask"


class DecisionReason(StrEnum):
    """Reason of the guard rails' verdict. The first that applies, in this order of severity."""

    WITHIN_LIMITS = "within_limits"
    PAUSED = "paused"
    KILL_SWITCH = "kill_switch"
    BREAKER_OPEN = "breaker_open"
    MONITOR_BLIND = "monitor_blind"
    VALUES_NOT_TRUSTED = "values_not_trusted"
    LOW_CONFIDENCE = "low_confidence"
    REPORTED_ONLY = "reported_only"  # the cause is known from other monitors only
    AUTONOMY_OBSERVE = "autonomy_observe"
    AUTONOMY_RECOMMEND = "autonomy_recommend"
    AUTONOMY_APPROVE = "autonomy_approve"
    NEEDS_APPROVAL = "needs_approval"
    NEEDS_SECOND_APPROVAL = "needs_second_approval"
    COOLDOWN = "cooldown"
    RATE_LIMIT = "rate_limit"
    TOO_MANY_NODES = "too_many_nodes"
    SERVICE_MINIMUM = "service_minimum"
    NO_HEADROOM = "no_headroom"
    NOT_OURS = "not_ours"
    OWNED = "owned"
    PROTECTED = "protected"
    ALREADY_DONE = "already_done"
    DISRUPTION_BUDGET = "disruption_budget"
    FREEZE = "freeze"
    NOT_IN_MAINTENANCE_WINDOW = "not_in_maintenance_window"
    UNKNOWN_TARGET = "unknown_target"
    WRONG_TARGET = "wrong_target"  # an action of this kind cannot be performed on such a component
    NO_PERFORMER = "no_performer"  # the configured performer cannot perform this kind
    OTHER_CLUSTER = "other_cluster"  # the performer of the action does not reach the target's cluster
    APPROVED = "approved"
    REJECTED_BY_HAND = "rejected_by_hand"
    RECOVERED = "recovered"
    RECOVERED_BY_VALUES = "recovered_by_values"  # un-cordoned without a diagnostic, as none is configured
    TOO_MANY_EJECTED = "too_many_ejected"
    HALF_OPEN = "half_open"
    FAILED_AGAIN = "failed_again"
    EXPIRED = "expired"
    RESTORED_BY_HAND = "restored_by_hand"
    # a request was withdrawn
    REQUEST_CHANGED = "request_changed"  # another request replaces it
    APPROVAL_NOT_NEEDED = "approval_not_needed"
    PRECONDITION_NOT_MET = "precondition_not_met"
    PLAN_CHANGED = "plan_changed"
    CLUSTER_ANSWERS = "cluster_answers"
    DIAGNOSTIC_NOT_NEEDED = "diagnostic_not_needed"


class HoldReason(StrEnum):
    """Reason for no new action on an open incident, or on a plan that wants another number of replicas."""

    CAUSE_UNKNOWN = "cause_unknown"
    NO_PLAYBOOK = "no_playbook"
    RECOVERED = "recovered"
    NO_REMEDY = "no_remedy"  # the playbook explains why nothing is done automatically
    PRECONDITION_NOT_MET = "precondition_not_met"
    VERIFYING = "verifying"  # a step is done, and its check does not hold yet
    HELD_BY_GUARD = "held_by_guard"  # a guard refuses a step for now; later steps wait for it
    STEP_FAILED = "step_failed"  # a step failed, and a person was paged
    DIAGNOSTIC_RUNNING = "diagnostic_running"
    DIAGNOSTIC_FAILED = "diagnostic_failed"  # the node stays out of service until a person decides
    NODE_NOT_REPORTED = "node_not_reported"  # a cordoned node exists, and monitoring lost it
    LEVEL_UNMEASURED = "level_unmeasured"  # a degrade level stays while no trusted value shows the load
    NO_STEP_DUE = "no_step_due"  # every possible action is in progress, was tried, refused, or is queued
    NOT_DUE_YET = "not_due_yet"
    SERVICE_IN_TROUBLE = "service_in_trouble"
    STANDS = "stands"  # decided before, and the decision stands


class StepState(StrEnum):
    """State of a playbook step on one target. The check of a step decides, not the end of its action."""

    PRECONDITION_NOT_MET = "precondition_not_met"
    HELD_BY_GUARD = "held_by_guard"
    VERIFYING = "verifying"
    VERIFIED = "verified"
    FAILED = "failed"  # the action failed, or its check did not hold in time
    DIAGNOSTIC_RUNNING = "diagnostic_running"
    DIAGNOSTIC_FAILED = "diagnostic_failed"
    NODE_NOT_REPORTED = "node_not_reported"
    LEVEL_UNMEASURED = "level_unmeasured"  # of a degrade level, which no trusted value ends


class ActionStatus(StrEnum):
    """Life cycle of an action: an intent is claimed, performed and its outcome recorded."""

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
class GuardAnswer:
    """The answer of one guard. ``reason`` is WITHIN_LIMITS if it allows the action; ``detail`` names what objects.

    ``compared`` are the numbers and names that it compared, as texts for a person.
    """

    guard: str
    verdict: Verdict
    reason: DecisionReason
    detail: str = ""
    compared: tuple[ReasonText, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``id`` is the idempotency key: the same id is never performed twice.

    ``objections`` are the guards that did not allow it. ``approvals`` are the people who approved so far, of whom
    ``approvals_needed`` are required; the last one came at ``approved_at``. ``requested_by`` requested a recommended or
    expired action by hand.
    """

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
    objections: tuple[GuardAnswer, ...] = ()
    approvals: tuple[str, ...] = ()
    approvals_needed: int = 1
    requested_by: str | None = None
    approved_at: datetime | None = None

    def counts_approval_of(self, person: str) -> bool:
        """True if this person's approval adds to the ones so far.

        The same person counts once. Of two people, neither may have requested the action by hand.
        """
        known = {name.casefold() for name in self.approvals}
        if self.requested_by is not None and self.approvals_needed > 1:
            known.add(self.requested_by.casefold())
        return person.casefold() not in known


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The breaker of remediation: while it is open, only undo actions pass.

    It opened because ``unsuccessful`` of ``performed`` actions failed or were followed by no recovery. ``reset_at`` is
    the last reset by a person; earlier actions no longer count.
    """

    opened_at: datetime | None = None
    unsuccessful: int = 0
    performed: int = 0
    reset_at: datetime | None = None
    reset_by: str = ""

    @property
    def is_open(self) -> bool:
        """True until a person resets it."""
        return self.opened_at is not None


class OutcomeStatus(StrEnum):
    """Result of a performed action. IN_PROGRESS: it is performed again later, until it is done."""

    DONE = "done"
    ALREADY = "already"
    DRY_RUN = "dry_run"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One write that an action sends. ``url`` is absolute, or the path on the API server."""

    method: str
    url: str
    body: Any = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of one performed action."""

    action_id: str
    status: OutcomeStatus
    detail: str
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class StepStatus:
    """One step of a playbook in this round. ``check`` is the condition that it waits for, empty without one.

    ``page`` is the reason to page a person about the state: a text id or plain text, empty without one. The page is
    sent once the state has lasted ``page_after``. ``objection`` is that of the guard that holds the step.
    """

    incident: str
    kind: ActionKind
    target: EntityRef
    state: StepState
    check: str = ""
    page: str = ""
    objection: GuardAnswer | None = None
    page_after: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class RemediationSession:
    """All actions for one incident. ``cordoned`` are the nodes cordoned by this session."""

    id: str
    incident: str
    opened_at: datetime
    closed_at: datetime | None = None
    cordoned: tuple[EntityRef, ...] = ()
