"""The degrade ladder: a service gives up something while its load is above its capacity. Pure.

The current level is the newest performed action of the ladder, so that a restart continues where it was. A level is
entered only for a load fault, on trusted values, and if scaling will not cover the load within the users' patience.
It ends by itself, one level at a time, or at once if the service no longer exists. A person can end it at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityRef,
    Hypothesis,
    Incident,
    RemediationSession,
    StepState,
    StepStatus,
    Verdict,
)
from remediation.decide import approval, sessions
from remediation.decide.context import DecisionContext, cause_of
from remediation.decide.guards import Judgement, Proposal, judge, judge_undo
from remediation.decide.history import CANCELLABLE, LADDER, WAITING, History, action_id, rejected
from remediation.decide.record import record
from remediation.decide.service_load import ServiceLoad
from remediation.playbooks.model import LOAD_FAULTS
from remediation.procedures.degrade_ladder import Ladder, Ladders, Level

_HOUR = timedelta(hours=1)
CAPACITY = "capacity_per_replica"  # requests/s at level 0, measured when the ladder began
_OFFERED = "offered_per_second"  # requests/s of all clients at that time
PROMPT = "usual_prompt_tokens"  # usual mean length of a prompt, while longer ones are limited
UNMEASURED_TEXT = "playbooks.level_unmeasured"
_LATE = 2  # replicas that are missing after so many start-up times are not counted on


class EntryObstacle(StrEnum):
    """A reason for which a level does not begin."""

    DWELL = "dwell"  # the last change is too recent
    NO_VALUES = "no_values"
    THRESHOLDS = "thresholds"
    COVERED = "covered"  # present and ordered replicas drain the queue within the users' patience
    SCALING = "scaling"  # a scale-out is decided, and its replicas may serve within the users' patience
    STOPPED = "stopped"  # rejected, ended by a person, shown by a dry run, or failed a short time ago


@dataclass(frozen=True, slots=True)
class EntryThreshold:
    """One enter value of a level against the least value of the last seconds. ``value`` None: unknown."""

    indicator: str
    limit: float
    value: float | None

    @property
    def reached(self) -> bool:
        """True if the value was reached throughout."""
        return self.value is not None and self.value >= self.limit


@dataclass(frozen=True, slots=True)
class Standing:
    """The level of a service. ``since`` None: it was never degraded. ``session`` set the level."""

    level: int = 0
    since: datetime | None = None
    session: str = ""
    because: str = ""
    capacity_per_replica: float | None = None
    offered_per_second: float | None = None
    usual_prompt_tokens: float | None = None

    @property
    def limits_prompts(self) -> bool:
        """True while long prompts are rejected."""
        return self.usual_prompt_tokens is not None

    @property
    def measured(self) -> dict[str, float]:
        """What was measured when the ladder began, as parameters of the next change."""
        known = {
            CAPACITY: self.capacity_per_replica,
            _OFFERED: self.offered_per_second,
            PROMPT: self.usual_prompt_tokens,
        }
        return {key: value for key, value in known.items() if value is not None}


def standing(history: History, service: EntityRef) -> Standing:
    """The level of a service, from the newest performed action of the ladder."""
    performed = history.ladder(service)
    if not performed:
        return Standing()
    newest = performed[-1]
    level = int(newest.params["level"])
    measured = newest.params if level else {}
    return Standing(
        level=level,
        since=newest.ended_at or newest.decided_at,
        session=newest.session,
        because=newest.because,
        capacity_per_replica=_number(measured.get(CAPACITY)),
        offered_per_second=_number(measured.get(_OFFERED)),
        usual_prompt_tokens=_number(measured.get(PROMPT)),
    )


def unfinished(actions: Iterable[Action], incidents: Iterable[Incident]) -> frozenset[str]:
    """Open incidents of a load that a service still sheds: that hides the load's alerts and does not end the load."""
    history = History(actions)
    shedding = {standing(history, service).because for service in history.degraded()}
    return frozenset(
        incident.id
        for incident in incidents
        if incident.id in shedding and incident.suspected_cause and incident.suspected_cause.fault in LOAD_FAULTS
    )


