"""Builds findings with uniform fingerprints, severities and timestamps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from outrider.model import EntityRef, Evidence, Finding, Interval, Priority, TimeRange
from outrider.vocabulary.faults import fault


def evidence(
    signal: str, observed: float | None, text: str, expected: Interval | None = None, **arguments: object
) -> Evidence:
    """Builds one piece of evidence; ``text`` is a key of the findings texts without its area."""
    filled: Mapping[str, str] = {name: _spell(value) for name, value in arguments.items()}
    return Evidence(signal, _number(observed), expected, f"findings.{text}", filled)


def finding(
    detector: str,
    entity: EntityRef,
    fault_id: str,
    *,
    score: float,
    since: float,
    now: datetime,
    evidence_items: tuple[Evidence, ...],
    severity: Priority | None = None,
) -> Finding:
    """Builds a finding that names a fault. ``since`` is unix seconds; the first evidence is the observed value.

    Severity defaults to the fault's priority without SLO burn. The alert stage raises it.
    """
    first = evidence_items[0]
    start = min(datetime.fromtimestamp(since, tz=UTC), now)
    return Finding(
        detector=detector,
        entity=entity,
        signals=tuple(dict.fromkeys(item.signal for item in evidence_items)),
        severity=severity or fault(fault_id).otherwise,
        score=min(1.0, max(0.0, score)),
        observed=first.observed,
        expected=first.expected,
        window=TimeRange(start, now),
        evidence=evidence_items,
        fingerprint=fingerprint(detector, entity, fault_id),
        fault=fault_id,
    )


def anomaly_finding(
    detector: str,
    entity: EntityRef,
    subject: str,
    *,
    signals: tuple[str, ...],
    score: float,
    observed: float | None,
    expected: Interval | None,
    start: datetime,
    now: datetime,
    evidence_items: tuple[Evidence, ...],
) -> Finding:
    """Builds a P3 finding of an anomaly that names no fault and pages nobody."""
    return Finding(
        detector=detector,
        entity=entity,
        signals=signals,
        severity=Priority.P3,
        score=score,
        observed=observed,
        expected=expected,
        window=TimeRange(start, now),
        evidence=evidence_items,
        fingerprint=fingerprint(detector, entity, subject),
    )


def fingerprint(detector: str, entity: EntityRef, subject: str) -> str:
    """A key that is stable while the condition lasts: detector, entity, fault or signal."""
    return f"{detector}|{entity.key}|{subject}"


def _number(value: float | None) -> float | None:
    return None if value is None or value != value else float(value)  # noqa: PLR0124 - NaN is not equal to itself


def _spell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
