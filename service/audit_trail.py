"""What a cycle leaves in the append-only record: one line per decision, the decision to hold included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import Action, Alert, CycleRecord, Incident, NoRecommendation, Plan


def of_cycle(
    cycle: CycleRecord,
    before: Sequence[Incident],
    after: Sequence[Incident],
    alerts: Iterable[Alert],
    actions: Iterable[Action],
    plan: Plan | None,
) -> tuple[AuditRecord, ...]:
    """Every change of the cycle, in the order of the loop."""
    return (
        *_plan(cycle, plan),
        *_alerts(cycle, alerts),
        *_incidents(cycle, before, after),
        *(_action(cycle, action) for action in actions),
    )


def _plan(cycle: CycleRecord, plan: Plan | None) -> Iterable[AuditRecord]:
    for item in plan.recommendations if plan else ():
        detail = {}
        if not isinstance(item, NoRecommendation):
            detail = {
                "current": str(item.current_replicas),
                "target": str(item.target_replicas),
                "binding": item.binding,
            }
        yield AuditRecord(cycle.at, AuditEvent.PLAN_MADE, str(item.service), item.reason, cycle.id, detail=detail)


def _alerts(cycle: CycleRecord, alerts: Iterable[Alert]) -> Iterable[AuditRecord]:
    for alert in alerts:
        changed_at = alert.ends_at or alert.starts_at
        if changed_at == cycle.at or alert.reason == "waiting_time_over":
            yield AuditRecord(
                cycle.at,
                AuditEvent.ALERT_CHANGED,
                f"{alert.rule} {alert.entity}",
                alert.reason,
                cycle.id,
                detail={"state": alert.state, "priority": alert.priority},
            )


def _incidents(cycle: CycleRecord, before: Sequence[Incident], after: Sequence[Incident]) -> Iterable[AuditRecord]:
    known = {incident.id: incident for incident in before}
    for incident in after:
        earlier = known.get(incident.id)
        cause = incident.suspected_cause
        detail = {"cause": f"{cause.fault} {cause.entity}" if cause else "unknown", "priority": incident.priority}
        if earlier is None:
            yield AuditRecord(cycle.at, AuditEvent.INCIDENT_OPENED, incident.id, "opened", cycle.id, detail=detail)
            continue
        was = earlier.suspected_cause
        if (cause and (cause.entity, cause.fault)) != (was and (was.entity, was.fault)):
            yield AuditRecord(
                cycle.at, AuditEvent.CAUSE_CHANGED, incident.id, "better_evidence", cycle.id, detail=detail
            )
        if incident.resolved_at and not earlier.resolved_at:
            yield AuditRecord(cycle.at, AuditEvent.INCIDENT_RESOLVED, incident.id, "resolved", cycle.id, detail=detail)


def _action(cycle: CycleRecord, action: Action) -> AuditRecord:
    detail = {
        "action": action.id,
        "decision": action.decision,
        "because": action.because,
        "dry_run": str(action.dry_run),
    }
    return AuditRecord(
        cycle.at, AuditEvent.ACTION_DECIDED, f"{action.kind} {action.target}", action.reason, cycle.id, detail=detail
    )
