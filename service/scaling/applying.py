"""Applies warm-up, pre-pull and scaling manifests on request, with an audit record of each object."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import ActuationError, UnavailableError, UsageError
from outrider.ports import StateStore
from remediation.actuators import manifests
from remediation.actuators.manifests import AppliedDocument, Document
from service.config.settings import Settings
from service.scaling.stops import check_not_stopped


def preview(settings: Settings, documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Returns what would change, by server-side dry runs. Raises UsageError and UnavailableError."""
    try:
        applied = manifests.apply(*settings.planner.scaling.kubernetes.server(), documents, dry_run=True)
    except ActuationError as error:
        raise _as_command_error(error) from error
    return [_as_dict(each, dry_run=True) for each in applied]


def apply(settings: Settings, state: StateStore, documents: Sequence[Document], now: datetime) -> list[dict[str, Any]]:
    """Applies the documents and records each stored object in the audit log.

    A pause of remediation and its kill switch refuse it. Raises UsageError and UnavailableError.
    """
    check_not_stopped(settings, state)

    def audit(applied: AppliedDocument) -> None:
        state.append_audit([_record(f"apply {applied.name}", applied.result.value, applied.diff, now)])

    server = settings.planner.scaling.kubernetes.server()
    try:
        applied = manifests.apply(*server, documents, dry_run=False, stored=audit)
    except ActuationError as error:
        state.append_audit([_record("apply", "failed", error.message, now)])
        raise _as_command_error(error) from error
    return [_as_dict(each, dry_run=False) for each in applied]


def _as_dict(applied: AppliedDocument, *, dry_run: bool) -> dict[str, Any]:
    request = applied.request
    return {
        "object": applied.name,
        "result": applied.result.value,
        "dry_run": dry_run,
        "diff": applied.diff,
        "request": {"method": request.method, "url": request.url, "body": request.body},
    }


def _as_command_error(error: ActuationError) -> UsageError | UnavailableError:
    kind = UnavailableError if error.retryable else UsageError
    return kind(error.message, hint=error.hint)


def _record(subject: str, outcome: str, diff: str, now: datetime) -> AuditRecord:
    detail = {"said": diff[:_LONGEST], "dry_run": "False"}
    return AuditRecord(
        now, AuditEvent.ACTION_PERFORMED, subject, outcome, by=os.environ.get("USER", "cli"), detail=detail
    )


_LONGEST = 4000  # characters of a diff in the audit log
