"""A lost cluster: its services move to the standby, and return step by step. Pure.

The state of each service is its newest performed switch, so that a restart continues where it was:

- nothing switched: the loss is confirmed, then the standby's headroom is checked and the service is switched;
- switched: the standby is verified, and takes more once it has grown. The home cluster is observed until it is healthy
  for long enough;
- a share has returned: it is verified, then the next share follows, or all of it goes back to the standby.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import floor

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    IncidentProgress,
    ProgressLine,
    RemediationSession,
    Verdict,
)
from remediation.decide import approval, comparisons, degrade, sessions
from remediation.decide.context import DecisionContext, cause_of
from remediation.decide.guards import GuardAnswer, Proposal, answers, judgement_of
from remediation.decide.history import IN_FLIGHT, WAITING, rejected
from remediation.decide.record import record
from remediation.decide.service_entry import lost, of_cluster
from remediation.decide.steps import PreviewedStep
from remediation.playbooks.model import Step
from remediation.procedures.cluster_switch import ClusterSwitch
from remediation.procedures.degrade_ladder import Level

_PLANNED_AFTER = timedelta(minutes=15)  # an earlier plan may lack traffic that has moved
_LEAST_GROWTH = 0.049  # of the share of a standby: one step of its shares
_SIMILAR = 0.2  # shares that differ by less are one request


@dataclass(frozen=True, slots=True)
class Headroom:
    """Replicas that the standby can give a service, against those that it needs. None: unknown.

    ``own`` are those for the standby's own load.
    """

    free: int | None
    needed: int | None
    own: int = 0

    @property
    def known(self) -> bool:
        """True if both numbers are known."""
        return self.free is not None and self.needed is not None


@dataclass(frozen=True, slots=True)
class _Case:
    """One lost cluster with its incident, cause and session. ``new``: the session is not stored yet."""

    incident: Incident
    cause: Hypothesis
    session: RemediationSession
    new: bool
    home: str
    switch: ClusterSwitch


def decisions(
    context: DecisionContext, incidents: Sequence[Incident], known: Sequence[RemediationSession]
) -> tuple[list[Action], list[RemediationSession]]:
    """The switches of this round, and the sessions that they open."""
    switch = context.procedures.switch
    if switch is None:
        return [], []
    actions: list[Action] = []
    opened: list[RemediationSession] = []
    cases = list(_cases(context, switch, incidents, known))
    for case in cases:
        own = _switch_away(context, case)
        actions += own
        if own and case.new:
            opened.append(case.session)
    homes = {case.home for case in cases}
    for service in sorted(context.history.switched(), key=lambda service: service.key):
        if service.cluster not in homes:
            actions += _fail_back(context, switch, service)
    return actions, opened


def preview(context: DecisionContext, incident: Incident) -> list[PreviewedStep]:
    """The switch of every service of a cluster with the answers of all guards, whatever was done before."""
    switch, cause = context.procedures.switch, incident.hypotheses[0]
    if switch is None:
        return []
    session = sessions.open_session(incident, context.now)
    case = _Case(incident, cause, session, True, cause.entity.cluster, switch)
    planned = [_proposal(context, case, service) for service in services_of(context, case.home)]
    step = Step(kind=ActionKind.SWITCH_CLUSTER, target="services")
    return [
        PreviewedStep(proposal, comparisons.explained(context, proposal, _answers(context, proposal)), step, None)
        for proposal in planned
        if proposal is not None
    ]


def away(
    context: DecisionContext, incident: Incident, cause: Hypothesis, session: RemediationSession, service: EntityRef
) -> Proposal | None:
    """The switch of one service whose cluster is not lost, under every guard. None without a standby, or if it is away.

    It returns as after a loss.
    """
    switch = context.procedures.switch
    if switch is None or service in context.history.switched() or _busy(context, service):
        return None
    planned = _proposal(context, _Case(incident, cause, session, False, service.cluster, switch), service)
    if planned is None:
        return None
    params = {key: value for key, value in planned.params.items() if key != "lost_cluster"}
    return replace(planned, params=params, lost_cluster="")


def handles(context: DecisionContext, fault: str) -> bool:
    """True if this procedure repairs the fault."""
    switch = context.procedures.switch
    return switch is not None and fault in switch.faults


def services_of(context: DecisionContext, cluster: str) -> list[EntityRef]:
    """The services of a cluster: those of the topology, and probed ones."""
    known = {service for service in context.topology.of_kind(EntityKind.SERVICE) if service.cluster == cluster}
    return sorted(known | set(of_cluster(context.facts.entries, cluster)), key=lambda service: service.key)


def standby_of(context: DecisionContext, switch: ClusterSwitch, service: EntityRef) -> EntityRef | None:
    """The same service in the standby cluster: the configured one, else the only other cluster that has it."""
    named = switch.standby.get(service.cluster)
    twins = [
        other
        for other in context.topology.of_kind(EntityKind.SERVICE)
        if (other.namespace, other.name) == (service.namespace, service.name)
        and other.cluster != service.cluster
        and named in (None, other.cluster)
    ]
    return twins[0] if len(twins) == 1 else None


def headroom(context: DecisionContext, service: EntityRef, twin: EntityRef) -> Headroom:
    """Headroom of the standby, without the traffic of the service that it has taken already.

    Without a plan each known replica of the home cluster counts as needed.
    """
    facts, current = context.facts, _newest(context, service)
    share = 0.0 if current is None else _share(current, twin.cluster)
    known = facts.needed_replicas.get(service) or len(context.topology.below(service, EntityKind.REPLICA)) or None
    # a lost cluster has no load any more: what it needed before the switch counts
    needed = known if current is None or not share else current.params.get("needed") or known
    ready = context.budget.ready(facts, twin)
    entry = facts.entries.get(twin)
    serves = entry is None or entry.load is None or entry.load > 1.0  # probes alone need no replica of their own
    taken = floor(share * (needed or 0) * _load_ratio(context, twin, degrade.standing(context.history, twin).level))
    before = current.params.get("standby_needs", 0) if current is not None and share else 0
    if current is not None and _is_planned_since(context, twin, current):
        before = 0
    own = max(before, facts.needed_replicas.get(twin, 0) - taken) if serves else 0
    return Headroom(None if ready is None else max(0, ready - own), needed, own)


def _is_planned_since(context: DecisionContext, twin: EntityRef, switch: Action) -> bool:
    """True if the plan of the standby counts the traffic that has moved: its own load may have fallen since."""
    planned = context.recommendation(twin)
    return planned is not None and planned.made_at - (switch.ended_at or switch.decided_at) >= _PLANNED_AFTER


def progress(context: DecisionContext, incidents: Sequence[Incident]) -> dict[str, IncidentProgress]:
    """The state of each open incident about a lost cluster, for status messages."""
    switch = context.procedures.switch
    if switch is None:
        return {}
    result = {}
    for case in _cases(context, switch, incidents, ()):
        lines, states = [], []
        for service in services_of(context, case.home):
            state, line = _state(context, case, service)
            states.append(state)
            lines.append(line)
        if lines:
            result[case.incident.id] = IncidentProgress(
                switch.status_every, "+".join(sorted(set(states))), tuple(lines)
            )
    return result


# --- away from the lost cluster ---------------------------------------------------------------------


def _cases(
    context: DecisionContext,
    switch: ClusterSwitch,
    incidents: Sequence[Incident],
    known: Sequence[RemediationSession],
) -> Iterator[_Case]:
    for incident in sorted(incidents, key=lambda incident: (incident.opened_at, incident.id)):
        cause = cause_of(incident)
        if cause is None or cause.fault not in switch.faults:
            continue
        session = sessions.acting(known, incident, context.history)
        opened = session or sessions.open_session(incident, context.now)
        yield _Case(incident, cause, opened, session is None, cause.entity.cluster, switch)


def _switch_away(context: DecisionContext, case: _Case) -> list[Action]:
    """Degrades the standby if it is short, then switches each service. Nothing before the loss is confirmed."""
    if not lost(context.facts.entries, case.home, case.switch.confirm_for):
        return [
            action
            for service in services_of(context, case.home)
            for action in _withdrawn(context, case.session, service)
        ]
    actions: list[Action] = []
    for service in services_of(context, case.home):
        if not _may_switch(context, case, service):
            continue
        proposal = _proposal(context, case, service)
        if proposal is None:
            continue
        actions += _degraded(context, case, service)
        judgement = judgement_of(_answers(context, proposal))
        if judgement[0] is Verdict.ASK:
            proposal = _as_requested(context, proposal)
        actions += record(context, proposal, judgement)
    return actions


def _as_requested(context: DecisionContext, proposal: Proposal) -> Proposal:
    """The proposal as it was requested before, if its share is similar: the headroom changes with every replica."""
    request = degrade.unanswered(context.history, proposal)
    if request is None or request.params.get("cluster") != proposal.params["cluster"]:
        return proposal
    similar = abs(float(request.params["share"]) - float(proposal.params["share"])) < _SIMILAR
    return replace(proposal, params=request.params) if similar else proposal


def _withdrawn(context: DecisionContext, session: RemediationSession, service: EntityRef) -> list[Action]:
    """Cancels a switch that still waits for approval, because the cluster answers again."""
    newest = context.history.newest(session.id, ActionKind.SWITCH_CLUSTER, service)
    if newest is None or newest.status not in WAITING or newest.params.get("fail_back"):
        return []
    return [approval.withdrawn(newest, context.now, DecisionReason.CLUSTER_ANSWERS)]


def _may_switch(context: DecisionContext, case: _Case, service: EntityRef) -> bool:
    """False if the standby has what it carries, a person rejected the switch, or a dry run has shown it."""
    if _busy(context, service):
        return False
    twin, current = standby_of(context, case.switch, service), _newest(context, service)
    if twin is None:
        return False
    switched = current is not None and _share(current, twin.cluster) > 0.0 and not _returning(current)
    if current is not None and switched and not _may_grow(context, case.switch, service, twin, current):
        return False
    newest = context.history.newest(case.session.id, ActionKind.SWITCH_CLUSTER, service)
    if newest is None:
        return True
    if rejected(newest) or newest.status is ActionStatus.DRY_RUN:
        return False
    failed = newest.status is ActionStatus.FAILED
    return not failed or context.now - (newest.ended_at or newest.decided_at) >= case.switch.confirm_for


def _may_grow(
    context: DecisionContext, switch: ClusterSwitch, service: EntityRef, twin: EntityRef, current: Action
) -> bool:
    """True if a standby that got a part of the traffic serves it well, and carries more by now."""
    since, room = current.ended_at or current.decided_at, headroom(context, service, twin)
    if not room.known or context.now - since < switch.verify_for:
        return False
    if _verified(context, switch, twin, since) != "verified":
        return False
    return _carried(context, room, twin) - _share(current, twin.cluster) >= _LEAST_GROWTH


def _proposal(context: DecisionContext, case: _Case, service: EntityRef) -> Proposal | None:
    twin = standby_of(context, case.switch, service)
    if twin is None:
        return None
    room = headroom(context, service, twin)
    return Proposal(
        session=case.session.id,
        because=case.incident.id,
        kind=ActionKind.SWITCH_CLUSTER,
        target=service,
        params={
            **sessions.ownership(case.session.id),
            "cluster": twin.cluster,
            "share": _carried(context, room, twin),
            "lost_cluster": case.home,
            "headroom": room.free,
            "needed": room.needed,
            "standby_needs": room.own,
        },
        confidence=case.cause.confidence,
        ask=not room.known or room.free == 0,
        lost_cluster=case.home,
    )


def _carried(context: DecisionContext, room: Headroom, twin: EntityRef) -> float:
    """Share of the traffic that the standby carries, at the level that it is degraded to."""
    if room.free is None or room.needed is None or room.free >= room.needed:
        return 1.0
    level = _relief(context, room, twin)
    work = room.needed * (_load_ratio(context, twin, level.number) if level is not None else 1.0)
    return 1.0 if room.free >= work else max(0.05, floor(20.0 * room.free / work) / 20.0)


def _load_ratio(context: DecisionContext, twin: EntityRef, level: int) -> float:
    """The estimated share of the work that is left at a level of the standby's service."""
    ladder = context.procedures.ladders.of(twin.name)
    return 1.0 if ladder is None else ladder.load_ratio(level)


