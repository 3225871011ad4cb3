"""Incidents whose cause has ended while its symptoms decay.

A backlog, or a percentile over some minutes, outlasts its fault. Its alert may still be pending when the last alert of
the cause resolves, and fire minutes later. It keeps the incident open instead of opening another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from detectors.rca.evidence_index import EvidenceIndex
from detectors.rca.hypotheses import USER_FACING, FaultHypothesis, pairs
from detectors.rca.incident_lifecycle import IncidentDraft, cause_hypothesis
from outrider.model import Alert, AlertReason, AlertState, EntityKind, Priority


def keep_open(drafts: Sequence[IncidentDraft], alerts: Iterable[Alert], index: EvidenceIndex) -> None:
    """Keeps open incidents open that have no firing alert, if a symptom that began inside them still holds.

    Such a symptom has no fault of its own. The suspected cause explains it; without one, it is on the same service.
    """
    held = {fingerprint for draft in drafts for fingerprint in draft.alive}
    silent = [draft for draft in drafts if not (draft.closed or draft.alive or draft.unfinished)]
    symptoms = [alert for alert in alerts if _is_symptom(alert) and alert.fingerprint not in held] if silent else []
    if not symptoms:
        return
    causes = [cause for draft in silent if (cause := cause_hypothesis(draft, index)) is not None]
    effects = [FaultHypothesis(alert.entity, None, alert.starts_at, alerts=(alert.fingerprint,)) for alert in symptoms]
    explained = pairs([*causes, *effects], index.reach, index.knowledge)
    lasting = {causes[pair.cause].home for pair in explained if pair.cause < len(causes) <= pair.symptom}
    for draft in silent:
        unknown = draft.incident.suspected_cause is None
        draft.unfinished = draft.incident.id in lasting or (unknown and _lasts_unexplained(draft, symptoms, index))


def _is_symptom(alert: Alert) -> bool:
    """True for an active alert without a fault about what users feel, whose condition is known to hold."""
    active = alert.state is not AlertState.RESOLVED and alert.reason is not AlertReason.KEPT_WITHOUT_VALUES
    felt = alert.entity.kind in USER_FACING and alert.priority is not Priority.P3
    return active and felt and alert.fault is None


def _lasts_unexplained(draft: IncidentDraft, symptoms: Iterable[Alert], index: EvidenceIndex) -> bool:
    affected = {symptom.entity for symptom in unexplained(draft, index)}
    return any(
        alert.starts_at >= draft.incident.opened_at and not affected.isdisjoint(index.reach.services(alert.entity))
        for alert in symptoms
    )


def unexplained(draft: IncidentDraft, index: EvidenceIndex) -> tuple[FaultHypothesis, ...]:
    """The symptom of an incident without a cause, on each of its services."""
    opened, home = draft.incident.opened_at, draft.incident.id
    services = index.reach.topology.of_kind(EntityKind.SERVICE)
    return tuple(
        FaultHypothesis(service, None, opened, firing=False, home=home)
        for service in services
        if service.name in draft.incident.services
    )
