"""The decisions of one cycle: detect, alert, correlate, choose actions, choose messages.

Pure: no store, no clock, no random number. The same inputs give the same outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from alerts.routing import failed_steps, pipeline, shift_summary
from alerts.state import flapping, received
from alerts.state import machine as alert_state
from detectors.rca import correlate
from detectors.rca.fault_catalogue import Knowledge
from outrider.model import Alert, AlertState, CycleRecord, Finding, Incident, Message
from outrider.ports import CycleCommit
from outrider.records.heartbeats import Watchdog
from outrider.topology import Topology
from outrider.vocabulary.rules import Rule
from remediation.decide import degrade, policy
from remediation.playbooks.model import Playbook
from remediation.procedures.bundle import NONE, Procedures
from service.engine import audit_trail, drill_marking, fleet_state, rule_checks, watchdogs
from service.engine.audit_trail import StandingReasons
from service.engine.detect import DetectionMemory, DetectionResult, DetectorSet
from service.engine.inputs import CycleInputs
from service.engine.tenant_edges import with_tenants
from service.planning import role_pools


@dataclass(frozen=True, slots=True)
class DecisionConfig:
    """Configuration of the decisions; it stays the same from cycle to cycle."""

    detectors: DetectorSet
    rules: Sequence[Rule]
    knowledge: Knowledge
    policy: policy.Policy
    messaging: pipeline.NotificationSettings
    playbooks: Mapping[str, Playbook] = field(default_factory=dict)
    procedures: Procedures = NONE
    flaps_per_hour: int = flapping.MOST_PER_HOUR
    watchdogs: Sequence[Watchdog] = ()
    cluster: str = "default"


@dataclass(frozen=True, slots=True)
class CycleOutcome:
    """Everything that one cycle decided: what to commit, and the memory and findings for the next decision.

    ``flaps`` are the times at which alerts fired.
    """

    commit: CycleCommit
    facts: policy.FleetFacts
    standing: StandingReasons
    memory: DetectionMemory = field(compare=False)
    findings: tuple[Finding, ...] = ()
    flaps: flapping.FlapMemory = field(default_factory=dict)


def decide(inputs: CycleInputs, config: DecisionConfig) -> CycleOutcome:
    """Returns the decisions of one cycle. The duration of the cycle record is zero."""
    detected, memory = config.detectors.detect(inputs.memory, inputs.detection)
    before = inputs.stored.incidents
    topology = role_pools.with_pools(inputs.collected.topology)
    alerts, flaps = flapping.damp(
        inputs.stored.alerts,
        _advance(inputs, config, detected, topology),
        inputs.flaps,
        config.flaps_per_hour,
        inputs.now,
    )
    after = correlate_alerts(inputs, config, detected.findings, alerts)
    alerts = alert_state.mute(with_incidents(alerts, after), after, inputs.stored.silences, topology)
    check_facts = rule_checks.CheckFacts(inputs.detection.values, inputs.latest_plan, topology)
    after = rule_checks.with_checks(after, alerts, check_facts, inputs.now)
    facts, decisions = decide_actions(inputs, config, after, alerts, topology)
    planned = pipeline.messages(
        before,
        after,
        alerts,
        decisions.actions,
        config.messaging,
        inputs.now,
        decisions.progress,
        breaker=decisions.breaker,
        responders=inputs.stored.responders,
    )
    failed = failed_steps.messages(
        inputs.standing.pages(decisions.steps, inputs.now),
        planned.reasons,
        config.messaging,
        inputs.now,
        planned.incidents,
        inputs.stored.responders,
    )
    messages = drill_marking.mark((*planned.messages, *failed), planned.incidents, alerts, inputs.stored.drills)
    record = _record(inputs, detected, alerts, planned.incidents)
    decided = audit_trail.CycleDecisions(
        alerts_before=inputs.stored.alerts,
        alerts=alerts,
        incidents_before=before,
        incidents=planned.incidents,
        plan=inputs.plan,
        decisions=decisions,
        notify_reasons=planned.reasons,
    )
    audit, standing = audit_trail.of_cycle(record, decided, inputs.standing)
    commit = CycleCommit(
        cycle=record,
        alerts=tuple(alerts),
        incidents=planned.incidents,
        plan=inputs.plan,
        actions=decisions.actions,
        sessions=decisions.sessions,
        messages=(*messages, *_summaries(inputs, config)),
        audit=audit,
        topology=inputs.uncommitted_topology,
        detector_statuses=detected.detector_statuses,
        breaker=decisions.breaker,
    )
    return CycleOutcome(commit, facts, standing, memory, detected.findings, flaps)


def _summaries(inputs: CycleInputs, config: DecisionConfig) -> tuple[Message, ...]:
    """The summaries of the nights that ended since the previous cycle."""
    stored = inputs.stored
    nights = shift_summary.due_nights(stored.roster, stored.previous_at, inputs.now)
    return shift_summary.messages(nights, stored.night, stored.responders, config.messaging, inputs.now)


def _advance(
    inputs: CycleInputs, config: DecisionConfig, detected: DetectionResult, topology: Topology
) -> tuple[Alert, ...]:
    context = fleet_state.service_context(inputs.stored.alerts, inputs.latest_plan, topology, inputs.detection.values)
    deleted = fleet_state.deleted(topology)
    own = [alert for alert in inputs.stored.alerts if not alert.is_received]
    silent = watchdogs.findings(
        config.watchdogs,
        inputs.stored.heartbeats,
        inputs.running_since or inputs.now,
        config.cluster,
        inputs.now,
        {alert.entity for alert in own},
    )
    observed = (*detected.alertable, *silent)
    others = [alert for alert in inputs.stored.alerts if alert.is_received]
    return (
        *alert_state.advance(own, observed, inputs.plan, config.rules, context, inputs.now, deleted),
        *received.advance(others, inputs.stored.received, inputs.subject_of, context, inputs.now),
    )


def correlate_alerts(
    inputs: CycleInputs, config: DecisionConfig, findings: Sequence[Finding], alerts: Sequence[Alert]
) -> tuple[Incident, ...]:
    """Returns the open incidents, and those that resolved in this cycle."""
    before = inputs.stored.incidents
    changed = correlate.correlate(
        before,
        alerts,
        findings,
        inputs.stored.events,
        with_tenants(inputs.recent_topology, alerts),
        config.knowledge,
        inputs.now,
        config.detectors.interval,
        unfinished=degrade.unfinished(inputs.stored.actions, before),
    )
    return tuple({incident.id: incident for incident in (*before, *changed)}.values())


def decide_actions(
    inputs: CycleInputs,
    config: DecisionConfig,
    incidents: Sequence[Incident],
    alerts: Sequence[Alert],
    topology: Topology,
) -> tuple[policy.FleetFacts, policy.Decisions]:
    """Returns the facts of the fleet, and the actions on the incidents."""
    stored = inputs.stored
    facts = fleet_state.fleet_facts(
        incidents,
        alerts,
        inputs.latest_plan,
        topology,
        inputs.detection.values,
        sessions=stored.sessions,
        paused=stored.paused,
        events=stored.events,
        killed=stored.killed,
        breaker=stored.breaker,
    )
    decisions = policy.decide(
        config.policy,
        incidents,
        alerts,
        inputs.latest_plan,
        stored.actions,
        stored.sessions,
        topology,
        facts,
        inputs.now,
        config.playbooks,
        config.procedures,
    )
    return replace(facts, breaker=decisions.breaker or facts.breaker), decisions


def _record(
    inputs: CycleInputs, detected: DetectionResult, alerts: Sequence[Alert], incidents: Sequence[Incident]
) -> CycleRecord:
    targets, targets_up = fleet_state.targets(inputs.collected)
    return CycleRecord(
        id=inputs.cycle_id,
        at=inputs.now,
        duration_seconds=0.0,
        targets=targets,
        targets_up=targets_up,
        signals_written=inputs.signals_written,
        findings=len(detected.findings),
        alerts_firing=sum(alert.state is AlertState.FIRING for alert in alerts),
        incidents_open=sum(incident.resolved_at is None for incident in incidents),
    )


def with_incidents(alerts: Sequence[Alert], incidents: Sequence[Incident]) -> tuple[Alert, ...]:
    """Returns the alerts, each with the id of the incident that it belongs to."""
    incident_of = {fingerprint: incident.id for incident in incidents for fingerprint in incident.alerts}
    return tuple(replace(alert, incident=incident_of.get(alert.fingerprint, alert.incident)) for alert in alerts)