def _relief(context: DecisionContext, room: Headroom, twin: EntityRef) -> Level | None:
    """The first level at which the standby copes, else the deepest one; None if it needs none or has none."""
    ladder = context.procedures.ladders.of(twin.name)
    if ladder is None or room.free is None or room.needed is None or room.free >= room.needed:
        return None
    levels = [level for level in ladder.levels if not level.limits_prompts]
    enough = (level for level in levels if room.needed * level.load_ratio <= room.free)
    return next(enough, levels[-1] if levels else None)


def _degraded(context: DecisionContext, case: _Case, service: EntityRef) -> list[Action]:
    """The level of the standby's service, before the traffic arrives. It ends as any other level of the ladder."""
    twin = standby_of(context, case.switch, service)
    if twin is None:
        return []
    room = headroom(context, service, twin)
    level, current = _relief(context, room, twin), degrade.standing(context.history, twin)
    if level is None or current.level >= level.number:
        return []
    if degrade.was_restored_by_hand(context.history, twin, case.incident.id):
        return []
    entry = context.facts.entries.get(service)
    load = None if entry is None else entry.load
    capacity = {} if not load or not room.needed else {degrade.CAPACITY: round(load / room.needed, 3)}
    measured = {**current.measured, **capacity}
    return degrade.propose(context, case.incident, case.cause, case.session, twin, level, measured, case.home)


