"""JSON documents of alerts, incidents, recommendations, actions and forecasts, for the API and the command line.

Timestamps are RFC 3339 with Z, durations seconds, ratios 0-1. A missing number is null, never NaN. Keys are stable;
new ones may be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Protocol

import numpy as np

from outrider.audit import AuditRecord, redact
from outrider.clock import from_unix, rfc3339
from outrider.documents.summaries import alert_summary, because, compared, fault_name, incident_summary, worded
from outrider.model import (
    Action,
    ActionRequest,
    Alert,
    BreakerState,
    CycleRecord,
    DeadLetter,
    EntityRef,
    Event,
    Evidence,
    Floats,
    Forecast,
    GuardAnswer,
    Hypothesis,
    Incident,
    Interval,
    Message,
    NoRecommendation,
    Recommendation,
)
from outrider.records.feedback import Feedback, RulePrecision
from outrider.text.i18n import Language, translate

Json = dict[str, Any]


class Target(Protocol):
    """State of one target after one collection; implemented by the collectors' ``TargetHealth``."""

    @property
    def target(self) -> str:
        """Name of the target."""
        ...

    @property
    def adapter(self) -> str:
        """Adapter that reads its metrics."""
        ...

    @property
    def up(self) -> bool | None:
        """True if the last scrape succeeded; None before the first scrape."""
        ...

    @property
    def samples(self) -> int | None:
        """Sample lines of its exposition page."""
        ...

    @property
    def duration_seconds(self) -> float | None:
        """Time from connect to last byte."""
        ...

    @property
    def error(self) -> str | None:
        """Reason of the last failure, in one sentence."""
        ...


def finite(value: float | None) -> float | None:
    """The number as a Python float; None for NaN, infinities and None."""
    if value is None:
        return None
    plain = float(value)
    return plain if isfinite(plain) else None


def numbers(values: Floats) -> list[float | None]:
    """An array as a list, with None for missing values."""
    flat = np.asarray(values, dtype=np.float64)
    return [value if known else None for value, known in zip(flat.tolist(), np.isfinite(flat).tolist(), strict=True)]


def instant(value: datetime | None) -> str | None:
    """RFC 3339, or None for None."""
    return None if value is None else rfc3339(value)


def instants(unix_seconds: Floats) -> list[str]:
    """Unix seconds as RFC 3339."""
    return [rfc3339(from_unix(seconds)) for seconds in unix_seconds.tolist()]


def plain(value: Any) -> Any:
    """Nested mappings, sequences, numbers, entities and timestamps as JSON. Secrets are replaced."""
    if isinstance(value, EntityRef):
        return entity(value)
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Mapping):
        words = {str(key): child for key, child in value.items()}
        texts = redact({key: child for key, child in words.items() if isinstance(child, str)})
        return {key: texts[key] if key in texts else plain(child) for key, child in words.items()}
    if isinstance(value, np.ndarray):
        return [plain(child) for child in value.tolist()]
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(child) for child in value]
    if isinstance(value, bool | str | int) or value is None:
        return value
    return finite(float(value)) if isinstance(value, float | np.floating) else str(value)


def entity(value: EntityRef) -> Json:
    """Cluster, namespace, kind and name of an entity."""
    return {"cluster": value.cluster, "kind": value.kind.value, "namespace": value.namespace, "name": value.name}


def interval(value: Interval | None) -> Json | None:
    """A closed range; null is an open end."""
    return None if value is None else {"low": finite(value.low), "high": finite(value.high)}


def target(value: Target) -> Json:
    """A target after one collection."""
    return {
        "target": value.target,
        "adapter": value.adapter,
        "up": value.up,
        "samples": value.samples,
        "duration_seconds": finite(value.duration_seconds),
        "error": str(value.error) if value.error else None,
    }


def alert(value: Alert, language: Language = "en") -> Json:
    """One alert with its one-sentence summary."""
    return {
        "fingerprint": value.fingerprint,
        "rule": value.rule,
        "priority": value.priority.value,
        "state": value.state.value,
        "entity": entity(value.entity),
        "starts_at": rfc3339(value.starts_at),
        "ends_at": instant(value.ends_at),
        "incident": value.incident,
        "summary": alert_summary(value, language),
        "value": finite(value.value),
        "muted_by": value.muted_by.value if value.muted_by else None,
        "reason": value.reason.value,
        "fault": value.fault,
        "seen_at": rfc3339(value.seen_at),
        "labels": redact(value.labels),
        "annotations": redact(value.annotations),
    }