def unmeasured(context: DecisionContext) -> list[StepStatus]:
    """Levels that do not end, because no trusted value shows the load. A person is paged if that lasts."""
    return [
        StepStatus(
            incident=current.because,
            kind=ActionKind.RESTORE_SERVICE,
            target=service,
            state=StepState.LEVEL_UNMEASURED,
            page=UNMEASURED_TEXT,
            page_after=ladder.unmeasured_exit,
        )
        for service in sorted(context.history.degraded(), key=lambda service: service.key)
        for current in [standing(context.history, service)]
        for ladder in [context.procedures.ladders.of(service.name)]
        if ladder is not None and not _busy(context, service) and not is_gone(context, service)
        for level in [ladder.level(current.level)]
        if level is not None and _trusted_load(context, service, level.exit_for) is None
    ]


def is_gone(context: DecisionContext, service: EntityRef) -> bool:
    """True if a service has neither replicas nor values. A topology without its whole cluster proves nothing."""
    known = context.topology.entities
    if service in known or service in context.facts.load:
        return False
    return any(entity.cluster == service.cluster for entity in known)


def restored_by_hand(
    history: History, service: EntityRef, person: str, now: datetime, *, dry_run: bool
) -> list[Action]:
    """The return of a degraded service to normal, at a person's request. Waiting and intended changes are cancelled.

    Its incident degrades the service no more.
    """
    current = standing(history, service)
    pending = [action for action in history.actions if action.target == service and action.kind in LADDER]
    cancelled = [
        approval.withdrawn(action, now, DecisionReason.RESTORED_BY_HAND, person)
        for action in pending
        if action.status in CANCELLABLE
    ]
    earlier = len(history.of(current.session, ActionKind.RESTORE_SERVICE, service))
    restore = Action(
        id=action_id(f"{current.session}\n{person}", ActionKind.RESTORE_SERVICE, service, earlier),
        session=current.session,
        kind=ActionKind.RESTORE_SERVICE,
        target=service,
        params={
            **sessions.ownership(current.session),
            **Ladders().parameters(service.name, 0),
            "previous": current.level,
        },
        because=current.because,
        dry_run=dry_run,
        decision=Verdict.ALLOWED,
        reason=DecisionReason.RESTORED_BY_HAND,
        status=ActionStatus.INTENDED,
        decided_at=now,
        approved_by=person,
        approvals=(person,),
    )
    return [*cancelled, restore]


def was_restored_by_hand(history: History, service: EntityRef, incident: str) -> bool:
    """True if a person has ended the levels of a service that an incident requires."""
    return any(
        action.reason is DecisionReason.RESTORED_BY_HAND and action.because == incident
        for action in history.ladder(service)
    )


def decisions(
    context: DecisionContext, incidents: Sequence[Incident], known: Sequence[RemediationSession]
) -> tuple[list[Action], list[RemediationSession]]:
    """The changes of level in this round, and the sessions that they open."""
    actions: list[Action] = []
    opened: dict[str, RemediationSession] = {}
    decided: set[EntityRef] = set()
    for incident, cause, service in overloaded(context, incidents):
        if service in decided:
            continue
        session = sessions.acting((*known, *opened.values()), incident, context.history)
        new = session or sessions.open_session(incident, context.now)
        deeper = _deepen(context, incident, cause, new, service)
        if deeper:
            decided.add(service)
            actions += deeper
            if session is None:
                opened[new.id] = new
    open_incidents = frozenset(incident.id for incident in incidents if incident.resolved_at is None)
    for service in sorted(context.history.degraded(), key=lambda service: service.key):
        if service not in decided:
            actions += _step_up(context, service, open_incidents)
    return actions, list(opened.values())