# --- back to the home cluster -----------------------------------------------------------------------


def _fail_back(context: DecisionContext, switch: ClusterSwitch, service: EntityRef) -> list[Action]:
    """The next share of the home cluster, or none of it again after a failed step."""
    newest = _newest(context, service)
    if newest is None or _busy(context, service):
        return []
    share = _share(newest, service.cluster)
    next_share = _next_share(context, switch, service, newest, share)
    if next_share is None or _stopped(context, newest.session, service, next_share):
        return []
    proposal = Proposal(
        session=newest.session,
        because=newest.because,
        kind=ActionKind.SWITCH_CLUSTER,
        target=service,
        params={
            **sessions.ownership(newest.session),
            "cluster": service.cluster,
            "share": next_share,
            "fail_back": True,
        },
        undoes=True,
    )
    return record(context, proposal, judgement_of(_answers(context, proposal)))


def _next_share(
    context: DecisionContext, switch: ClusterSwitch, service: EntityRef, newest: Action, share: float
) -> float | None:
    """The share to set now; None to leave it."""
    entry, since = context.facts.entries.get(service), newest.ended_at or newest.decided_at
    if entry is None:
        return None
    if _returning(newest) and share > 0.0:
        if entry.bad_since(since, switch.success_ratio):
            return 0.0
        if not entry.good_since(since, switch.success_ratio) or context.now - since < switch.step_for:
            return None
    else:
        pause = switch.retry_after if _returning(newest) else switch.healthy_for
        if context.now - since < pause or not _healthy(context, switch, service):
            return None
    later = next((step for step in switch.fail_back if step > share), None)
    return later if later is not None and _has_replicas(context, service, later) else None


