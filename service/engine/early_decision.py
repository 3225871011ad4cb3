"""The decisions about hard faults between two cycles. Pure, like those of a cycle.

Only the detectors of hard faults run, only on the components that arrived, and their state is dropped. The next cycle
judges the same values and advances every state once. Alerts without a new finding stay as the last cycle left them.
Messages wait for the cycle, which sends one for the same fault on several components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from alerts.state import machine as alert_state
from detectors.hardware.hard_fault_signs import HardFaultSign
from outrider.model import Alert, CycleRecord, EntityRef, Finding, Incident
from outrider.ports import Collected, CycleCommit
from outrider.topology import Topology
from remediation.decide import policy
from service.engine import audit_trail, fleet_state
from service.engine.decide import DecisionConfig, correlate_alerts, decide_actions, with_incidents
from service.engine.inputs import CycleInputs
from service.engine.preview_window import PreviewWindow
from service.planning import role_pools

DETECTORS = frozenset({"gpu-faults", "liveness"})
LEAST_SCORE = 0.9  # an unknown code, or a suspicion, waits for the cycle


@dataclass(frozen=True, slots=True)
class EarlyInputs:
    """Input of ``decide_early``.

    ``cycle`` is the input of a cycle at this time, with the values and the topology of the last one. ``collected`` are
    the single scrapes and readings since. ``findings`` are those of the last cycle and of early decisions since.
    """

    cycle: CycleInputs
    signs: frozenset[HardFaultSign]
    collected: Sequence[Collected]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class EarlyOutcome:
    """The commit of an early decision, the facts behind it, and the findings to remember until the next cycle."""

    commit: CycleCommit
    facts: policy.FleetFacts
    findings: tuple[Finding, ...]


def decide_early(given: EarlyInputs, config: DecisionConfig) -> EarlyOutcome | None:
    """Returns the early decisions; None if the detectors of hard faults do not confirm any sign."""
    found = _findings(given, config)
    if not found:
        return None
    inputs = _with_collected(given)
    topology = role_pools.with_pools(inputs.collected.topology)
    raised = _alerts(inputs, config, found, topology)
    alerts = tuple({alert.fingerprint: alert for alert in (*inputs.stored.alerts, *raised)}.values())
    findings = tuple({item.fingerprint: item for item in (*given.findings, *found)}.values())
    after = correlate_alerts(inputs, config, findings, alerts)
    alerts = alert_state.mute(with_incidents(alerts, after), after, inputs.stored.silences, topology)
    touched = {alert.fingerprint for alert in raised}
    own = {incident.id for incident in after if touched & set(incident.alerts) and _is_caused_by(incident, found)}
    facts, decisions = decide_actions(inputs, config, after, alerts, topology)
    changed = _changed(inputs.stored.incidents, after, touched)
    commit = _commit(inputs, alerts, touched, changed, _only(decisions, own))
    return EarlyOutcome(commit, facts, found)


def _findings(given: EarlyInputs, config: DecisionConfig) -> tuple[Finding, ...]:
    """The findings that confirm a sign. The new states of the detectors are dropped."""
    arrived = {
        entity for collected in given.collected for batch in collected.batches for entity in batch.entities
    } | {sign.entity for sign in given.signs}  # fmt: skip
    detection = replace(given.cycle.detection, values=_preview(given, frozenset(arrived)))
    result, _ = config.detectors.only(DETECTORS).detect(given.cycle.memory, detection)
    confirmed = {(sign.entity, sign.fault) for sign in given.signs}
    return tuple(
        item for item in result.findings if (item.entity, item.fault) in confirmed and item.score >= LEAST_SCORE
    )


def _preview(given: EarlyInputs, only: frozenset[EntityRef] | None = None) -> PreviewWindow:
    batches = [batch for collected in given.collected for batch in collected.batches]
    events = [event for collected in given.collected for event in collected.events]
    return PreviewWindow(given.cycle.detection.values, given.cycle.now, batches, events, only)


def _with_collected(given: EarlyInputs) -> CycleInputs:
    """The input of the cycle with the values and events that arrived since."""
    inputs = given.cycle
    fresh = [event for collected in given.collected for event in collected.events]
    events = tuple({event.id: event for event in (*inputs.stored.events, *fresh)}.values())
    detection = replace(inputs.detection, values=_preview(given))
    return replace(inputs, detection=detection, stored=replace(inputs.stored, events=events))


def _alerts(
    inputs: CycleInputs, config: DecisionConfig, found: Sequence[Finding], topology: Topology
) -> tuple[Alert, ...]:
    """The alerts of these findings; every other alert is left alone."""
    stored = inputs.stored.alerts
    context = fleet_state.service_context(stored, inputs.latest_plan, topology, inputs.detection.values)
    new = alert_state.advance((), found, None, config.rules, context, inputs.now)
    touched = {alert.fingerprint for alert in new}
    active = [alert for alert in stored if alert.fingerprint in touched]
    return alert_state.advance(active, found, None, config.rules, context, inputs.now)


def _is_caused_by(incident: Incident, found: Sequence[Finding]) -> bool:
    """True if the suspected cause is one of the hard faults; with another cause, the cycle decides."""
    cause = incident.suspected_cause
    return cause is not None and any((item.entity, item.fault) == (cause.entity, cause.fault) for item in found)


def _only(decisions: policy.Decisions, own: set[str]) -> policy.Decisions:
    """The decisions about the incidents ``own``; those about anything else are left to the cycle."""
    actions = tuple(action for action in decisions.actions if action.because in own)
    sessions = {action.session for action in actions}
    kept = tuple(session for session in decisions.sessions if session.id in sessions)
    return policy.Decisions(actions, kept)


def _changed(before: Sequence[Incident], after: Sequence[Incident], touched: set[str]) -> tuple[Incident, ...]:
    """The changed open incidents with one of these alerts. The cycle resolves incidents, because it sends messages."""
    known = {incident.id: incident for incident in before}
    own = (incident for incident in after if touched & set(incident.alerts) and incident.resolved_at is None)
    return tuple(incident for incident in own if incident != known.get(incident.id))


def _commit(
    inputs: CycleInputs,
    alerts: Sequence[Alert],
    touched: set[str],
    incidents: tuple[Incident, ...],
    decisions: policy.Decisions,
) -> CycleCommit:
    record = CycleRecord(inputs.cycle_id, inputs.now, 0.0, 0, 0, 0, 0, 0, 0)
    own = tuple(alert for alert in alerts if alert.fingerprint in touched)
    decided = audit_trail.CycleDecisions(
        alerts_before=inputs.stored.alerts,
        alerts=own,
        incidents_before=inputs.stored.incidents,
        incidents=incidents,
        plan=None,
        decisions=decisions,
        notify_reasons={},
    )
    audit, _ = audit_trail.of_cycle(record, decided, inputs.standing)
    return CycleCommit(
        cycle=record,
        alerts=own,
        incidents=incidents,
        actions=decisions.actions,
        sessions=decisions.sessions,
        audit=audit,
        early=True,
    )