def overloaded(
    context: DecisionContext, incidents: Sequence[Incident]
) -> Iterator[tuple[Incident, Hypothesis, EntityRef]]:
    """Yields each open incident about load, with each service that it reaches; the most urgent first."""
    for incident in sorted(incidents, key=lambda incident: (incident.priority.rank, incident.opened_at, incident.id)):
        cause = cause_of(incident)
        if cause is None:
            continue
        for service in context.targets(cause.entity, "services"):
            ladder = context.procedures.ladders.of(service.name)
            if ladder is not None and cause.fault in ladder.faults:
                yield incident, cause, service


def _deepen(
    context: DecisionContext, incident: Incident, cause: Hypothesis, session: RemediationSession, service: EntityRef
) -> list[Action]:
    """The next level for a service whose load will not be covered in time."""
    ladder = context.procedures.ladders.of(service.name)
    level = None if ladder is None else next_level(context, service, ladder)
    if ladder is None or level is None or _busy(context, service):
        return []
    if next(obstacles(context, service, ladder, level, session), None) is not None:
        return []
    return propose(context, incident, cause, session, service, level, measurements(context, service, level))


def next_level(context: DecisionContext, service: EntityRef, ladder: Ladder) -> Level | None:
    """The level to take next; None at the deepest. While prompts are long, they are limited first."""
    current = standing(context.history, service)
    limits = [] if current.limits_prompts else [level for level in ladder.levels if level.limits_prompts]
    due = [level for level in limits if _prompts_reach(context, service, level)]
    due += [level for level in ladder.levels if level.number > current.level and not level.limits_prompts][:1]
    reached = (level for level in due if all(one.reached for one in thresholds(context, service, ladder, level)))
    return next(reached, due[0] if due else None)


def _prompts_reach(context: DecisionContext, service: EntityRef, level: Level) -> bool:
    load = context.facts.load.get(service)
    return load is not None and load.prompts is not None and load.prompts.ratio >= level.enter["prompt_ratio"]


def obstacles(
    context: DecisionContext, service: EntityRef, ladder: Ladder, level: Level, session: RemediationSession
) -> Iterator[EntryObstacle]:
    """Yields each reason for which a level does not begin now; the guards decide after them."""
    if _is_recent(standing(context.history, service), ladder.dwell, context.now):
        yield EntryObstacle.DWELL
    load = context.facts.load.get(service)
    window = None if load is None else load.last(level.enter_for)
    if window is None:
        yield EntryObstacle.NO_VALUES
        return
    if not all(threshold.reached for threshold in thresholds(context, service, ladder, level)):
        yield EntryObstacle.THRESHOLDS
    if covered(context, service, ladder):
        yield EntryObstacle.COVERED
    if _scaling_comes_first(context, service, ladder):
        yield EntryObstacle.SCALING
    if _stopped(context, session, service, level):
        yield EntryObstacle.STOPPED


def thresholds(
    context: DecisionContext, service: EntityRef, ladder: Ladder, level: Level
) -> tuple[EntryThreshold, ...]:
    """The enter values of a level, each with the least value throughout ``enter_for``."""
    load = context.facts.load.get(service)
    window = None if load is None else load.last(level.enter_for)
    if window is None:
        return tuple(EntryThreshold(key, limit, None) for key, limit in level.enter.items())
    return tuple(
        EntryThreshold(
            key,
            limit,
            min(window.waits(ladder.wait_objective))
            if key == "wait_ratio"
            else _indicator(context, service, key, window),
        )
        for key, limit in level.enter.items()
    )


def measurements(context: DecisionContext, service: EntityRef, level: Level) -> dict[str, float]:
    """What is measured before a level, as parameters of the change: now, or when the ladder began.

    The capacity is that for usual prompts. So it stays unknown if the ladder began with a limit of long ones.
    """
    current, load = standing(context.history, service), context.facts.load.get(service)
    if level.limits_prompts:
        prompts = None if load is None else load.prompts
        return current.measured if prompts is None else {**current.measured, PROMPT: round(prompts.usual, 1)}
    if current.level:
        return current.measured
    window = None if load is None else load.last(level.enter_for)
    return {} if window is None else _measured(context, service, window)


