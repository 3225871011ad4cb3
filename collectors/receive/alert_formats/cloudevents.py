"""CloudEvents 1.0 over HTTP, and the health events that NVSentinel's event exporter sends in them.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md: binary, structured and
batched mode. A health event reports the newest result of a check on a node: a fault, or healthy again. It is not
repeated, so its alert does not expire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from collectors.receive.alert_formats.record import (
    AlertRules,
    DecodedAlerts,
    ReportedAlert,
    checked_count,
    fingerprint_of,
    parsed,
    received,
    texts,
)
from collectors.receive.protocol import ReceiveError, RejectionReason

NVSENTINEL: Final = "nvsentinel"
_HEALTH_EVENT = "com.nvidia.nvsentinel.health."
_STRUCTURED, _BATCHED = "application/cloudevents+json", "application/cloudevents-batch+json"
_ACTIONS = {
    0: "none",
    2: "component_reset",
    5: "contact_support",
    6: "run_field_diagnostics",
    15: "restart_vm",
    24: "restart_node",
    25: "replace_vm",
    26: "run_dcgm_eud",
    99: "unknown",
}
_ENTITY_LABELS = {"gpu_uuid": "gpu_uuid", "gpu": "gpu", "pci": "pci", "pod": "pod", "pid": "pid"}
_IDENTIFYING = ("gpu_uuid", "pci", "gpu")  # of several names of one device, the most exact
_XID = re.compile(r"(?:XID[_ ]?)?(\d{1,3})", re.IGNORECASE)


def decode(headers: Mapping[str, str], body: bytes, rules: AlertRules, now: datetime) -> DecodedAlerts:
    """Decodes the events of one request. Raises ReceiveError for a body without events."""
    events = _events(headers, body)
    checked_count(events, rules)
    result = DecodedAlerts()
    for number, event in enumerate(events):
        kind = str(event.get("type", "")) if isinstance(event, Mapping) else ""
        health = texts(texts(texts(event).get("data")).get("healthEvent"))
        if not kind.startswith(_HEALTH_EVENT):
            result.problems.append(
                f"event {number} has the type {kind[:100]!r}, which is not read here; post it to /received/json/NAME"
            )
        elif not health.get("nodeName") or not health.get("checkName"):
            result.problems.append(f"event {number} has no nodeName or no checkName")
        else:
            metadata = texts(texts(event["data"]).get("metadata"))
            result.alerts.append(received(NVSENTINEL, _reported(event, health, metadata, rules), rules, now))
    return result


def _events(headers: Mapping[str, str], body: bytes) -> Sequence[Any]:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "ce-specversion" in headers:
        names = ("specversion", "type", "source", "id", "time", "subject")
        event = {name: headers[f"ce-{name}"] for name in names if f"ce-{name}" in headers}
        return [{**event, "data": parsed(body)}]
    document = parsed(body)
    if kind == _BATCHED or (isinstance(document, list) and kind != _STRUCTURED):
        return document if isinstance(document, list) else [document]
    if isinstance(document, Mapping) and "specversion" in document:
        return [document]
    raise ReceiveError(
        "the body is not a CloudEvent: it has no specversion",
        reason=RejectionReason.MALFORMED,
        hint=f"send {_STRUCTURED}, {_BATCHED}, or the headers ce-specversion, ce-type, ce-source and ce-id",
    )


def _reported(
    event: Mapping[str, Any], health: Mapping[str, Any], metadata: Mapping[str, Any], rules: AlertRules
) -> ReportedAlert:
    node, check, healthy = str(health["nodeName"]), str(health["checkName"]), health.get("isHealthy") is True
    entities = _entities(health)
    codes = [str(code) for code in _listed(health.get("errorCode")) if isinstance(code, str | int)]
    xid = next((match[1] for code in codes if (match := _XID.fullmatch(code.strip()))), "")
    cluster = str(metadata.get("cluster") or "")
    return ReportedAlert(
        name=check,
        firing=not healthy,
        labels={
            "alertname": check,
            "node": node,
            "cluster": cluster,
            "agent": health.get("agent"),
            "component_class": health.get("componentClass"),
            "error_code": ",".join(codes),
            "xid": xid if "xid" in check.lower() else "",
            "recommended_action": _action(health.get("recommendedAction")),
            **entities,
        },
        fingerprint=fingerprint_of({"cluster": cluster, "node": node, "check": check, "at": _identity(entities)}),
        starts_at=str(health.get("generatedTimestamp") or event.get("time") or ""),
        ends_at=str(health.get("generatedTimestamp") or event.get("time") or ""),
        severity="critical" if health.get("isFatal") is True else "warning",
        summary=str(health.get("message") or check),
        group=f"{cluster}/{node}/{check}",
        fault=rules.code_faults.get(xid) if "xid" in check.lower() else None,
        expires=False,
        resolves_group=not entities,  # the whole check is healthy
    )


def _entities(health: Mapping[str, Any]) -> dict[str, str]:
    """Labels of the impacted entities; several values of one type are separated by commas."""
    found: dict[str, list[str]] = {}
    for entry in _listed(health.get("entitiesImpacted")):
        kind, value = texts(entry).get("entityType"), texts(entry).get("entityValue")
        if isinstance(kind, str) and isinstance(value, str | int) and str(value):
            name = _ENTITY_LABELS.get(kind.lower(), f"entity_{kind.lower()}")
            found.setdefault(name, []).append(str(value))
    return {name: ",".join(sorted(values)) for name, values in found.items()}


def _identity(entities: Mapping[str, str]) -> Mapping[str, str]:
    """The names that identify the impacted entities: a recovery may list fewer names of a device than its fault."""
    exact = next((name for name in _IDENTIFYING if name in entities), None)
    return entities if exact is None else {exact: entities[exact]}


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _action(number: Any) -> str:
    return _ACTIONS.get(number, str(number)) if isinstance(number, int) else str(number or "")
