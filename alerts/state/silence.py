"""Muted alerts: silenced by an operator, acknowledged, or grouped under their cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from outrider.model import Alert, AlertState, Incident, MuteReason
from outrider.ports import Silence


def silenced(alert: Alert, silences: Iterable[Silence]) -> bool:
    """True if a silence names the alert's rule, its entity, or both. A silence without either mutes nothing."""
    return any(
        (silence.rule is not None or silence.entity is not None)
        and silence.rule in (None, alert.rule)
        and silence.entity in (None, alert.entity)
        for silence in silences
    )


def lead_alert(incident: Incident, alerts: Iterable[Alert]) -> Alert | None:
    """The alert that represents an incident: the cause's own if it fires, else the most urgent.

    Silenced alerts never do. None if nothing of the incident fires.
    """
    cause = incident.suspected_cause
    candidates = [
        alert for alert in alerts if alert.state is AlertState.FIRING and alert.muted_by is not MuteReason.SILENCED
    ]
    if not candidates:
        return None

    def rank(alert: Alert) -> tuple[bool, bool, int, str, str]:
        of_cause = cause is not None and alert.entity == cause.entity
        same = cause is not None and of_cause and alert.fault == cause.fault
        return (not same, not of_cause, alert.priority.rank, alert.starts_at.isoformat(), alert.fingerprint)

    return min(candidates, key=rank)


def mute(alerts: Sequence[Alert], incidents: Sequence[Incident], silences: Sequence[Silence]) -> tuple[Alert, ...]:
    """Recomputes ``muted_by`` of every alert, so that the end of a silence takes effect.

    ``silences`` are those in force.
    """
    quiet = [replace(alert, muted_by=MuteReason.SILENCED if silenced(alert, silences) else None) for alert in alerts]
    by_print = {alert.fingerprint: alert for alert in quiet}
    reasons: dict[str, MuteReason] = {}
    for incident in incidents:
        members = [by_print[print_] for print_ in incident.alerts if print_ in by_print]
        lead = lead_alert(incident, members)
        for alert in members:
            if lead is not None and alert.fingerprint != lead.fingerprint:
                reasons[alert.fingerprint] = MuteReason.FOLDED
            elif incident.acknowledged_at is not None:
                reasons[alert.fingerprint] = MuteReason.ACKNOWLEDGED
    return tuple(
        alert if alert.muted_by is MuteReason.SILENCED else replace(alert, muted_by=reasons.get(alert.fingerprint))
        for alert in quiet
    )