def incident(value: Incident, language: Language = "en") -> Json:
    """An incident without timeline and evidence, for lists."""
    hypotheses = [_candidate(item) for item in value.hypotheses]
    return {
        "id": value.id,
        "layer": value.layer.value,
        "priority": value.priority.value,
        "opened_at": rfc3339(value.opened_at),
        "resolved_at": instant(value.resolved_at),
        "suspected_cause": hypotheses[0] if hypotheses else None,
        "hypotheses": hypotheses,
        "unknown_confidence": round(value.unknown_confidence, 3),
        "rejected": [
            {"entity": entity(item.entity), "fault": item.fault, "why": translate(item.why, language)}
            for item in value.rejected
        ],
        "alerts": len(value.alerts),
        "pages": value.pages,
        "summary": incident_summary(value, language),
        "updated_at": rfc3339(value.updated_at),
        "acknowledged_at": instant(value.acknowledged_at),
        "acknowledged_by": value.acknowledged_by,
        "services": list(value.services),
    }


def incident_story(value: Incident, language: Language = "en") -> Json:
    """An incident with the evidence of every hypothesis and its timeline, oldest first."""
    story = incident(value, language)
    story["hypotheses"] = [
        {**_candidate(hypothesis), "evidence": [evidence(item, language) for item in hypothesis.evidence]}
        for hypothesis in value.hypotheses
    ]
    story["fault_name"] = fault_name(value.hypotheses[0].fault, language) if value.hypotheses else None
    story["timeline"] = [
        {
            "at": rfc3339(entry.at),
            "what": entry.what,
            "text": translate(entry.what, language, **worded(entry.arguments, language)),
        }
        for entry in sorted(value.timeline, key=lambda entry: entry.at)
    ]
    return story


def evidence(value: Evidence, language: Language = "en") -> Json:
    """One observation that supports a hypothesis."""
    return {
        "signal": value.signal,
        "observed": finite(value.observed),
        "expected": interval(value.expected),
        "text": translate(value.text, language, **worded(value.arguments, language)) if value.text else "",
    }


def recommendation(value: Recommendation | NoRecommendation, language: Language = "en") -> Json:
    """The recommendation for a service; without one the numbers are null, and reason and detail explain it."""
    known = value if isinstance(value, Recommendation) else None
    return {
        "service": value.service.name,
        "gpu_type": known.gpu_type if known else None,
        "current_replicas": known.current_replicas if known else None,
        "target_replicas": known.target_replicas if known else None,
        "gpus": known.gpus if known else None,
        "nodes": _nodes(known.derivation) if known else None,
        "floor": known.floor if known else None,
        "ceiling": known.ceiling if known else None,
        "binding": known.binding if known else None,
        "need_at": instant(known.need_at) if known else None,
        "needed_by": instant(known.needed_by) if known else None,
        "lead_time_seconds": known.lead_time.total_seconds() if known else None,
        "cost_per_hour": finite(known.cost_per_hour) if known else None,
        "currency": known.currency if known else None,
        "derivation": plain(known.derivation) if known else {},
        "reason": value.reason.value,
        "entity": entity(value.service),
        "made_at": rfc3339(value.made_at),
        "detail": translate(value.detail, language, **value.arguments) if isinstance(value, NoRecommendation) else "",
    }


def _nodes(derivation: Mapping[str, Any]) -> Json | None:
    """Whole nodes of a plan; None if the node size is unknown."""
    match = derivation.get("nodes")
    if not match or match["nodes"] is None:
        return None
    names = ("nodes", "gpus", "idle_gpus", "stranded_gpus", "gpus_per_node", "source")
    return {name: match[name] for name in names}


def action(value: Action, language: Language = "en") -> Json:
    """An action, decided or performed."""
    return {
        "id": value.id,
        "session": value.session,
        "kind": value.kind.value,
        "target": entity(value.target),
        "dry_run": value.dry_run,
        "decision": value.decision.value,
        "reason": value.reason.value,
        "status": value.status.value,
        "started_at": instant(value.started_at),
        "ended_at": instant(value.ended_at),
        "params": plain(value.params),
        "because": value.because,
        "decided_at": rfc3339(value.decided_at),
        "detail": value.detail,
        "approved_by": value.approved_by,
        "approved_at": instant(value.approved_at),
        "approvals": list(value.approvals),
        "approvals_needed": value.approvals_needed,
        "requested_by": value.requested_by,
        "objections": [guard_answer(answer, language) for answer in value.objections],
    }


def guard_answer(value: GuardAnswer, language: Language = "en") -> Json:
    """The answer of one guard. ``compared`` is a sentence, ``facts`` are its numbers and names by text key."""
    return {
        "name": value.guard,
        "verdict": value.verdict.value,
        "reason": value.reason.value,
        "detail": value.detail,
        "compared": compared(value.compared, language),
        "facts": [{"text": reason.text, **reason.arguments} for reason in value.compared],
    }


def breaker(value: BreakerState) -> Json:
    """The breaker of remediation."""
    return {
        "open": value.is_open,
        "opened_at": instant(value.opened_at),
        "unsuccessful": value.unsuccessful,
        "performed": value.performed,
        "reset_at": instant(value.reset_at),
        "reset_by": value.reset_by,
    }


