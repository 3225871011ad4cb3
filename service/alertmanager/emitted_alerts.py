"""Alerts as an Alertmanager receives them: labels, annotations, times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from alerts.routing.wording import evidence_line, link_to
from alerts.state.alert_labels import labels_of
from alerts.state.machine import evidence_of
from outrider.documents.summaries import alert_summary
from outrider.model import Alert, AlertState, Priority
from outrider.text.i18n import Language, translate
from outrider.wire.alertmanager import ORIGIN_LABEL, PostableAlert

WATCHDOG = "Watchdog"
LASTS_INTERVALS = 4  # Alertmanager resolves an alert that was not sent again for this many intervals
_OWN = frozenset({"detectors", "routes", "services", "service_level", "priority_of_fault"})
_LINKS = ("http://", "https://")


def emitted_labels(alert: Alert, origin: str) -> dict[str, str]:
    """Labels of one value each. ``service`` is left out if the entity can affect several services."""
    single = {name: values[0] for name, values in labels_of(alert).items() if len(values) == 1}
    of_rule = {name: text for name, text in alert.labels.items() if name not in _OWN and name not in single}
    return {**of_rule, **single, ORIGIN_LABEL: origin}


def postable(
    alert: Alert, origin: str, base_url: str, language: Language, now: datetime, interval: timedelta
) -> PostableAlert:
    """One alert. While it fires, it ends after some intervals unless it is sent again."""
    firing = alert.state is AlertState.FIRING
    ends_at = now + LASTS_INTERVALS * interval if firing else (alert.ends_at or now)
    runbook = alert.annotations.get("runbook", "")
    action = alert.annotations.get("default_action_text", "")
    annotations = {
        "summary": f"{alert.priority.value}: {alert_summary(alert, language)}",
        "description": "\n".join(evidence_line(item, language) for item in evidence_of(alert)),
        "action": translate(action, language) if action else "",
        "runbook_url": runbook if runbook.startswith(_LINKS) else "",
        "runbook": "" if runbook.startswith(_LINKS) else runbook,
        "services": alert.labels.get("services", ""),
        "muted_by": alert.muted_by.value if alert.muted_by else "",
    }
    return PostableAlert(
        labels=emitted_labels(alert, origin),
        starts_at=alert.starts_at,
        ends_at=max(ends_at, alert.starts_at),
        annotations=annotations,
        generator_url=link_to(base_url, alert.incident) if alert.incident else base_url,
    )


def emitted(alerts: Iterable[Alert], priorities: frozenset[Priority]) -> dict[str, Alert]:
    """The alerts to send, by fingerprint: our own that fire, or fired and ended. The newest occurrence counts."""
    result: dict[str, Alert] = {}
    for alert in sorted(alerts, key=lambda item: item.starts_at):
        over = alert.state is AlertState.RESOLVED and "fired_at" in alert.annotations
        if (alert.state is AlertState.FIRING or over) and not alert.is_received and alert.priority in priorities:
            result[alert.fingerprint] = alert
    return result


def watchdog(
    origin: str, base_url: str, language: Language, started_at: datetime, now: datetime, interval: timedelta
) -> PostableAlert:
    """The alert that always fires: its absence shows that Outrider, or its way to a person, is broken."""
    labels: Mapping[str, str] = {"alertname": WATCHDOG, "severity": "none", "cluster": origin, ORIGIN_LABEL: origin}
    summary = {"summary": translate("alerts.watchdog-fires", language)}
    return PostableAlert(labels, started_at, now + LASTS_INTERVALS * interval, summary, base_url)
