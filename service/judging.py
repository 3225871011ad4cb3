"""Which spells of alerts a verdict is about."""

from __future__ import annotations

from datetime import datetime

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.feedback import Feedback, Usefulness, judged
from outrider.model import Alert, AlertReason, AlertState, Incident
from outrider.ports import StateReader


def fired(alert: Alert) -> bool:
    """True when the spell was or is told: not one that is pending, or went before its waiting time was over."""
    return alert.state is AlertState.FIRING or (
        alert.state is AlertState.RESOLVED and alert.reason is not AlertReason.NEVER_FIRED
    )


def spell_of(state: StateReader, fingerprint: str, starts_at: datetime | None = None) -> Alert | None:
    """The spell that began at an instant (to the millisecond, as it is printed), else the newest one that fired.

    None when there is no such alert or spell. Raises UsageError for a spell that has not fired.
    """
    found = state.spells(fingerprint)
    if starts_at is None:
        named = next((one for one in found if fired(one)), found[0] if found else None)
    else:
        named = next((one for one in found if rfc3339(one.starts_at) == rfc3339(starts_at)), None)
    if named is not None and not fired(named):
        raise _unfired(named)
    return named


def _unfired(alert: Alert) -> UsageError:
    return UsageError(
        f"alert {alert.fingerprint!r} has not fired, so nobody was told and there is nothing to judge",
        hint="outrider alerts list --state firing shows those that have",
    )


def spells_of(state: StateReader, incident: Incident) -> tuple[Alert, ...]:
    """The spells that fired and are folded into an incident, in the order they joined it."""
    found = (_spell_in(state, fingerprint, incident) for fingerprint in incident.alerts)
    return tuple(one for one in found if one is not None)


def _spell_in(state: StateReader, fingerprint: str, incident: Incident) -> Alert | None:
    spells = [one for one in state.spells(fingerprint) if fired(one)]
    own = [one for one in spells if one.incident == incident.id]
    beside = [
        one
        for one in spells
        if one.incident is None
        and (incident.resolved_at is None or one.starts_at <= incident.resolved_at)
        and (one.ends_at is None or one.ends_at >= incident.opened_at)
    ]
    return next(iter(own or beside), None)


def verdicts(
    alerts: tuple[Alert, ...],
    word: Usefulness,
    *,
    by: str,
    at: datetime,
    incident: str | None = None,
    cause: str | None = None,
    comment: str = "",
) -> list[Feedback]:
    """The same verdict on each of the alerts."""
    return [judged(one, word, by=by, at=at, incident=incident, cause=cause, comment=comment) for one in alerts]
