"""Attaches P3 symptoms, which page nobody, to the incident whose suspected cause explains them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from detectors.platform.scrape_targets import stands_for
from detectors.rca import evidence_index, incident_lifecycle
from detectors.rca.evidence_index import EvidenceIndex
from detectors.rca.hypotheses import FaultHypothesis, Pair, TopologyRelation, begins_later, gathered, pairs
from outrider.model import Alert, AlertState, Incident


def attach_symptoms(
    standing: Sequence[Incident], alerts: Sequence[Alert], index: EvidenceIndex, now: datetime
) -> Iterator[Incident]:
    """Open incidents with the P3 symptoms that their suspected causes explain and that none contains yet.

    Such an alert is only recorded with its incident: it neither opens nor prolongs one.
    """
    held = {fingerprint for incident in standing for fingerprint in incident.alerts}
    loose = [alert for alert in alerts if _is_symptom(alert) and alert.fingerprint not in held]
    if not loose:
        return
    firing = {alert.fingerprint: alert for alert in alerts if evidence_index.opens_incident(alert)}
    drafts = [incident_lifecycle.reopen(incident, firing) for incident in standing]
    causes = [
        hypothesis for draft in drafts if (hypothesis := incident_lifecycle.cause_hypothesis(draft, index)) is not None
    ]
    if not causes:
        return
    topology = index.reach.topology
    hypotheses = causes + [
        FaultHypothesis(stands_for(alert.entity, topology), None, alert.starts_at, alerts=(alert.fingerprint,))
        for alert in loose
    ]
    joining: dict[str, list[str]] = {}
    by_symptom, _ = gathered(list(pairs(hypotheses, index.reach, index.knowledge)), len(hypotheses))
    for number in range(len(causes), len(hypotheses)):
        best = min(by_symptom[number], key=partial(_nearness, hypotheses, index.late), default=None)
        if best is not None:
            joining.setdefault(hypotheses[best.cause].home or "", []).extend(hypotheses[number].alerts)
    for incident in standing:
        if incident.id in joining:
            merged = (*incident.alerts, *sorted(joining[incident.id]))
            yield replace(incident, alerts=merged, updated_at=now)


def _nearness(
    hypotheses: Sequence[FaultHypothesis], late: timedelta, pair: Pair
) -> tuple[TopologyRelation, bool, timedelta, int]:
    """Sort key: the smaller, the more likely this cause belongs to a symptom."""
    cause, symptom = hypotheses[pair.cause], hypotheses[pair.symptom]
    return (pair.tie, begins_later(cause, symptom, late), abs(symptom.since - cause.since), pair.cause)


def _is_symptom(alert: Alert) -> bool:
    return alert.state is AlertState.FIRING and not evidence_index.opens_incident(alert)
