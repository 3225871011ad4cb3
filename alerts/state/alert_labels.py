"""Labels of an alert, as silences match them and as other systems receive them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.model import RECEIVED_FROM, SOURCE_LABEL, Alert, EntityRef, Priority
from outrider.records.silences import Labels

SEVERITIES: Mapping[Priority, str] = {
    Priority.P0: "critical",
    Priority.P1: "critical",
    Priority.P2: "warning",
    Priority.P3: "info",
}
"""Severity by priority, in the words of Prometheus rule sets."""


def labels_of(alert: Alert) -> Labels:
    """Every label by which a silence may select an alert; those of its source are added to our own."""
    own = dict(entity_labels(alert.entity))
    own["rule"] = own["alertname"] = (alert.rule,)
    own["priority"], own["severity"] = (alert.priority.value,), (SEVERITIES[alert.priority],)
    own["fault"] = (alert.fault or "",)
    own["incident"] = (alert.incident or "",)
    own["source"] = (alert.labels.get(RECEIVED_FROM, ""),)
    services = tuple(name.rpartition("/")[2] for name in alert.labels.get("services", "").split(",") if name)
    own["service"] = (*own.get("service", ()), *services)
    for name, value in alert.labels.items():
        if name.startswith(SOURCE_LABEL):
            plain = name.removeprefix(SOURCE_LABEL)
            own[plain] = (*own.get(plain, ()), value)
    return {name: tuple(dict.fromkeys(value for value in values if value)) for name, values in own.items()}


def entity_labels(entity: EntityRef) -> Labels:
    """The labels of an entity: its name under ``entity`` and under its kind."""
    return {
        "cluster": (entity.cluster,),
        "kind": (entity.kind.value,),
        "namespace": (entity.namespace or "",),
        "entity": (entity.name,),
        entity.kind.value: (entity.name,),
    }
