"""Muted alerts: silenced, inhibited, acknowledged, or grouped under their cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from alerts.state.alert_labels import labels_of
from alerts.state.inhibition import Inhibition
from outrider.model import Alert, AlertState, Incident, MuteReason
from outrider.records.silences import Silence
from outrider.topology import Topology

QUIET = (MuteReason.SILENCED, MuteReason.INHIBITED)
"""Reasons for which an alert neither pages nor represents its incident."""


def silenced(alert: Alert, silences: Iterable[Silence]) -> bool:
    """True if one of the silences selects the alert. A silence without any condition mutes nothing."""
    listed = tuple(silences)
    if not listed:
        return False
    labels = labels_of(alert)
    return any(silence.selects(alert.rule, alert.entity, labels) for silence in listed)


def lead_alert(incident: Incident, alerts: Iterable[Alert]) -> Alert | None:
    """The alert that represents an incident: the cause's own if it fires, else the most urgent.

    Silenced and inhibited alerts never do. None if nothing else of the incident fires.
    """
    cause = incident.suspected_cause
    candidates = [alert for alert in alerts if alert.state is AlertState.FIRING and alert.muted_by not in QUIET]
    if not candidates:
        return None

    def rank(alert: Alert) -> tuple[bool, bool, int, str, str]:
        of_cause = cause is not None and alert.entity == cause.entity
        same = cause is not None and of_cause and alert.fault == cause.fault
        return (not same, not of_cause, alert.priority.rank, alert.starts_at.isoformat(), alert.fingerprint)

    return min(candidates, key=rank)


def mute(
    alerts: Sequence[Alert],
    incidents: Sequence[Incident],
    silences: Sequence[Silence],
    topology: Topology | None = None,
) -> tuple[Alert, ...]:
    """Recomputes ``muted_by`` of every alert, so that the end of a silence takes effect.

    ``silences`` are those in force. Without a ``topology`` nothing is inhibited.
    """
    inhibition = Inhibition.of(alerts, silences, topology or Topology())
    quiet = [replace(alert, muted_by=_quiet(alert, silences, inhibition)) for alert in alerts]
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
        alert if alert.muted_by in QUIET else replace(alert, muted_by=reasons.get(alert.fingerprint)) for alert in quiet
    )


def _quiet(alert: Alert, silences: Sequence[Silence], inhibition: Inhibition) -> MuteReason | None:
    if silenced(alert, silences):
        return MuteReason.SILENCED
    return MuteReason.INHIBITED if inhibition.inhibits(alert) else None