def _healthy(context: DecisionContext, switch: ClusterSwitch, service: EntityRef) -> bool:
    """True if every probed entry of the home cluster has answered for long enough, and its values are back."""
    own = of_cluster(context.facts.entries, service.cluster)
    return bool(own) and all(entry.viewed and entry.fine_for() >= switch.healthy_for for entry in own.values())


def _has_replicas(context: DecisionContext, service: EntityRef, share: float) -> bool:
    """True if the home cluster has the ready replicas for a share of the load."""
    ready, needed = context.facts.ready_replicas.get(service), context.facts.needed_replicas.get(service)
    return ready is not None and ready >= max(1, 1 if needed is None else round(needed * share))


# --- shared -----------------------------------------------------------------------------------------


def _answers(context: DecisionContext, proposal: Proposal) -> tuple[GuardAnswer, ...]:
    return answers(proposal, context.policy, context.facts, context.history, context.budget, context.now)


def _newest(context: DecisionContext, service: EntityRef) -> Action | None:
    switches = context.history.switches(service)
    return switches[-1] if switches else None


def _returning(action: Action) -> bool:
    """True for a step of the return, which sets the home cluster's share."""
    return bool(action.params.get("fail_back"))


def _share(action: Action, cluster: str) -> float:
    """The share of a cluster after a switch between two clusters."""
    share = float(action.params.get("share", 1.0))
    return share if action.params.get("cluster") == cluster else 1.0 - share


