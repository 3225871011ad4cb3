"""Alertmanager's webhook, version 4, and Grafana's, which extends it.

https://prometheus.io/docs/alerting/latest/configuration/#webhook_config. One delivery is a group of alerts. Both
deliver at least once, repeat the group at an interval, and report the end of an alert once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from collectors.receive.alert_formats.record import (
    AlertRules,
    DecodedAlerts,
    ReportedAlert,
    checked_count,
    parsed,
    received,
    texts,
)
from collectors.receive.protocol import malformed
from outrider.model import Priority
from outrider.text.i18n import translate

ALERTMANAGER, GRAFANA = "alertmanager", "grafana"
TRUNCATED = "AlertsTruncated"  # name of the alert about alerts that the source left out
_GRAFANA_LINKS = ("panelURL", "dashboardURL", "generatorURL")


def decode(source: str, body: bytes, rules: AlertRules, now: datetime) -> DecodedAlerts:
    """Decodes one delivery. Raises ReceiveError for a body that is not one."""
    document = parsed(body)
    entries = document.get("alerts") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        raise malformed(f"{source} webhook: it has no list of alerts")
    checked_count(entries, rules)
    result = DecodedAlerts()
    group = str(document.get("groupKey") or "")
    for number, entry in enumerate(entries):
        labels = texts(entry.get("labels")) if isinstance(entry, Mapping) else {}
        if not labels:
            result.problems.append(f"alert {number} has no labels")
        elif rules.is_own(labels, str(entry.get("generatorURL") or "")):
            result.looped += 1
        else:
            result.alerts.append(received(source, _reported(entry, labels, group, source), rules, now))
    _add_truncated(result, document, group, source, rules, now)
    return result


def _reported(entry: Mapping[str, Any], labels: Mapping[str, Any], group: str, source: str) -> ReportedAlert:
    notes = {name: str(text) for name, text in texts(entry.get("annotations")).items()}
    links = _GRAFANA_LINKS if source == GRAFANA else ("generatorURL",)
    return ReportedAlert(
        name=str(labels.get("alertname") or labels.get("rulename") or "unnamed"),
        firing=str(entry.get("status", "")).lower() != "resolved",
        labels=labels,
        fingerprint=str(entry.get("fingerprint") or ""),
        starts_at=str(entry.get("startsAt") or ""),
        ends_at=str(entry.get("endsAt") or ""),
        summary=notes.get("summary") or notes.get("message") or notes.get("title") or "",
        description=notes.get("description", ""),
        url=next((str(entry[link]) for link in links if entry.get(link)), ""),
        runbook=notes.get("runbook_url") or notes.get("runbook") or "",
        group=group,
    )


def _add_truncated(
    result: DecodedAlerts, document: Mapping[str, Any], group: str, source: str, rules: AlertRules, now: datetime
) -> None:
    """Adds an alert while the source leaves alerts of the group out: what is not received is at least visible."""
    count = document.get("truncatedAlerts") or 0
    if not isinstance(count, int) or isinstance(count, bool):
        return
    digest = hashlib.sha256(group.encode(errors="surrogatepass")).hexdigest()[:16]
    about = ReportedAlert(
        name=TRUNCATED,
        firing=count > 0,
        labels={**texts(document.get("groupLabels")), "alertname": TRUNCATED, "receiver": document.get("receiver", "")},
        fingerprint=f"truncated-{digest}",
        summary=translate("alerts.truncated", rules.language, count=count),
        group=f"truncated-{digest}",
        resolves_group=True,
    )
    result.truncated = max(count, 0)
    result.notes.append(replace(received(source, about, rules, now), priority=Priority.P3))
