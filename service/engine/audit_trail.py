"""Audit records of a cycle: one record per decision, including the decision to do nothing.

A standing decision is recorded once, and again if its reason changes or the engine restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    BreakerState,
    CycleRecord,
    GuardAnswer,
    Incident,
    NoRecommendation,
    NotifyReason,
    Plan,
    StepStatus,
)
from remediation.decide.limits import Decisions, Hold


@dataclass(frozen=True, slots=True)
class CycleDecisions:
    """Everything that one cycle decided, and the state before it.

    ``notify_reasons`` holds for every incident the reason for a message, or for none.
    """

    alerts_before: Sequence[Alert]
    alerts: Sequence[Alert]
    incidents_before: Sequence[Incident]
    incidents: Sequence[Incident]
    plan: Plan | None
    decisions: Decisions
    notify_reasons: Mapping[str, NotifyReason]


@dataclass(frozen=True, slots=True)
class StandingStep:
    """The state of a step, and its beginning. ``paged``: the time of its page has come."""

    state: str
    since: datetime
    paged: bool


@dataclass(frozen=True, slots=True)
class StandingReasons:
    """Reasons already on record, so that they are not written every cycle: of holds, muted incidents and steps."""

    held: Mapping[str, str] = field(default_factory=dict)
    muted: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, StandingStep] = field(default_factory=dict)

    def changed(self, steps: Iterable[StepStatus]) -> tuple[StepStatus, ...]:
        """Returns the steps whose state is not on record."""
        return tuple(step for step in steps if self._known(step) is None)

    def pages(self, steps: Iterable[StepStatus], now: datetime) -> tuple[StepStatus, ...]:
        """Returns the steps whose page is due for the first time since the state began."""
        return tuple(step for step in steps if self.step_at(step, now).paged and not self._was_paged(step))

    def step_at(self, step: StepStatus, now: datetime) -> StandingStep:
        """Returns the record of a step at a time."""
        known = self._known(step)
        since = now if known is None else known.since
        return StandingStep(step.state.value, since, self._was_paged(step) or now - since >= step.page_after)

    def _known(self, step: StepStatus) -> StandingStep | None:
        known = self.steps.get(_step_key(step))
        return known if known is not None and known.state == step.state.value else None

    def _was_paged(self, step: StepStatus) -> bool:
        known = self._known(step)
        return known is not None and known.paged


def of_cycle(
    cycle: CycleRecord, decided: CycleDecisions, before: StandingReasons
) -> tuple[tuple[AuditRecord, ...], StandingReasons]:
    """Returns the records of the cycle in the order of the loop, and the reasons that stand afterwards."""
    holds = {hold.subject: _hold_key(hold) for hold in decided.decisions.holds}
    muted = {
        incident: reason.value for incident, reason in decided.notify_reasons.items() if reason is NotifyReason.MUTED
    }
    records = (
        *_plan(cycle, decided.plan),
        *_alerts(cycle, decided.alerts),
        *_mutes(cycle, decided.alerts_before, decided.alerts),
        *_incidents(cycle, decided.incidents_before, decided.incidents),
        *(_action(cycle, action) for action in decided.decisions.actions),
        *_breaker(cycle, decided.decisions.breaker),
        *(_hold(cycle, hold) for hold in decided.decisions.holds if before.held.get(hold.subject) != _hold_key(hold)),
        *(_step(cycle, step) for step in before.changed(decided.decisions.steps)),
        *_messages(cycle, decided.notify_reasons, before.muted),
    )
    steps = {_step_key(step): before.step_at(step, cycle.at) for step in decided.decisions.steps}
    return records, StandingReasons(holds, muted, steps)


def _hold_key(hold: Hold) -> str:
    return hold.reason.value if hold.objection is None else f"{hold.reason} {_words(hold.objection)}"


def _hold(cycle: CycleRecord, hold: Hold) -> AuditRecord:
    """The reason for doing nothing new, with the objection of the guard that holds the next step."""
    detail = {} if hold.objection is None else {"guard": _words(hold.objection)}
    return AuditRecord(cycle.at, AuditEvent.HELD, hold.subject, hold.reason.value, cycle.id, detail=detail)


def _words(objection: GuardAnswer) -> str:
    """The reason of a guard and what it names, such as a budget."""
    return f"{objection.reason} {objection.detail}".strip()


def _step_key(step: StepStatus) -> str:
    return f"{step.incident} {step.kind} {step.target.key}"


def _step(cycle: CycleRecord, step: StepStatus) -> AuditRecord:
    """The state of a playbook step, with the condition that it waits for or has checked."""
    detail = {"because": step.incident, "check": step.check}
    if step.objection is not None:
        detail["guard"] = _words(step.objection)
    subject = f"{step.kind} {step.target}"
    return AuditRecord(cycle.at, AuditEvent.STEP_CHECKED, subject, step.state.value, cycle.id, detail=detail)


def _messages(
    cycle: CycleRecord, reasons: Mapping[str, NotifyReason], muted: Mapping[str, str]
) -> Iterator[AuditRecord]:
    """Yields messages and deliberate silence. An incident without a change needs no decision."""
    for incident, reason in reasons.items():
        if reason is NotifyReason.NOT_CHANGED or (reason is NotifyReason.MUTED and incident in muted):
            continue
        yield AuditRecord(cycle.at, AuditEvent.MESSAGE_DECIDED, incident, reason.value, cycle.id)


def _plan(cycle: CycleRecord, plan: Plan | None) -> Iterable[AuditRecord]:
    for item in plan.new_recommendations if plan else ():
        detail = {}
        if not isinstance(item, NoRecommendation):
            detail = {
                "current": str(item.current_replicas),
                "target": str(item.target_replicas),
                "binding": item.binding,
            }
            if "replanned" in item.derivation:
                detail["because"] = ",".join(item.derivation["replanned"])
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


def _mutes(cycle: CycleRecord, before: Sequence[Alert], after: Sequence[Alert]) -> Iterator[AuditRecord]:
    """Yields alerts that are muted or unmuted in this cycle."""
    muted_before = {alert.fingerprint: alert.muted_by for alert in before}
    for alert in after:
        earlier = muted_before.get(alert.fingerprint)
        if alert.muted_by is not earlier:
            muted = alert.muted_by or earlier
            event = AuditEvent.ALERT_MUTED if alert.muted_by else AuditEvent.ALERT_UNMUTED
            subject = f"{alert.rule} {alert.entity}"
            detail = {"incident": alert.incident or ""}
            yield AuditRecord(cycle.at, event, subject, muted.value if muted else "", cycle.id, detail=detail)


def _incidents(cycle: CycleRecord, before: Sequence[Incident], after: Sequence[Incident]) -> Iterable[AuditRecord]:
    known = {incident.id: incident for incident in before}
    for incident in after:
        earlier = known.get(incident.id)
        cause = incident.suspected_cause
        detail = {"cause": f"{cause.fault} {cause.entity}" if cause else "unknown", "priority": incident.priority}
        if earlier is None:
            yield AuditRecord(cycle.at, AuditEvent.INCIDENT_OPENED, incident.id, "opened", cycle.id, detail=detail)
            continue
        previous = earlier.suspected_cause
        if (cause and (cause.entity, cause.fault)) != (previous and (previous.entity, previous.fault)):
            yield AuditRecord(
                cycle.at, AuditEvent.CAUSE_CHANGED, incident.id, "better_evidence", cycle.id, detail=detail
            )
        if incident.resolved_at and not earlier.resolved_at:
            yield AuditRecord(cycle.at, AuditEvent.INCIDENT_RESOLVED, incident.id, "resolved", cycle.id, detail=detail)


def _breaker(cycle: CycleRecord, opened: BreakerState | None) -> Iterator[AuditRecord]:
    if opened is not None:
        detail = {"unsuccessful": str(opened.unsuccessful), "performed": str(opened.performed)}
        yield AuditRecord(
            cycle.at, AuditEvent.BREAKER_OPENED, "remediation", "remediation_does_not_help", cycle.id, detail=detail
        )


def _action(cycle: CycleRecord, action: Action) -> AuditRecord:
    detail = {
        "action": action.id,
        "decision": action.decision,
        "status": action.status,
        "because": action.because,
        "dry_run": str(action.dry_run),
    }
    if action.status is ActionStatus.CANCELLED and action.detail:
        detail["about"] = action.detail
    if action.objections:
        detail["objections"] = "; ".join(
            f"{answer.guard}: {answer.reason}" + (f" ({answer.detail})" if answer.detail else "")
            for answer in action.objections
        )
    return AuditRecord(
        cycle.at, AuditEvent.ACTION_DECIDED, f"{action.kind} {action.target}", action.reason, cycle.id, detail=detail
    )
