"""The decisions about hard faults between two cycles. Pure, like those of a cycle.

Only the detectors of hard faults run, only on the components that arrived, and their state is dropped. The next cycle
judges the same values and advances every state once. Alerts without a new finding stay as the last cycle left them.
Messages wait for the cycle, which sends one for the same fault on several components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from alerts.state import machine as alert_state
from detectors.hardware.hard_fault_signs import HardFaultSign
from detectors.rca import correlate
from outrider.model import Alert, CycleRecord, Finding, Incident, Plan
from outrider.ports import Collected, CycleCommit
from outrider.topology import Topology
from remediation.decide import policy
from service.engine import audit_trail, fleet_state
from service.engine.audit_trail import StandingReasons
from service.engine.decide import DecisionConfig, with_incidents
from service.engine.detect import DetectionInputs, DetectionMemory, RecentValues
from service.engine.inputs import StoredState
from service.engine.preview_window import PreviewWindow
from service.planning import role_pools

DETECTORS = frozenset({"gpu-faults", "liveness"})
LEAST_SCORE = 0.9  # an unknown code, or a suspicion, waits for the cycle


@dataclass(frozen=True, slots=True)
class EarlyInputs:
    """Input of ``decide_early``.

    ``collected`` are single scrapes and readings, ``recent`` the values of the cycles before. ``findings`` are those of
    the last cycle and of early decisions since. The topologies and the plan are the newest ones.
    """

    id: str
    now: datetime
    signs: frozenset[HardFaultSign]
    collected: Sequence[Collected]
    recent: RecentValues
    memory: DetectionMemory
    findings: tuple[Finding, ...]
    topology: Topology
    recent_topology: Topology
    stored: StoredState
    plan: Plan
    standing: StandingReasons


@dataclass(frozen=True, slots=True)
class EarlyOutcome:
    """The commit of an early decision, the facts behind it, and the findings to remember until the next cycle."""

    commit: CycleCommit
    facts: policy.FleetFacts
    findings: tuple[Finding, ...]


def decide_early(inputs: EarlyInputs, config: DecisionConfig) -> EarlyOutcome | None:
    """Returns the early decisions; None if the detectors of hard faults do not confirm any sign."""
    found = _findings(inputs, config)
    if not found:
        return None
    topology = role_pools.with_pools(inputs.topology)
    values = _values(inputs)
    raised = _alerts(inputs, config, found, topology, values)
    alerts = tuple({alert.fingerprint: alert for alert in (*inputs.stored.alerts, *raised)}.values())
    findings = tuple({item.fingerprint: item for item in (*inputs.findings, *found)}.values())
    after = _correlated(inputs, config, alerts, findings)
    alerts = alert_state.mute(with_incidents(alerts, after), after, inputs.stored.silences)
    touched = {alert.fingerprint for alert in raised}
    own = {incident.id for incident in after if touched & set(incident.alerts) and _is_caused_by(incident, found)}
    facts, decisions = _actions(inputs, config, after, alerts, topology, values, own)
    changed = _changed(inputs.stored.incidents, after)
    commit = _commit(inputs, alerts, touched, changed, decisions)
    return EarlyOutcome(commit, facts, found)


def _findings(inputs: EarlyInputs, config: DecisionConfig) -> tuple[Finding, ...]:
    """The findings that confirm a sign. The new states of the detectors are dropped."""
    only = frozenset(
        entity
        for collected in inputs.collected
        for batch in collected.batches
        for entity in batch.entities
    ) | {sign.entity for sign in inputs.signs}  # fmt: skip
    detection = DetectionInputs(inputs.now, inputs.topology, _values(inputs, only))
    result, _ = config.detectors.only(DETECTORS).detect(inputs.memory, detection)
    confirmed = {(sign.entity, sign.fault) for sign in inputs.signs}
    return tuple(
        item
        for item in result.findings
        if (item.entity, item.fault) in confirmed and item.score >= LEAST_SCORE
    )  # fmt: skip


def _values(inputs: EarlyInputs, only: frozenset | None = None) -> PreviewWindow:
    batches = [batch for collected in inputs.collected for batch in collected.batches]
    events = [event for collected in inputs.collected for event in collected.events]
    return PreviewWindow(inputs.recent, inputs.now, batches, events, only)


def _alerts(
    inputs: EarlyInputs,
    config: DecisionConfig,
    found: Sequence[Finding],
    topology: Topology,
    values: RecentValues,
) -> tuple[Alert, ...]:
    """The alerts of these findings; every other alert is left alone."""
    context = fleet_state.service_context(inputs.stored.alerts, inputs.plan, topology, values)
    new = alert_state.advance((), found, None, config.rules, context, inputs.now)
    touched = {alert.fingerprint for alert in new}
    active = [alert for alert in inputs.stored.alerts if alert.fingerprint in touched]
    return alert_state.advance(active, found, None, config.rules, context, inputs.now)


def _correlated(
    inputs: EarlyInputs, config: DecisionConfig, alerts: Sequence[Alert], findings: Sequence[Finding]
) -> tuple[Incident, ...]:
    before = inputs.stored.incidents
    fresh = [event for collected in inputs.collected for event in collected.events]
    events = tuple({event.id: event for event in (*inputs.stored.events, *fresh)}.values())
    changed = correlate.correlate(
        before,
        alerts,
        findings,
        events,
        inputs.recent_topology,
        config.knowledge,
        inputs.now,
        config.detectors.interval,
    )
    return tuple({incident.id: incident for incident in (*before, *changed)}.values())


def _is_caused_by(incident: Incident, found: Sequence[Finding]) -> bool:
    """True if the suspected cause is one of the hard faults; with another cause, the cycle decides."""
    cause = incident.suspected_cause
    return cause is not None and any((item.entity, item.fault) == (cause.entity, cause.fault) for item in found)


def _actions(
    inputs: EarlyInputs,
    config: DecisionConfig,
    incidents: Sequence[Incident],
    alerts: Sequence[Alert],
    topology: Topology,
    values: RecentValues,
    own: set[str],
) -> tuple[policy.FleetFacts, policy.Decisions]:
    """The decisions of the policy about the incidents ``own``; those about anything else are left to the cycle."""
    stored = inputs.stored
    facts = fleet_state.fleet_facts(
        incidents, alerts, inputs.plan, topology, values, sessions=stored.sessions, paused=stored.paused
    )
    decided = policy.decide(
        config.policy,
        incidents,
        alerts,
        inputs.plan,
        stored.actions,
        stored.sessions,
        topology,
        facts,
        inputs.now,
        config.playbooks,
    )
    actions = tuple(action for action in decided.actions if action.because in own)
    sessions = {action.session for action in actions}
    kept = tuple(session for session in decided.sessions if session.id in sessions)
    return facts, policy.Decisions(actions, kept)


def _changed(before: Sequence[Incident], after: Sequence[Incident]) -> tuple[Incident, ...]:
    known = {incident.id: incident for incident in before}
    return tuple(incident for incident in after if incident != known.get(incident.id))


def _commit(
    inputs: EarlyInputs,
    alerts: Sequence[Alert],
    touched: set[str],
    incidents: tuple[Incident, ...],
    decisions: policy.Decisions,
) -> CycleCommit:
    record = CycleRecord(inputs.id, inputs.now, 0.0, 0, 0, 0, 0, 0, 0)
    incident_of = {alert.fingerprint: alert.incident for alert in inputs.stored.alerts}
    stored = tuple(
        alert
        for alert in alerts
        if alert.fingerprint in touched or alert.incident != incident_of.get(alert.fingerprint)
    )
    decided = audit_trail.CycleDecisions(
        alerts_before=inputs.stored.alerts,
        alerts=[alert for alert in stored if alert.fingerprint in touched],
        incidents_before=inputs.stored.incidents,
        incidents=incidents,
        plan=None,
        decisions=decisions,
        notify_reasons={},
    )
    audit, _ = audit_trail.of_cycle(record, decided, inputs.standing)
    return CycleCommit(
        cycle=record,
        alerts=stored,
        incidents=incidents,
        actions=decisions.actions,
        sessions=decisions.sessions,
        audit=audit,
        early=True,
    )
