"""One reported alert as a received alert: limits, safe text, priority, fault, times.

All formats end here. Labels are external input: their number and length are limited, and invalid characters replaced.
Markup stays as it is; every channel and page escapes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from collectors.receive.json_paths import instant
from collectors.receive.protocol import ReceiveError, RejectionReason, malformed
from outrider.model import AlertState, Priority
from outrider.records.received_alerts import ReceivedAlert, ended
from outrider.text.i18n import Language
from outrider.wire.alertmanager import ORIGIN_LABEL
from outrider.wire.sanitize import clean, fitted

MOST_LABELS: Final = 64
MOST_NAME_BYTES: Final = 200
MOST_LABEL_BYTES: Final = 1_000
MOST_SUMMARY, MOST_DESCRIPTION, MOST_URL = 300, 2_000, 1_000
OLDEST = timedelta(days=365)  # an earlier start is a missing one: Go writes the year 1, others 1970
SEVERITIES: Final[Mapping[str, Priority]] = {
    **dict.fromkeys(("p0", "emergency", "fatal", "disaster"), Priority.P0),
    **dict.fromkeys(("p1", "critical", "page", "high", "error", "major"), Priority.P1),
    **dict.fromkeys(("p2", "warning", "warn", "medium", "minor", "ticket", "average"), Priority.P2),
    **dict.fromkeys(("p3", "p4", "p5", "info", "information", "low", "notice", "none", "debug"), Priority.P3),
}
"""Priority by severity, in lower case. An unknown or missing severity is P2."""
_SEVERITY_LABELS = ("severity", "priority", "level")
_LINKS = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class AlertRules:
    """How alerts are read.

    ``priorities`` and ``faults`` are the configured ones, by severity in lower case and by alert name. ``origin`` marks
    the alerts that this Outrider emits. ``expires_after`` ends an alert that its source does not repeat.
    ``code_faults`` are the faults of NVIDIA XID codes. ``own_url`` begins the links of messages: an alert with such a
    link is one that a notification channel of this Outrider posted. ``language`` is that of texts about a delivery.
    """

    priorities: Mapping[str, Priority] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    code_faults: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    own_url: str = ""
    language: Language = "en"
    expires_after: timedelta = timedelta(hours=24)
    most_alerts: int = 10_000

    def priority(self, severity: str) -> Priority:
        """The priority of a severity."""
        name = severity.strip().lower()
        return self.priorities.get(name) or SEVERITIES.get(name, Priority.P2)

    def is_own(self, labels: Mapping[str, Any], link: str = "") -> bool:
        """True for an alert that this Outrider emitted, and that came back.

        An origin decides alone: links of two Outriders may be equal, for example if both have the default address.
        """
        if labels.get(ORIGIN_LABEL):
            return bool(self.origin) and labels[ORIGIN_LABEL] == self.origin
        return bool(self.own_url) and (link == self.own_url or link.startswith(f"{self.own_url}/"))

    def fault(self, name: str) -> str | None:
        """The fault of an alert name; None if it is not known."""
        return self.faults[name] if name in self.faults else known_faults().get(name)


@dataclass(frozen=True, slots=True)
class ReportedAlert:
    """One alert as a source reports it, before limits. ``expires``: it ends unless the source repeats it."""

    name: str
    firing: bool
    labels: Mapping[str, Any]
    fingerprint: str = ""
    starts_at: str = ""
    ends_at: str = ""
    severity: str = ""
    summary: str = ""
    description: str = ""
    url: str = ""
    runbook: str = ""
    group: str = ""
    fault: str | None = None
    expires: bool = True
    resolves_group: bool = False


@dataclass(slots=True)
class DecodedAlerts:
    """Content of one delivery.

    ``notes`` are alerts about the delivery itself. ``problems`` are sentences about refused entries. ``truncated``
    counts alerts that the source left out, ``looped`` those that this Outrider emitted.
    """

    alerts: list[ReceivedAlert] = field(default_factory=list)
    notes: list[ReceivedAlert] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    truncated: int = 0
    looped: int = 0


def received(source: str, reported: ReportedAlert, rules: AlertRules, now: datetime) -> ReceivedAlert:
    """The record of a reported alert. A start in the future, or none, is the time of arrival."""
    labels = limited_labels(reported.labels)
    severity = reported.severity or _severity(labels)
    reported_at = instant(reported.starts_at)
    if reported_at is None or now - reported_at > OLDEST:
        reported_at = now
    alert = ReceivedAlert(
        source=source,
        fingerprint=fitted(reported.fingerprint or fingerprint_of(reported.labels), MOST_NAME_BYTES),
        name=_one_line(reported.name, MOST_NAME_BYTES),
        state=AlertState.FIRING,
        priority=rules.priority(severity),
        starts_at=min(reported_at, now),
        reported_at=reported_at,
        received_at=now,
        expires_at=now + rules.expires_after if reported.expires else None,
        labels=labels,
        summary=_one_line(reported.summary, MOST_SUMMARY),
        description=clean(reported.description)[:MOST_DESCRIPTION],
        url=_link(reported.url),
        runbook=_link(reported.runbook),
        fault=reported.fault or rules.fault(reported.name),
        group=fitted(reported.group, MOST_NAME_BYTES),
        resolves_group=reported.resolves_group and not reported.firing,
    )
    if reported.firing:
        return alert
    over = instant(reported.ends_at) or now
    return ended(alert, max(min(over, now), alert.starts_at), now)


def fingerprint_of(labels: Mapping[str, Any]) -> str:
    """Hash of all labels in full, for sources without fingerprints."""
    return hashlib.sha256(json.dumps(labels, sort_keys=True, default=str).encode()).hexdigest()[:16]


def limited_labels(labels: Mapping[str, Any]) -> dict[str, str]:
    """Labels as texts, without internal ones; the first ``MOST_LABELS`` by name. A cut value ends with a digest."""
    result: dict[str, str] = {}
    for name, value in sorted(labels.items()):
        if len(result) >= MOST_LABELS:
            break
        text = str(value).lower() if isinstance(value, bool) else value
        if isinstance(text, str | int | float) and not name.startswith("__") and text != "":
            result[fitted(name, MOST_NAME_BYTES)] = fitted(str(text), MOST_LABEL_BYTES)
    return result


def texts(value: Any) -> dict[str, Any]:
    """A JSON object with text keys; empty for anything else."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def parsed(body: bytes) -> Any:
    """The JSON of a body. Raises ReceiveError."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise malformed("JSON", error) from error


def checked_count(entries: Sequence[Any], rules: AlertRules) -> None:
    """Raises ReceiveError for more alerts than one delivery may hold."""
    if len(entries) > rules.most_alerts:
        raise ReceiveError(
            f"the request holds {len(entries)} alerts, more than {rules.most_alerts}",
            reason=RejectionReason.TOO_LARGE,
            hint="send smaller groups, or raise receive.alerts.per_request",
        )


@cache
def known_faults() -> Mapping[str, str]:
    """Faults of well-known alert names."""
    text = resources.files("collectors.receive.alert_formats").joinpath("known_alerts.yaml").read_text(encoding="utf-8")
    table: dict[str, str] = yaml.safe_load(text)["faults"]
    return table


def _severity(labels: Mapping[str, str]) -> str:
    """The severity label; a priority of another Outrider comes first."""
    own = labels.get("priority", "")
    if own in tuple(Priority):
        return own
    return next((labels[name] for name in _SEVERITY_LABELS if labels.get(name)), "")


def _one_line(text: str, most: int) -> str:
    return " ".join(fitted(text, most).split())


def _link(url: str) -> str:
    return url if url.startswith(_LINKS) and len(url) <= MOST_URL and url.isprintable() else ""