def propose(
    context: DecisionContext,
    incident: Incident,
    cause: Hypothesis,
    session: RemediationSession,
    service: EntityRef,
    level: Level,
    measured: dict[str, Any],
    lost_cluster: str = "",
) -> list[Action]:
    """The action that takes a service to a level, judged by the guards."""
    proposal = proposal_of(context, incident, cause, session, service, level, measured, lost_cluster)
    judgement = judge(proposal, context.policy, context.facts, context.history, context.budget, context.now)
    request = unanswered(context.history, proposal)
    limits = PROMPT in proposal.params
    same = request is not None and _sets(request, proposal.params["level"], limits_prompts=limits)
    if judgement[0] is Verdict.ASK and request is not None and same:
        proposal = replace(proposal, params=request.params)  # it stands, although the measured values have changed
    return record(context, proposal, judgement)


def proposal_of(
    context: DecisionContext,
    incident: Incident,
    cause: Hypothesis,
    session: RemediationSession,
    service: EntityRef,
    level: Level,
    measured: dict[str, Any],
    lost_cluster: str = "",
) -> Proposal:
    """The change of a service to a level. ``measured`` joins its parameters.

    ``lost_cluster`` is the cluster whose loss requires it.
    """
    number = max(level.number, standing(context.history, service).level)
    params = {**_params(context, session.id, service, number, measured), **measured}
    if lost_cluster:
        params["lost_cluster"] = lost_cluster
    return Proposal(
        session=session.id,
        because=incident.id,
        kind=ActionKind.DEGRADE_SERVICE,
        target=service,
        params=params,
        confidence=cause.confidence,
        ask=level.ask,
        lost_cluster=lost_cluster,
    )


def unanswered(history: History, proposal: Proposal) -> Action | None:
    """The newest request about the same step, if it still waits or nobody answered it in time."""
    newest = history.newest(proposal.session, proposal.kind, proposal.target)
    if newest is None:
        return None
    return newest if newest.status in WAITING or newest.reason is DecisionReason.EXPIRED else None


def _sets(action: Action, level: int, *, limits_prompts: bool) -> bool:
    """True if an action sets this level, with or without a limit of prompts."""
    return action.params.get("level") == level and (PROMPT in action.params) is limits_prompts


def _left(context: DecisionContext, service: EntityRef, ladder: Ladder, level: Level, window: ServiceLoad) -> bool:
    waits = level.exit.get("wait_ratio", 0.0)
    if any(wait > waits for wait in window.waits(ladder.wait_objective)):
        return False
    values = ((_indicator(context, service, key, window), limit) for key, limit in level.exit.items())
    return all(value is None or value <= limit for value, limit in values)


def _indicator(context: DecisionContext, service: EntityRef, key: str, window: ServiceLoad) -> float | None:
    """The value of an indicator that is one number for the window; None for the others."""
    if key == "burning":
        return float(service in context.facts.burning)
    if key == "prompt_ratio":
        return None if window.prompts is None else window.prompts.ratio
    if key != "overload_ratio":
        return None
    ready = context.budget.ready(context.facts, service) or 0
    return window.overload(ready, context.current_replicas(service))


def covered(context: DecisionContext, service: EntityRef, ladder: Ladder) -> bool:
    """True if the present and the ordered replicas drain the queue within the users' patience."""
    load = context.facts.load[service]
    recent = load.last(timedelta(minutes=1)) or load
    ready, ordered = context.budget.ready(context.facts, service), context.current_replicas(service)
    if ready is None:
        return False
    seconds = recent.drained_within(ready, ordered, _starts_in(context, service))
    return seconds <= ladder.patience.total_seconds()


