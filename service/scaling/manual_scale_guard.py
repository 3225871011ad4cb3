"""Guard rails for manually sent replica counts: those of the live loop, evaluated on the stored state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from outrider.audit import AuditEvent
from outrider.model import ActionKind, AlertState, EntityKind, HoldReason, Plan, Recommendation, Verdict
from outrider.ports import StateStore
from remediation.decide.context import diverted_replicas, unobserved
from remediation.decide.guards import CapacityBudget, Proposal, judge
from remediation.decide.history import History
from remediation.decide.limits import FleetFacts, Policy
from service.engine import fleet_state
from service.planning import role_pools

EMITTED = "emit:"
_SPAN = timedelta(hours=6)
_MOST_RECORDS = 1000


def refusal(policy: Policy, state: StateStore, recommendation: Recommendation, now: datetime) -> str | None:
    """Returns the reason of a refusal, None if allowed. The operator who sends it counts as the approval."""
    last = _last_sent(state, recommendation, now)
    shrinks = recommendation.target_replicas < recommendation.current_replicas
    pause = policy.scale_in_cooldown if shrinks else policy.cooldown
    if last is not None and now - last < pause:
        return "cooldown"
    alerts, topology = fleet_state.active_alerts(state), role_pools.with_pools(state.topology())
    firing = {
        alert.entity for alert in alerts if alert.state is AlertState.FIRING and alert.fault in fleet_state.NOT_SERVING
    }
    members = topology.below(recommendation.service, EntityKind.REPLICA)
    incidents = fleet_state.open_incidents(state)
    named = {name for incident in incidents if incident.resolved_at is None for name in incident.services}
    if shrinks and named & {recommendation.service.name, str(recommendation.service), recommendation.service.key}:
        return HoldReason.SERVICE_IN_TROUBLE.value
    fleet = FleetFacts(
        paused=state.paused(),
        blind=bool(fleet_state.blind_clusters(incidents)),
        untrusted=unobserved(alerts),
        ready_replicas={recommendation.service: len(set(members) - firing)},
        needed_replicas=fleet_state.needed(Plan((), (recommendation,))),
    )
    history = History(fleet_state.weighed_actions(state, (), now - _SPAN))
    proposal = Proposal(
        session="emit",
        because="plan",
        kind=ActionKind.SCALE,
        target=recommendation.service,
        params={"replicas": recommendation.target_replicas, "current": recommendation.current_replicas},
        scale_in=shrinks,
        touches=members if shrinks else (),
    )
    verdict, reason = judge(
        proposal,
        policy,
        fleet,
        history,
        CapacityBudget(fleet, history, now, diverted_replicas(history, topology, fleet)),
        now,
    )
    return reason.value if verdict is Verdict.REFUSED else None


def _last_sent(state: StateStore, recommendation: Recommendation, now: datetime) -> datetime | None:
    """Returns the last time that a replica count of this service was sent manually, without dry run."""

    def sent() -> Iterator[datetime]:
        for record in state.audit(limit=_MOST_RECORDS):
            if record.event is AuditEvent.ACTION_PERFORMED and record.at >= now - _SPAN:
                detail = record.detail or {}
                is_same = str(detail.get("action", "")).startswith(f"{EMITTED}{recommendation.service.key}:")
                if is_same and detail.get("dry_run") == "False" and record.at <= now:
                    yield record.at

    return max(sent(), default=None)
