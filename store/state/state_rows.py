"""Decisions as rows: their query columns, and the rules for merging writes.

The same rules hold for every state store: a cycle never undoes an operator action that it had not seen, and a claimed
action ends once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
import zstandard

from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import rfc3339
from outrider.errors import StoreError
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    DecisionReason,
    DetectorState,
    DetectorStatus,
    EntityKind,
    EntityRef,
    Incident,
    Message,
    Outcome,
    OutcomeStatus,
    Receipt,
    RemediationSession,
    SignalKey,
    Verdict,
    Window,
)
from outrider.records.feedback import Feedback
from outrider.topology import Topology
from store.schema import json_codec
from store.schema.metadata import micros

INSTALLATION_BYTES: Final = 4
KEPT_CYCLES: Final = 10_000  # 41 hours of 15 s cycles
NOT_URGENT: Final = 2
KEPT_PLANS: Final = 2_000  # two weeks of plans every 10 min, for the error of past forecasts

_ENDED = {
    OutcomeStatus.DONE: ActionStatus.DONE,
    OutcomeStatus.ALREADY: ActionStatus.DONE,
    OutcomeStatus.DRY_RUN: ActionStatus.DRY_RUN,
    OutcomeStatus.FAILED: ActionStatus.FAILED,
}
# raised by numpy for a truncated, overwritten or foreign archive
_DAMAGED = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, EOFError, NotImplementedError,
    BadZipFile, zlib.error,
)  # fmt: skip
_UNANSWERED = (ActionStatus.PROPOSED, ActionStatus.WAITING_APPROVAL)
_UNCLAIMED = (*_UNANSWERED, ActionStatus.INTENDED)


def maybe_micros(instant: datetime | None) -> int | None:
    """``micros``, or None for None."""
    return None if instant is None else micros(instant)


# --- merge rules ----------------------------------------------------------------------------------


def keep_hand(stored: Alert | None, incoming: Alert) -> Alert:
    """The alert to keep: an occurrence that was resolved manually stays resolved."""
    by_hand = stored is not None and stored.reason is AlertReason.RESOLVED_BY_HAND
    return stored if by_hand and stored is not None else incoming


def keep_acknowledgement(stored: Incident | None, incoming: Incident) -> Incident:
    """The incident to keep: an acknowledgement during the cycle is not lost."""
    if stored is None or stored.acknowledged_at is None or incoming.acknowledged_at is not None:
        return incoming
    return replace(incoming, acknowledged_at=stored.acknowledged_at, acknowledged_by=stored.acknowledged_by)


def cancels(stored: Action, incoming: Action) -> bool:
    """True if a cycle cancels an unclaimed action or expires a request; other writes leave a known action unchanged.

    A request that a person answered or repeated meanwhile does not expire.
    """
    if incoming.status is ActionStatus.REFUSED and incoming.reason is DecisionReason.EXPIRED:
        same = (stored.decided_at, stored.approvals) == (incoming.decided_at, incoming.approvals)
        return same and stored.status in _UNANSWERED
    return incoming.status is ActionStatus.CANCELLED and stored.status in _UNCLAIMED


def resolved_by_hand(alert: Alert, now: datetime) -> Alert:
    """The alert, resolved."""
    return replace(alert, state=AlertState.RESOLVED, reason=AlertReason.RESOLVED_BY_HAND, seen_at=now, ends_at=now)


def decided(action: Action, by: str, now: datetime, *, approve: bool) -> Action:
    """A waiting action after a person's approval or rejection."""
    if approve:
        return _approved(action, by, now)
    return replace(
        action,
        status=ActionStatus.REFUSED,
        decision=Verdict.REFUSED,
        reason=DecisionReason.REJECTED_BY_HAND,
        ended_at=now,
    )


def _approved(action: Action, by: str, now: datetime) -> Action:
    """The action with one more approval, intended once there are enough. An approval that does not count is ignored."""
    if not action.counts_approval_of(by):
        return action
    approvals = (*action.approvals, by)
    if len(approvals) < action.approvals_needed:
        return replace(action, approvals=approvals, reason=DecisionReason.NEEDS_SECOND_APPROVAL)
    return replace(
        action,
        status=ActionStatus.INTENDED,
        decision=Verdict.ALLOWED,
        reason=DecisionReason.APPROVED,
        approvals=approvals,
        approved_by=", ".join(approvals),
        approved_at=now,
        detail="",  # of the objection, which stays in ``objections``; from here on it is that of the attempts
    )


def requested(action: Action, session: RemediationSession | None, by: str, now: datetime) -> Action | None:
    """A recommended or expired action that a person requests: it waits for approval.

    None in another status, and once its session is closed: nothing would withdraw the request.
    """
    is_expired = action.status is ActionStatus.REFUSED and action.reason is DecisionReason.EXPIRED
    is_over = session is not None and session.closed_at is not None
    if is_over or (action.status is not ActionStatus.PROPOSED and not is_expired):
        return None
    return replace(
        action,
        status=ActionStatus.WAITING_APPROVAL,
        decision=Verdict.ASK,
        reason=DecisionReason.NEEDS_APPROVAL,
        requested_by=by,
        approvals=(),
        decided_at=now,
        ended_at=None,
    )