def planned_action(
    value: Action,
    guards: Iterable[GuardAnswer],
    requests: Iterable[ActionRequest],
    error: str,
    language: Language = "en",
) -> Json:
    """An action that is planned: with the answers of its guards, and its requests or the reason for none."""
    return {
        **action(value, language),
        "guards": [guard_answer(answer, language) for answer in guards],
        "requests": [
            {"method": request.method, "url": request.url, "body": plain(request.body)} for request in requests
        ],
        "error": error,
    }


def forecast(value: Forecast, language: Language = "en") -> Json:
    """A forecast as parallel lists; the keys of ``quantiles`` and ``peaks`` are strings such as ``"0.5"``.

    ``peaks`` are the highest values from the start up to each time; ``buffers`` the measured error of peaks by seconds
    ahead. ``why_model`` is the sentence of ``why``.
    """
    return {
        "signal": value.signal,
        "entity": entity(value.entity),
        "made_at": rfc3339(value.made_at),
        "step_seconds": value.step.total_seconds(),
        "times": instants(value.times),
        "quantiles": {f"{level:g}": numbers(value.quantiles[level]) for level in sorted(value.quantiles)},
        "peaks": {f"{level:g}": numbers(value.peaks[level]) for level in sorted(value.peaks)},
        "buffers": {f"{ahead:g}": finite(value.buffers[ahead]) for ahead in sorted(value.buffers)},
        "model": value.model,
        "why_model": because(value.why, language),
        "why": [{"text": reason.text, "arguments": dict(reason.arguments)} for reason in value.why],
        "score": {
            "wape": finite(value.score.wape),
            "wape_rival": finite(value.score.wape_rival),
            "coverage90": finite(value.score.coverage90),
            "folds": value.score.folds,
            "pinball": finite(value.score.pinball),
            "peak_error": finite(value.score.peak_error),
        },
    }


def event(value: Event) -> Json:
    """An event."""
    return {
        "id": value.id,
        "kind": value.kind.value,
        "entity": entity(value.entity),
        "at": rfc3339(value.at),
        "source": value.source,
        "code": value.code,
        "attributes": redact(value.attributes),
    }


def message(value: Message) -> Json:
    """A message of the outbox, without its body, which repeats the incident."""
    return {
        "id": value.id,
        "channel": value.channel,
        "reason": value.reason.value,
        "priority": value.priority.value if value.priority else None,
        "incident": value.incident,
        "also": list(value.also),
        "title": value.title,
        "created_at": rfc3339(value.created_at),
        "is_page": value.is_page,
        "link": value.link,
    }


def dead_letter(value: DeadLetter) -> Json:
    """A message that could not be delivered."""
    return message(value.message) | {
        "failed_at": rfc3339(value.failed_at),
        "attempts": value.attempts,
        "error": value.error,
    }


def audit(value: AuditRecord) -> Json:
    """One audit record."""
    return {
        "at": rfc3339(value.at),
        "event": value.event.value,
        "subject": value.subject,
        "reason": value.reason,
        "cycle": value.cycle,
        "by": value.by,
        "detail": dict(value.detail),
    }


def feedback(value: Feedback) -> Json:
    """A verdict on an alert occurrence."""
    return {
        "id": value.id,
        "fingerprint": value.fingerprint,
        "starts_at": rfc3339(value.starts_at),
        "rule": value.rule,
        "entity": entity(value.entity),
        "priority": value.priority.value,
        "incident": value.incident,
        "verdict": value.verdict.value,
        "cause": value.cause,
        "comment": value.comment,
        "by": value.by,
        "at": rfc3339(value.at),
    }


def precision(value: RulePrecision) -> Json:
    """Precision of a rule by its verdicts; low and high are the 95 % interval."""
    low, high = value.interval
    return {
        "rule": value.rule,
        "judged": value.judged,
        "useful": value.useful,
        "wrong_cause": value.wrong_cause,
        "not_useful": value.not_useful,
        "precision": finite(value.precision),
        "low": low,
        "high": high,
    }


def cycle(value: CycleRecord) -> Json:
    """A cycle."""
    return {
        "id": value.id,
        "at": rfc3339(value.at),
        "duration_seconds": finite(value.duration_seconds),
        "targets": value.targets,
        "targets_up": value.targets_up,
        "signals_written": value.signals_written,
        "findings": value.findings,
        "alerts_firing": value.alerts_firing,
        "incidents_open": value.incidents_open,
        "late": value.late,
        "sentences": list(value.sentences),
    }


def each(values: Iterable[Any], write: Any, *arguments: Any) -> list[Json]:
    """``write(value, *arguments)`` for every value."""
    return [write(value, *arguments) for value in values]


def _candidate(value: Hypothesis) -> Json:
    return {"entity": entity(value.entity), "fault": value.fault, "confidence": finite(value.confidence)}