def _scaling_comes_first(context: DecisionContext, service: EntityRef, ladder: Ladder) -> bool:
    """True while a scale-out is decided that may serve within the users' patience: its effect is awaited."""
    if _startup(context, service) > ladder.patience:
        return False
    ordering = any(action.target == service for action in context.history.in_flight((ActionKind.SCALE,)))
    return ordering or service in context.budget.scaled


def _starts_in(context: DecisionContext, service: EntityRef) -> timedelta | None:
    """Time until the replicas of our newest scale-out serve; None if it is missing or long overdue."""
    scaled = context.history.last_scaled(service)
    if scaled is None or scaled.params["replicas"] <= scaled.params.get("current", 0):
        return None
    startup = _startup(context, service)
    left = (scaled.ended_at or scaled.decided_at) + startup - context.now
    return None if left < -(_LATE - 1) * startup else max(left, timedelta(0))


def _startup(context: DecisionContext, service: EntityRef) -> timedelta:
    """Time until an ordered replica serves: the lead time of the plan, which is measured, else the configured one."""
    planned = context.recommendation(service)
    known = planned.lead_time if planned is not None else timedelta(0)
    return known or context.procedures.ladders.options(service.name).startup


def _measured(context: DecisionContext, service: EntityRef, window: ServiceLoad) -> dict[str, float]:
    """Requests/s of one replica with a queue, and of all clients, at level 0."""
    ready = context.budget.ready(context.facts, service)
    if not ready or window.served <= 0:
        return {}
    return {CAPACITY: round(window.served / ready, 3), _OFFERED: round(window.arriving, 3)}


def _step_up(context: DecisionContext, service: EntityRef, open_incidents: frozenset[str]) -> list[Action]:
    """Takes back one level once it is no longer needed, and all of them once the service is gone."""
    if _busy(context, service):
        return []
    current = standing(context.history, service)
    ladder = None if is_gone(context, service) else context.procedures.ladders.of(service.name)
    level = None if ladder is None else ladder.level(current.level)
    if ladder is not None and level is not None and not _may_step_up(context, service, ladder, level, current):
        return []
    if ladder is not None and level is None and _is_recent(current, ladder.dwell, context.now):
        return []
    lower = 0 if ladder is None else ladder.below(current.level, limits_prompts=current.limits_prompts)
    if _failed_recently(context, current.session, ActionKind.RESTORE_SERVICE, service):
        return []
    measured = current.measured if lower else {}
    proposal = Proposal(
        session=current.session,
        because=current.because,
        kind=ActionKind.RESTORE_SERVICE,
        target=service,
        params={
            **_params(context, current.session, service, lower, measured),
            **measured,
            "previous": current.level,
        },
    )
    return record(context, proposal, _undo_judgement(context, service, over=current.because not in open_incidents))


def _undo_judgement(context: DecisionContext, service: EntityRef, *, over: bool) -> Judgement:
    """An undo is not blocked by breakers. During the incident the session goes on, so its reason is not RECOVERED."""
    verdict, reason = judge_undo(context.facts, service)
    if verdict is Verdict.ALLOWED and not over:
        return verdict, DecisionReason.WITHIN_LIMITS
    return verdict, reason


def _may_step_up(context: DecisionContext, service: EntityRef, ladder: Ladder, level: Level, current: Standing) -> bool:
    if _is_recent(current, max(ladder.dwell, _exit_wait(context, service, ladder, level)), context.now):
        return False
    window = _trusted_load(context, service, level.exit_for)
    if window is None or not _left(context, service, ladder, level, window):
        return False
    if level.limits_prompts:
        return _few_rejected(context, service, ladder, level, current, window)
    return _fits(context, service, ladder, level, current, window)


def _trusted_load(context: DecisionContext, service: EntityRef, span: timedelta) -> ServiceLoad | None:
    """The load of the last ``span``; None if values are missing or not trusted."""
    load = context.facts.load.get(service)
    return None if load is None or service in context.facts.untrusted else load.last(span)


