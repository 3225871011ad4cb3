"""Actions as a dispatcher passes them to an actuator."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, EntityRef, Verdict


def claimed_action(
    kind: ActionKind,
    target: EntityRef,
    *,
    id_: str,
    decided_at: datetime,
    session: str = "ses-1",
    dry_run: bool = False,
    **params: Any,
) -> Action:
    """Returns an allowed action that a dispatcher has claimed."""
    return Action(
        id=id_,
        session=session,
        kind=kind,
        target=target,
        params=params,
        because="inc-1",
        dry_run=dry_run,
        decision=Verdict.ALLOWED,
        reason=DecisionReason.WITHIN_LIMITS,
        status=ActionStatus.CLAIMED,
        decided_at=decided_at,
    )
