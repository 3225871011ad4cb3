"""Alerts of other monitors beside our own: the same record, correlated and notified alike. Pure.

Their source decides when they start and end, so they have neither a waiting nor a clear time. Their labels keep a
prefix, so that no source can set a label that routes or correlates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from alerts.rules.context import ServiceContext
from outrider.clock import rfc3339
from outrider.model import (
    RECEIVED_FROM,
    SOURCE_LABEL,
    Alert,
    AlertReason,
    AlertState,
    EntityRef,
    Priority,
)
from outrider.records.received_alerts import ReceivedAlert

_UNKNOWN = "unknown_entity"
_RECEIVED_AT = "received_at"
Subject = tuple[EntityRef, bool, str | None]
"""Entity, True if the topology has it, and the fault if it fits the entity."""
SubjectOf = Callable[[Mapping[str, str], str | None], Subject]


def advance(
    active: Iterable[Alert],
    received: Sequence[ReceivedAlert],
    subject_of: SubjectOf,
    context: ServiceContext,
    now: datetime,
) -> tuple[Alert, ...]:
    """The received alerts of one cycle: those that fire, and those that ended since the last one, by fingerprint.

    ``active`` are the received alerts that fired in the last cycle, ``received`` those that fire at their source now.
    """
    before = {alert.fingerprint: alert for alert in active}
    after = {item.id: _fires(before.get(item.id), item, subject_of, context) for item in received}
    for print_, alert in before.items():
        if print_ not in after:
            ended = replace(alert, state=AlertState.RESOLVED, reason=AlertReason.ENDED_AT_SOURCE, ends_at=now)
            after[print_] = ended
    return tuple(after[print_] for print_ in sorted(after))


def rule_of(source: str, name: str) -> str:
    """The rule name of a received alert; no rule of ours contains a colon."""
    return f"{source}:{name}"


def _fires(alert: Alert | None, item: ReceivedAlert, subject_of: SubjectOf, context: ServiceContext) -> Alert:
    unknown = alert is not None and alert.annotations.get(_UNKNOWN) == "true"
    if alert is not None and not unknown and alert.annotations.get(_RECEIVED_AT) == item.received_at.isoformat():
        return alert  # nothing new: its row is not written again
    entity, known, fault = subject_of(item.labels, item.fault)
    if alert is not None and not unknown:
        entity, known = alert.entity, True  # an alert stays where it began
    services = ",".join(sorted(str(service) for service in context.services(entity)))
    return Alert(
        fingerprint=item.id,
        rule=rule_of(item.source, item.name),
        priority=_never_lower(alert, item.priority),
        entity=entity,
        state=AlertState.FIRING,
        reason=AlertReason.RECEIVED,
        starts_at=item.starts_at if alert is None else alert.starts_at,
        seen_at=item.received_at,
        fault=fault if alert is None or unknown else alert.fault,
        labels=_labels(item, services),
        annotations=_annotations(item, known=known),
        muted_by=None if alert is None else alert.muted_by,
        incident=None if alert is None else alert.incident,
    )


def _never_lower(alert: Alert | None, priority: Priority) -> Priority:
    return alert.priority if alert is not None and alert.priority.rank < priority.rank else priority


def _labels(item: ReceivedAlert, services: str) -> Mapping[str, str]:
    own = {RECEIVED_FROM: item.source, **({"services": services} if services else {})}
    return own | {f"{SOURCE_LABEL}{name}": text for name, text in item.labels.items()}


def _annotations(item: ReceivedAlert, *, known: bool) -> Mapping[str, str]:
    """What a page shows: the name and the summary of the source as evidence, its runbook and its link."""
    arguments = {"source": item.source, "name": item.name, "summary": item.summary or item.name}
    evidence = {"signal": "", "observed": None, "text": "alerts.evidence.received", "arguments": arguments}
    written = {
        "evidence": json.dumps([evidence], ensure_ascii=False),
        "fired_at": rfc3339(item.starts_at),
        _RECEIVED_AT: item.received_at.isoformat(),
        "summary": item.summary,
        "description": item.description,
        "url": item.url,
        "runbook": item.runbook,
        _UNKNOWN: "" if known else "true",
    }
    return {key: text for key, text in written.items() if text}