def _exit_wait(context: DecisionContext, service: EntityRef, ladder: Ladder, level: Level) -> timedelta:
    """Minimum time at a level: it doubles with each return of the level within an hour."""
    entries: int = sum(
        action.kind is ActionKind.DEGRADE_SERVICE
        and action.params["level"] == level.number
        and context.now - action.decided_at < _HOUR
        for action in context.history.ladder(service)
    )
    factor = 1 << min(max(0, entries - 1), 10)
    return min(level.exit_for * factor, max(ladder.longest_exit, level.exit_for))


def _few_rejected(
    context: DecisionContext, service: EntityRef, ladder: Ladder, level: Level, current: Standing, window: ServiceLoad
) -> bool:
    """True if few prompts are too long any more. If nothing counts them, or for too long, the end is a trial."""
    ratio = window.rejected_ratio
    if ratio is not None and ratio <= level.exit["rejected_ratio"]:
        return True
    trial = ladder.unmeasured_exit if ratio is None else ladder.longest_exit
    return not _is_recent(current, max(trial, _exit_wait(context, service, ladder, level)), context.now)


def _fits(
    context: DecisionContext,
    service: EntityRef,
    ladder: Ladder,
    level: Level,
    current: Standing,
    window: ServiceLoad,
) -> bool:
    """True if the ready replicas can serve the offered load at the next lower level; also if that is unknown."""
    ready = context.budget.ready(context.facts, service)
    if current.capacity_per_replica is None or ready is None:
        return True
    lower = ladder.below(current.level, limits_prompts=current.limits_prompts)
    capacity = (1.0 - ladder.spare_ratio) * current.capacity_per_replica * ready / max(ladder.load_ratio(lower), 0.01)
    offered = window.offered
    if offered is None and not ladder.content(current.level, limits_prompts=False).rejects:
        offered = window.arriving
    if offered is not None:
        return offered <= capacity
    # nobody counts rejected requests: the load of the beginning is assumed for a time, then the lower level is tried
    trial = max(ladder.unmeasured_exit, _exit_wait(context, service, ladder, level))
    known = current.offered_per_second is not None and current.offered_per_second <= capacity
    return known or not _is_recent(current, trial, context.now)


def _params(
    context: DecisionContext, session: str, service: EntityRef, level: int, measured: Mapping[str, Any]
) -> dict[str, Any]:
    usual = _number(measured.get(PROMPT))
    return {**sessions.ownership(session), **context.procedures.ladders.parameters(service.name, level, usual)}


def _busy(context: DecisionContext, service: EntityRef) -> bool:
    return any(action.target == service for action in context.history.in_flight(LADDER))


def _is_recent(current: Standing, span: timedelta, now: datetime) -> bool:
    return current.since is not None and now - current.since < span


def _stopped(context: DecisionContext, session: RemediationSession, service: EntityRef, level: Level) -> bool:
    """True if a person rejected or ended it, a dry run has shown it, or it failed recently."""
    if was_restored_by_hand(context.history, service, session.incident):
        return True
    before = context.history.of(session.id, ActionKind.DEGRADE_SERVICE, service)
    current = standing(context.history, service)
    number, limits = max(level.number, current.level), current.limits_prompts or level.limits_prompts
    same = [action for action in before if _sets(action, number, limits_prompts=limits)]
    if any(rejected(action) or action.status is ActionStatus.DRY_RUN for action in same):
        return True
    return _failed_recently(context, session.id, ActionKind.DEGRADE_SERVICE, service)


def _failed_recently(context: DecisionContext, session: str, kind: ActionKind, service: EntityRef) -> bool:
    newest = context.history.newest(session, kind, service)
    if newest is None or newest.status is not ActionStatus.FAILED:
        return False
    return context.now - (newest.ended_at or newest.decided_at) < context.policy.cooldown


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