def claimed(action: Action, now: datetime) -> Action:
    """An action that a dispatcher performs now; its start is that of the first attempt."""
    return replace(action, status=ActionStatus.CLAIMED, started_at=action.started_at or now)


def deferred(action: Action, detail: str) -> Action:
    """A claimed action that is performed again later."""
    return replace(action, status=ActionStatus.INTENDED, detail=detail)


def finished(action: Action, outcome: Outcome) -> Action:
    """A claimed action after its execution."""
    return replace(
        action,
        status=_ENDED[outcome.status],
        detail=outcome.detail,
        started_at=action.started_at or outcome.started_at,
        ended_at=outcome.ended_at,
    )


def first_of_thread(receipts: Iterable[Receipt]) -> Receipt | None:
    """The receipt of the message that the others of its incident follow, from the ``receipts`` of a channel in order.

    It is the first one that was not merged with messages of other incidents, or the last one that began a new thread.
    """
    own = [receipt for receipt in receipts if receipt.merged == 1 and receipt.id]
    return next((receipt for receipt in reversed(own) if receipt.new_thread), own[0] if own else None)


def unknown(kind: str, key: str) -> StoreError:
    """The error for finishing an unknown action or message."""
    return StoreError(f"No {kind} {key!r} exists in the store.", hint="It belongs to another store, or was pruned.")


def operator_audit(event: AuditEvent, subject: str, by: str, now: datetime, reason: str = "") -> AuditRecord:
    """The audit record of an operator action."""
    return AuditRecord(at=now, event=event, subject=subject, reason=reason or event.value, by=by)


def feedback_audit(feedback: Feedback, before: Feedback | None) -> AuditRecord:
    """The audit record of a verdict, with the verdict that it replaces."""
    detail = {
        "rule": feedback.rule,
        "incident": feedback.incident or "",
        "cause": feedback.cause or "",
        "comment": feedback.comment,
    }
    if before is not None:
        detail |= {"before": before.verdict.value, "cause_before": before.cause or "", "comment_before": before.comment}
    detail = {name: text for name, text in detail.items() if text}
    subject = f"{feedback.fingerprint} {rfc3339(feedback.starts_at)}"
    return AuditRecord(
        feedback.at, AuditEvent.FEEDBACK_GIVEN, subject, feedback.verdict.value, by=feedback.by, detail=detail
    )


# --- rows -----------------------------------------------------------------------------------------


def of_alert(alert: Alert) -> dict[str, Any]:
    """Columns of table ``alert``."""
    return {
        "fingerprint": alert.fingerprint,
        "starts_at_us": micros(alert.starts_at),
        "state": alert.state.value,
        "priority": alert.priority.value,
        "rule": alert.rule,
        "entity": alert.entity.key,
        "incident": alert.incident,
        "ends_at_us": maybe_micros(alert.ends_at),
        "body": json_codec.dumps(alert),
    }


def of_incident(incident: Incident) -> dict[str, Any]:
    """Columns of table ``incident``."""
    cause = incident.suspected_cause
    return {
        "id": incident.id,
        "priority": incident.priority.value,
        "layer": incident.layer.value,
        "opened_at_us": micros(incident.opened_at),
        "resolved_at_us": maybe_micros(incident.resolved_at),
        "acknowledged_at_us": maybe_micros(incident.acknowledged_at),
        "acknowledged_by": incident.acknowledged_by,
        "cause": cause.fault if cause else None,
        "cause_entity": cause.entity.key if cause else None,
        "body": json_codec.dumps(incident),
    }


def of_action(action: Action) -> dict[str, Any]:
    """Columns of table ``action`` that derive from the action itself."""
    return {
        "id": action.id,
        "session": action.session,
        "because": action.because,
        "kind": action.kind.value,
        "target": action.target.key,
        "status": action.status.value,
        "decided_at_us": micros(action.decided_at),
        "decision": action.decision.value,
        "reason": action.reason.value,
        "dry_run": action.dry_run,
        "approvals": len(action.approvals),
        "approvals_needed": action.approvals_needed,
        "ended_at_us": maybe_micros(action.ended_at),
        "body": json_codec.dumps(action),
    }


def of_session(session: RemediationSession) -> dict[str, Any]:
    """Columns of table ``session``."""
    return {
        "id": session.id,
        "incident": session.incident,
        "opened_at_us": micros(session.opened_at),
        "closed_at_us": maybe_micros(session.closed_at),
        "body": json_codec.dumps(session),
    }


def of_message(message: Message) -> dict[str, Any]:
    """Columns of table ``message`` for a message without a delivery attempt."""
    return {
        "id": message.id,
        "channel": message.channel,
        "incident": message.incident,
        "created_at_us": micros(message.created_at),
        "status": "waiting",
        "retry_at_us": micros(message.created_at),
        "urgency": urgency_of(message),
        "body": json_codec.dumps(message),
    }


def urgency_of(message: Message) -> int:
    """The order of claims: 0 for an urgent P0, 1 for an urgent P1, ``NOT_URGENT`` for every other message."""
    return message.rank if message.is_urgent else NOT_URGENT


