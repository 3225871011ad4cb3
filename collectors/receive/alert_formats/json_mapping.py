"""Alerts in the JSON of any monitor, read by configured templates such as ``{event.host}``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from collectors.receive.alert_formats.record import (
    AlertRules,
    DecodedAlerts,
    ReportedAlert,
    checked_count,
    parsed,
    received,
)
from collectors.receive.json_paths import filled, first_filled, value_at
from collectors.receive.protocol import malformed
from outrider.wire.alertmanager import ORIGIN_LABEL

RESOLVED = ("resolved", "ok", "normal", "closed", "recovered", "recovery", "up", "inactive")
"""Values of a status that mean the end, in lower case. Every other value is a firing alert."""


@dataclass(frozen=True, slots=True)
class JsonMapping:
    """Templates of one source. Of several templates the first that can be filled applies.

    ``items`` is the path of the list of alerts; empty: the body is the list, or a single alert. Templates are filled
    from the item, or from the whole body if they begin with ``{body.``.
    """

    name: tuple[str, ...]
    items: str = ""
    status: tuple[str, ...] = ()
    resolved: tuple[str, ...] = RESOLVED
    fingerprint: tuple[str, ...] = ()
    severity: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    summary: tuple[str, ...] = ()
    description: tuple[str, ...] = ()
    url: tuple[str, ...] = ()
    runbook: tuple[str, ...] = ()
    starts_at: tuple[str, ...] = ()
    ends_at: tuple[str, ...] = ()


def decode(source: str, body: bytes, mapping: JsonMapping, rules: AlertRules, now: datetime) -> DecodedAlerts:
    """Decodes one request. Raises ReceiveError if the body has no list of alerts where the mapping expects one."""
    document = parsed(body)
    entries = value_at(document, mapping.items) if mapping.items else document
    if isinstance(entries, Mapping):
        entries = [entries]
    if not isinstance(entries, list):
        where = f"at {mapping.items!r}" if mapping.items else "in the body"
        raise malformed(f"delivery of {source}: there is no list of alerts {where}")
    checked_count(entries, rules)
    result = DecodedAlerts()
    for number, entry in enumerate(entries):
        context = {**entry, "body": document} if isinstance(entry, Mapping) else {"body": document}
        name = first_filled(mapping.name, context)
        if not name:
            result.problems.append(f"alert {number} has none of {', '.join(mapping.name)}")
        elif rules.is_own({ORIGIN_LABEL: _origin(context)}, first_filled(mapping.url, context)):
            result.looped += 1
        else:
            result.alerts.append(received(source, _reported(name, context, mapping), rules, now))
    return result


def _reported(name: str, context: Mapping[str, Any], mapping: JsonMapping) -> ReportedAlert:
    labels = {label: first_filled(templates, context) for label, templates in mapping.labels.items()}
    status = _status(mapping.status, context)
    return ReportedAlert(
        name=name,
        firing=status not in mapping.resolved if status else True,
        labels={"alertname": name, **labels},
        fingerprint=first_filled(mapping.fingerprint, context),
        starts_at=first_filled(mapping.starts_at, context),
        ends_at=first_filled(mapping.ends_at, context),
        severity=first_filled(mapping.severity, context),
        summary=first_filled(mapping.summary, context),
        description=first_filled(mapping.description, context),
        url=first_filled(mapping.url, context),
        runbook=first_filled(mapping.runbook, context),
    )


def _status(templates: tuple[str, ...], context: Mapping[str, Any]) -> str:
    """The first status, in lower case; truth values count, too."""
    for template in templates:
        value = value_at(context, template.strip("{}"))
        text = str(value) if isinstance(value, bool) else filled(template, context)
        if text:
            return text.strip().lower()
    return ""


def _origin(context: Mapping[str, Any]) -> str:
    """The origin that an Outrider marked the alert with, wherever a relay put its labels."""
    places = (ORIGIN_LABEL, f"labels.{ORIGIN_LABEL}", f"commonLabels.{ORIGIN_LABEL}")
    return next((origin for place in places if (origin := filled("{" + place + "}", context))), "")
