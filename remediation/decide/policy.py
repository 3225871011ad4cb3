"""The decisions of each cycle: actions with target, verdict of the guards and reason.

Pure. Every action has an id made of session, kind, target and ordinal, so that a repeated decision has no second
effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from outrider.model import Action, Alert, EntityRef, GuardAnswer, Incident, Plan, RemediationSession, StepStatus
from outrider.topology import Topology
from remediation.decide import (
    approval,
    breaker,
    cluster_loss,
    degrade,
    degrade_preview,
    recovery,
    rule_actions,
    scaling,
)
from remediation.decide.context import (
    DecisionContext,
    blind_clusters,
    cause_of,
    diverted_replicas,
    faulty,
    reported_only,
    suspects,
    unobserved,
)
from remediation.decide.degrade_preview import PreviewedLevel
from remediation.decide.guards import CapacityBudget, Proposal, judgement_of
from remediation.decide.history import History, is_expired
from remediation.decide.holds import holds
from remediation.decide.limits import Decisions, FleetFacts, Policy, StepResults
from remediation.decide.record import within_autonomy
from remediation.decide.sessions import acting, finished, open_session, refreshed
from remediation.decide.steps import PlaybookRun, PreviewedStep
from remediation.playbooks.model import Playbook
from remediation.procedures.bundle import NONE, Procedures

__all__ = ["Decisions", "FleetFacts", "Policy", "decide", "preview", "preview_levels"]


def decide(
    policy: Policy,
    incidents: Sequence[Incident],
    alerts: Sequence[Alert],
    plan: Plan | None,
    actions_recent: Sequence[Action],
    sessions: Sequence[RemediationSession],
    topology: Topology,
    facts: FleetFacts,
    now: datetime,
    playbooks: Mapping[str, Playbook],
    procedures: Procedures = NONE,
) -> Decisions:
    """Returns the decisions of one cycle.

    ``incidents`` are the open ones and those that resolved in this cycle, ``alerts`` the active ones.
    ``actions_recent`` must hold every action of the last day and of every open session. ``playbooks`` are by fault id.
    Requests that nobody answered expire first. Then comes recovery, then incidents by priority and age, then the plan,
    so that freed capacity can be used.
    """
    expired = {
        action.id: approval.expired(action, now)
        for action in actions_recent
        if is_expired(action, now, policy.approval_expires)
    }
    history = History(expired.get(action.id, action) for action in actions_recent)
    tripped = breaker.opened(
        facts.breaker, policy.breaker, history, sessions, incidents, suspects(tuple(alerts)), topology, now
    )
    facts = replace(
        facts,
        breaker=tripped or facts.breaker,
        incidents={item.id: item for item in incidents},
        reported_only=reported_only(incidents, alerts),
    )
    open_sessions = refreshed(sessions, history)
    by_id = {incident.id: incident for incident in incidents}
    context = _context(policy, alerts, plan, topology, facts, history, playbooks, now, procedures)
    active = [session for session in open_sessions if not context.recovered(by_id.get(session.incident))]
    context = replace(
        context,
        kept_cordoned=frozenset(node for session in active for node in session.cordoned),
        kept_diverted=_diverted_by(history, active),
    )
    actions: list[Action] = list(expired.values())
    steps: list[StepStatus] = []
    after: dict[str, RemediationSession] = {}
    for session in open_sessions:
        undone, changed = _follow_up(context, session, by_id.get(session.incident))
        actions += undone.actions
        steps += undone.steps
        after[session.id] = changed
    for incident in sorted(incidents, key=lambda incident: (incident.priority.rank, incident.opened_at, incident.id)):
        done, opened = _act(context, incident, alerts, tuple(after.values()))
        actions += done.actions
        steps += done.steps
        if opened is not None:
            after[opened.id] = opened
    for procedure in (cluster_loss.decisions, degrade.decisions):
        new_actions, new_sessions = procedure(context, incidents, tuple(after.values()))
        actions += new_actions
        after |= {session.id: session for session in new_sessions}
    steps += degrade.unmeasured(context)
    troubled = _troubled(context, incidents)
    actions += scaling.from_plan(context, troubled)
    known = {session.id: session for session in sessions}
    changed_sessions = tuple(session for session in after.values() if session != known.get(session.id))
    held, progress = holds(context, incidents, actions, steps, troubled), cluster_loss.progress(context, incidents)
    return Decisions(tuple(actions), changed_sessions, held, tuple(steps), tripped, progress)


def preview(
    policy: Policy,
    incident: Incident,
    alerts: Sequence[Alert],
    plan: Plan | None,
    actions_recent: Sequence[Action],
    topology: Topology,
    facts: FleetFacts,
    now: datetime,
    playbooks: Mapping[str, Playbook],
    procedures: Procedures = NONE,
) -> tuple[tuple[Action, PreviewedStep], ...]:
    """Returns the actions of an incident's playbook with their steps and guards. Nothing is decided or recorded.

    Empty if the playbook has no step for the cause. The incident has a cause, and its fault a playbook.
    """
    facts = replace(
        facts,
        incidents={**facts.incidents, incident.id: incident},
        reported_only=reported_only([incident], alerts),
    )
    context = _context(policy, alerts, plan, topology, facts, History(actions_recent), playbooks, now, procedures)
    if cluster_loss.handles(context, incident.hypotheses[0].fault):
        steps = cluster_loss.preview(context, incident)
    else:
        steps = PlaybookRun(context, incident, incident.hypotheses[0], open_session(incident, now)).preview()
    return tuple((_proposed(context, row.proposal, row.answers), row) for row in steps)


def preview_levels(
    policy: Policy,
    incident: Incident,
    alerts: Sequence[Alert],
    plan: Plan | None,
    actions_recent: Sequence[Action],
    topology: Topology,
    facts: FleetFacts,
    now: datetime,
    procedures: Procedures = NONE,
) -> tuple[tuple[Action | None, PreviewedLevel], ...]:
    """Returns the degrade ladders that an incident's load reaches, each with its next change.

    None at the deepest level. Nothing is decided or recorded.
    """
    facts = replace(facts, incidents={**facts.incidents, incident.id: incident})
    context = _context(policy, alerts, plan, topology, facts, History(actions_recent), {}, now, procedures)
    return tuple(
        (None if row.proposal is None else _proposed(context, row.proposal, row.answers), row)
        for row in degrade_preview.preview(context, incident)
    )


def _proposed(context: DecisionContext, proposal: Proposal, given: Iterable[GuardAnswer]) -> Action:
    """The action that a proposal would become."""
    judgement = within_autonomy(context, proposal, judgement_of(given))
    return approval.proposed(proposal, judgement, dry_run=context.policy.dry_run, now=context.now)


def _context(
    policy: Policy,
    alerts: Sequence[Alert],
    plan: Plan | None,
    topology: Topology,
    facts: FleetFacts,
    history: History,
    playbooks: Mapping[str, Playbook],
    now: datetime,
    procedures: Procedures,
) -> DecisionContext:
    current = tuple(alerts)
    untrusted = facts.untrusted | unobserved(current)
    unseen = facts.blind_clusters | blind_clusters(current)
    facts = replace(
        facts, blind=facts.blind or bool(unseen), blind_clusters=unseen, untrusted=untrusted, topology=topology
    )
    return DecisionContext(
        policy=policy,
        facts=facts,
        topology=topology,
        history=history,
        budget=CapacityBudget(facts, history, now, diverted_replicas(history, topology, facts)),
        plan=plan or Plan(),
        playbooks=playbooks,
        suspect=suspects(current),
        faulty=faulty(current),
        now=now,
        procedures=procedures,
    )


def _diverted_by(history: History, active: Sequence[RemediationSession]) -> dict[EntityRef, frozenset[str]]:
    """Diverted replicas with the active sessions that keep them out of rotation."""
    result: dict[EntityRef, frozenset[str]] = {}
    for session in active:
        for replica in history.shifted(session.id):
            result[replica] = result.get(replica, frozenset()) | {session.id}
    return result


def _follow_up(
    context: DecisionContext, session: RemediationSession, incident: Incident | None
) -> tuple[StepResults, RemediationSession]:
    """Undoes the actions of a recovered session, and closes it when nothing is left."""
    if incident is not None and not context.recovered(incident):
        if recovery.recovering(context, session):
            return recovery.undo_all(context, session, incident), session
        return recovery.undo_early(context, session, incident), session
    results = recovery.undo_all(context, session, incident)
    if not results.actions and finished(session, context.history):
        return results, replace(session, closed_at=context.now)
    return results, session


def _act(
    context: DecisionContext, incident: Incident, alerts: Sequence[Alert], known: Sequence[RemediationSession]
) -> tuple[StepResults, RemediationSession | None]:
    """The next steps for an incident; the session is returned if it is new.

    The playbook of the cause takes precedence over the default actions of the rules that fired.
    """
    cause = cause_of(incident)
    if context.recovered(incident) or (cause is not None and cluster_loss.handles(context, cause.fault)):
        return StepResults(), None
    session = acting(known, incident, context.history)
    new = session is None
    session = session or open_session(incident, context.now)
    if cause is not None and rule_actions.has_steps(context, incident):
        run = PlaybookRun(context, incident, cause, session)
        done = StepResults(run.actions(), run.states)
    else:
        done = StepResults(rule_actions.default_actions(context, incident, alerts, session))
    return done, session if new and done.actions else None


def _troubled(context: DecisionContext, incidents: Sequence[Incident]) -> frozenset[EntityRef]:
    """Services with an open incident, which are not scaled in meanwhile."""
    services = {
        service
        for incident in incidents
        if (cause := cause_of(incident)) is not None
        for service in context.targets(cause.entity, "services")
    }
    named = {name for incident in incidents if incident.resolved_at is None for name in incident.services}
    planned = {entry.service for entry in context.plan.recommendations}
    named |= {service.name for service in services}
    # a pool of a service (prefill, decode) is affected with it
    parents = {service: context.topology.label(service, "pool_of") for service in planned}
    return frozenset(
        services
        | {item for item in planned if named & {item.name, str(item), item.key, *filter(None, [parents[item]])}}
    )