def of_audit(record: AuditRecord) -> dict[str, Any]:
    """Columns of table ``audit``."""
    fields = {name: value for name, value in json_codec.to_plain(record).items() if name != "id"}
    return {
        "at_us": micros(record.at),
        "event": record.event.value,
        "subject": record.subject,
        "reason": record.reason,
        "cycle": record.cycle,
        "by": record.by,
        "body": json_codec.text_of(fields),
    }


def of_feedback(feedback: Feedback) -> dict[str, Any]:
    """Columns of table ``feedback``."""
    return {
        "id": feedback.id,
        "fingerprint": feedback.fingerprint,
        "starts_at_us": micros(feedback.starts_at),
        "rule": feedback.rule,
        "incident": feedback.incident,
        "verdict": feedback.verdict.value,
        "cause": feedback.cause,
        "by": feedback.by,
        "at_us": micros(feedback.at),
        "body": json_codec.dumps(feedback),
    }


# --- documents ------------------------------------------------------------------------------------


def _key(entity: EntityRef) -> str:
    return entity.key


def pack_topology(topology: Topology) -> bytes:
    """A topology as packed JSON without its timestamp; edges are pairs of indices into the list of entities.

    Equal graphs give equal bytes.
    """
    entities = sorted(topology.entities, key=_key)
    indices = {entity: index for index, entity in enumerate(entities)}
    plain = {
        "entities": [entity.key for entity in entities],
        "edges": [(indices[lower], indices[upper]) for lower, upper in topology.edges],
        "labels": {entity.key: dict(topology.labels[entity]) for entity in sorted(topology.labels, key=_key)},
    }
    return zstandard.compress(json_codec.text_of(plain).encode())


def unpack_topology(payload: bytes) -> Topology:
    """Unpacks ``pack_topology``, also in the format with the timestamp beside the graph."""
    plain = json_codec.loads(dict, zstandard.decompress(payload).decode())
    entities = [EntityRef.from_key(key) for key in plain["entities"]]
    return Topology.build(
        ((entities[lower], entities[upper]) for lower, upper in plain["edges"]),
        entities,
        {EntityRef.from_key(key): labels for key, labels in plain["labels"].items()},
        json_codec.from_plain(datetime, plain.get("at")),
    )


def by_name(statuses: Iterable[DetectorStatus]) -> tuple[DetectorStatus, ...]:
    """Sorts statuses by detector name, the order of every store."""
    return tuple(sorted(statuses, key=lambda status: status.detector))


def pack_statuses(statuses: Iterable[DetectorStatus]) -> bytes:
    """Rollout stages of the detectors as JSON."""
    return json_codec.dumps(by_name(statuses)).encode()


def unpack_statuses(payload: bytes) -> tuple[DetectorStatus, ...]:
    """Unpacks ``pack_statuses``. Raises StoreError if it is damaged."""
    return json_codec.loads(tuple[DetectorStatus, ...], payload.decode())


def pack_state(state: DetectorState) -> bytes:
    """The state of a detector as npz."""
    keys = np.array([entity.key for entity in state.entities], dtype=np.str_)
    arrays: Mapping[str, Any] = {f"array.{name}": array for name, array in state.arrays.items()}
    file = BytesIO()
    np.savez_compressed(file, version=np.array(state.version), entities=keys, **arrays)
    return file.getvalue()


def unpack_state(payload: bytes) -> DetectorState:
    """Unpacks ``pack_state``. Raises StoreError if it is damaged."""
    try:
        with np.load(BytesIO(payload), allow_pickle=False) as result:
            return DetectorState(
                int(result["version"]),
                tuple(EntityRef.from_key(key) for key in result["entities"].tolist()),
                {name.removeprefix("array."): result[name] for name in result.files if name.startswith("array.")},
            )
    except _DAMAGED as error:
        raise StoreError(
            f"The checkpoint of a detector cannot be read: {type(error).__name__}: {error}.",
            hint="No action needed: the engine drops it, logs it, and trains the detector on stored values.",
        ) from error


def pack_window(window: Window) -> bytes:
    """A window without its events as packed npz."""
    file = BytesIO()
    np.savez(
        file,
        kind=np.array(window.kind.value),
        entities=np.array([entity.key for entity in window.entities], dtype=np.str_),
        times=window.times,
        keys=np.array([str(key) for key in window.keys], dtype=np.str_),
        values=window.values,
        status=window.status,
        step=np.array(window.step.total_seconds()),
    )
    return zstandard.compress(file.getvalue())


def unpack_window(payload: bytes) -> Window:
    """Unpacks ``pack_window``."""
    with np.load(BytesIO(zstandard.decompress(payload)), allow_pickle=False) as result:
        return Window(
            EntityKind(str(result["kind"])),
            tuple(EntityRef.from_key(key) for key in result["entities"].tolist()),
            result["times"],
            tuple(SignalKey.parse(key) for key in result["keys"].tolist()),
            result["values"],
            result["status"],
            timedelta(seconds=float(result["step"])),
        )