def _busy(context: DecisionContext, service: EntityRef) -> bool:
    return any(action.target == service for action in context.history.in_flight((ActionKind.SWITCH_CLUSTER,)))


def _stopped(context: DecisionContext, session: str, service: EntityRef, share: float) -> bool:
    """True if a person rejected the step, or it failed a short time ago."""
    newest = context.history.newest(session, ActionKind.SWITCH_CLUSTER, service)
    if newest is None or newest.status in IN_FLIGHT:
        return newest is not None
    if rejected(newest) and newest.params.get("share") == share:
        return True
    recent = context.now - (newest.ended_at or newest.decided_at) < context.policy.cooldown
    return newest.status is ActionStatus.FAILED and recent


def _state(context: DecisionContext, case: _Case, service: EntityRef) -> tuple[str, ProgressLine]:
    """The state of one service, as a word and as a line of a message."""
    twin, newest = standby_of(context, case.switch, service), _newest(context, service)
    if twin is None:
        return "no_standby", ProgressLine("cluster.no_standby", {"service": service.name})
    room = headroom(context, service, twin)
    arguments = {
        "service": service.name,
        "cluster": twin.cluster,
        "free": "?" if room.free is None else str(room.free),
        "needed": "?" if room.needed is None else str(room.needed),
    }
    if newest is None or newest.because != case.incident.id:
        waits = any(
            action.status in WAITING
            for action in context.history.of_session(case.session.id)
            if action.target == service and action.kind is ActionKind.SWITCH_CLUSTER
        )
        confirmed = lost(context.facts.entries, case.home, case.switch.confirm_for)
        state = "waits" if waits else "switching" if confirmed else "confirming"
        return state, ProgressLine(f"cluster.{state}", arguments)
    arguments["share"] = f"{_share(newest, twin.cluster):.0%}"
    arguments["level"] = str(degrade.standing(context.history, twin).level)
    state = _verified(context, case.switch, twin, newest.ended_at or newest.decided_at)
    return state, ProgressLine(f"cluster.{state}", arguments)


def _verified(context: DecisionContext, switch: ClusterSwitch, twin: EntityRef, since: datetime) -> str:
    """``verifying`` until the standby's values since the switch are good; ``failing`` if they are not in time."""
    entry = context.facts.entries.get(twin)
    if entry is not None and entry.good_since(since, switch.success_ratio):
        return "verified"
    return "verifying" if context.now - since < switch.verify_for else "failing"
