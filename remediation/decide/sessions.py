"""Sessions: all actions of one incident belong together, and their changes are undone together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from outrider.model import ActionKind, EntityRef, Incident, RemediationSession
from remediation.decide.history import IN_FLIGHT, WAITING, History, is_over

OWNER = "outrider"
PLAN_SESSION = "plan"
# The un-cordon of a node is not among them: the session itself lists its nodes.
_RETURNS = (
    ActionKind.RESTORE_TRAFFIC,
    ActionKind.RESUME_ROLLOUT,
    ActionKind.RESUME_ENGINE,
    ActionKind.WAKE_ENGINE,
)


def open_session(incident: Incident, now: datetime) -> RemediationSession:
    """A new session. Its id contains the time, so that a second one of the same incident differs."""
    return RemediationSession(f"ses-{incident.id}-{int(now.timestamp())}", incident.id, now)


def ownership(session: str) -> dict[str, str]:
    """Labels on changed objects, so that only those are ever undone."""
    return {"owner": OWNER, "session": session}


def acting(sessions: Iterable[RemediationSession], incident: Incident, history: History) -> RemediationSession | None:
    """The session that still works on the incident; one that has begun to undo does not count."""
    open_sessions = [session for session in sessions if session.incident == incident.id and session.closed_at is None]
    active = [session for session in open_sessions if not is_over(history.of_session(session.id))]
    return max(active, key=lambda session: session.opened_at, default=None)


def refreshed(sessions: Sequence[RemediationSession], history: History) -> tuple[RemediationSession, ...]:
    """Open sessions with the nodes they hold cordoned, from the performed actions."""
    return tuple(
        replace(session, cordoned=tuple(sorted(nodes, key=lambda node: node.key)))
        for session in sessions
        if session.closed_at is None
        for nodes in [_cordoned_by(session, history)]
    )


def _cordoned_by(session: RemediationSession, history: History) -> frozenset[EntityRef]:
    """Nodes from the given actions, and those that the session recorded before them."""
    return history.cordoned(session.id) | (frozenset(session.cordoned) - history.uncordoned(session.opened_at))


def finished(session: RemediationSession, history: History) -> bool:
    """True if nothing of a recovered session is left to do or to undo."""
    busy = any(action.status in IN_FLIGHT | WAITING for action in history.of_session(session.id))
    left = frozenset().union(*(history.standing(kind, session.id) for kind in _RETURNS))
    standing = left | history.degraded(session.id) | history.switched(session.id)
    return not busy and not session.cordoned and not standing
