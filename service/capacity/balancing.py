"""Performs proposed replica weights as one ``balance_traffic`` action, on request."""

from __future__ import annotations

import json
import os
from datetime import datetime
from hashlib import sha256
from typing import Any

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import ActuationError, UnavailableError, UsageError
from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, Verdict
from outrider.ports import StateStore
from service.capacity.steering import SESSION, Fleet, Proposal
from service.config.settings import Settings
from service.scaling.stops import check_not_stopped
from service.wiring import remediation as wiring_remediation


def action(proposal: Proposal, fleet: Fleet, now: datetime, *, by_backend: bool, dry_run: bool) -> Action:
    """Returns the action; equal weights have equal ids.

    ``by_backend`` names the backends of the current route, otherwise the pods.
    """
    weights = {
        fleet.pods[proposal.replica_of[name].name] if name in proposal.replica_of and not by_backend else name: weight
        for name, weight in proposal.steering.weights.items()
    }
    digest = sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()[:12]
    return Action(
        id=f"steer:{fleet.service.key}:{digest}",
        session=SESSION,
        kind=ActionKind.BALANCE_TRAFFIC,
        target=fleet.service,
        params={"weights": weights},
        because="plan",
        dry_run=dry_run,
        decision=Verdict.ALLOWED,
        reason=DecisionReason.APPROVED,
        status=ActionStatus.CLAIMED,
        decided_at=now,
        approved_by=os.environ.get("USER", "cli"),
    )


def perform(settings: Settings, state: StateStore, balance: Action, now: datetime) -> dict[str, Any]:
    """Performs the action through its configured performer, with an audit record.

    A pause of remediation and its kill switch refuse it. Raises UsageError and UnavailableError.
    """
    check_not_stopped(settings, state)
    actuator = wiring_remediation.actuator(settings)
    try:
        requests = actuator.requests(balance)
        outcome = actuator.perform(balance)
    except ActuationError as error:
        state.append_audit([_record(balance, "failed", error.message, now)])
        kind = UnavailableError if error.retryable else UsageError
        raise kind(error.message, hint=error.hint) from error
    state.append_audit([_record(balance, outcome.status.value, outcome.detail, now)])
    return {
        "action": balance.id,
        "status": outcome.status.value,
        "dry_run": balance.dry_run,
        "detail": outcome.detail,
        "requests": [{"method": each.method, "url": each.url, "body": each.body} for each in requests],
    }


def _record(balance: Action, status: str, message: str, now: datetime) -> AuditRecord:
    detail = {"action": balance.id, "said": message, "dry_run": str(balance.dry_run)}
    subject = f"{balance.kind} {balance.target}"
    by = balance.approved_by or "cli"
    return AuditRecord(now, AuditEvent.ACTION_PERFORMED, subject, status, by=by, detail=detail)
