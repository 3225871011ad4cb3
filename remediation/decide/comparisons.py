"""What each guard compared: numbers, times and names, for a person. Pure.

Decides nothing: the guards decide, and most decisions need no words. Every text reads the same values as its guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from outrider.clock import rfc3339
from outrider.model import TARGET_KINDS, ActionKind, EntityRef, GuardAnswer, ReasonText, Verdict
from outrider.vocabulary.units import format_duration
from remediation.decide import guards
from remediation.decide.context import DecisionContext
from remediation.decide.guards import CapacityBudget, Proposal
from remediation.decide.history import STOPPING, History
from remediation.decide.limits import FleetFacts, Policy
from remediation.decide.owners import objection
from remediation.decide.time_windows import TimeWindow, applying

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class _Case:
    """One proposal, and everything that its guards compare it with."""

    proposal: Proposal
    policy: Policy
    facts: FleetFacts
    history: History
    budget: CapacityBudget
    now: datetime
    answer: GuardAnswer

    @property
    def kind(self) -> ActionKind:
        """The kind of the action."""
        return self.proposal.kind

    @property
    def refused(self) -> bool:
        """True if the guard objects."""
        return self.answer.verdict is not Verdict.ALLOWED


def explained(context: DecisionContext, proposal: Proposal, given: Iterable[GuardAnswer]) -> tuple[GuardAnswer, ...]:
    """The answers of the guards, each with what it compared."""
    facts = (context.policy, context.facts, context.history, context.budget, context.now)
    return tuple(
        replace(answer, compared=tuple(_COMPARED[answer.guard](_Case(proposal, *facts, answer)))) for answer in given
    )


def _say(name: str, /, **arguments: object) -> ReasonText:
    return ReasonText(f"guards.{name}", {key: str(value) for key, value in arguments.items()})


def _target(case: _Case) -> Iterator[ReasonText]:
    kinds = ", ".join(sorted(TARGET_KINDS[case.kind]))
    yield _say("target", action=case.kind, entity=case.proposal.target.kind, kinds=kinds)


def _performer(case: _Case) -> Iterator[ReasonText]:
    yield _say("performer_missing" if case.kind in case.policy.unperformed else "performer", action=case.kind)


def _cluster(case: _Case) -> Iterator[ReasonText]:
    cluster = case.proposal.target.cluster
    reached = case.policy.clusters.get(case.kind, cluster)
    yield _say("cluster" if reached == cluster else "cluster_other", cluster=cluster, reached=reached)


def _hold(case: _Case) -> Iterator[ReasonText]:
    if not case.refused:
        yield _say("hold", cluster=case.proposal.target.cluster)


def _breaker(case: _Case) -> Iterator[ReasonText]:
    state = case.facts.breaker
    if case.proposal.undoes:
        yield _say("undo")
        return
    if state.opened_at is None:
        yield _say("breaker_closed")
        return
    counts = {"unsuccessful": state.unsuccessful, "performed": state.performed}
    yield _say("breaker_open", since=rfc3339(state.opened_at), **counts)


def _freeze(case: _Case) -> Iterator[ReasonText]:
    if case.proposal.undoes:
        yield _say("undo")
        return
    scope = guards.scope_of_action(
        case.proposal.because, case.proposal.target, case.proposal.takes, case.policy, case.facts
    )
    freezes = applying(case.policy.freezes, scope)
    now = [(freeze, end) for freeze in freezes if (end := freeze.end(case.now, widen=True)) is not None]
    if now:
        yield from (_say("freeze_now", name=freeze.name, end=rfc3339(end)) for freeze, end in now)
        return
    following = _first_start(freezes, case.now, widen=True)
    if following is None:
        yield _say("freeze_none")
    else:
        yield _say("freeze_next", name=following[0], start=rfc3339(following[1]))


def _maintenance_window(case: _Case) -> Iterator[ReasonText]:
    scope = guards.scope_of_action(
        case.proposal.because, case.proposal.target, case.proposal.takes, case.policy, case.facts
    )
    windows = applying(case.policy.maintenance_windows, scope)
    if case.proposal.undoes:
        yield _say("undo")
    elif case.proposal.lost_cluster:
        yield _say("window_outage", cluster=case.proposal.lost_cluster)
    elif case.kind not in case.policy.disruptive:
        yield _say("window_not_needed", action=case.kind)
    elif not windows:
        yield _say("window_none")
    elif case.refused:
        following = _first_start(windows, case.now)
        if following is None:
            yield _say("window_over", names=", ".join(window.name for window in windows))
        else:
            yield _say("window_next", name=following[0], start=rfc3339(following[1]))
    else:
        open_now = [(window, end) for window in windows if (end := window.end(case.now)) is not None]
        yield from (_say("window_open", name=window.name, end=rfc3339(end)) for window, end in open_now)


def _first_start(windows: Iterable[TimeWindow], now: datetime, *, widen: bool = False) -> tuple[str, datetime] | None:
    """The window that opens next, and the time; None if none opens any more."""
    starts = [(window.name, start) for window in windows if (start := window.next_start(now, widen=widen)) is not None]
    return min(starts, key=lambda item: item[1], default=None)


def _trusted_values(case: _Case) -> Iterator[ReasonText]:
    concerned = guards.concerned_by(case.proposal, case.facts)
    untrusted = guards.untrusted_of(case.proposal, case.facts)
    if not concerned:
        yield _say("values_not_needed", action=case.kind)
    elif untrusted:
        yield _say("values_untrusted", names=_names(untrusted))
    else:
        yield _say("values_trusted", count=len(concerned))


def _cooldown(case: _Case) -> Iterator[ReasonText]:
    proposal, facts = case.proposal, case.facts
    last = case.history.last_performed(case.kind, proposal.target)
    pause = format_duration(guards.cooldown_of(proposal, case.policy))
    if case.kind in guards.AT_ONCE:
        yield _say("cooldown_never", action=case.kind)
    elif guards.outgrown(proposal, facts):
        numbers = {"needed": facts.needed_replicas[proposal.target], "ordered": proposal.params["current"]}
        yield _say("cooldown_outgrown", **numbers)
    elif last is None:
        yield _say("cooldown_first", action=case.kind, pause=pause)
    else:
        yield _say("cooldown", action=case.kind, ago=format_duration(case.now - last), pause=pause)


def _rate_limit(case: _Case) -> Iterator[ReasonText]:
    if case.proposal.undoes:
        yield _say("undo")
    else:
        yield _say("rate_limit", used=case.budget.performed, most=case.policy.max_actions_per_hour)


def _foreign_cordon(case: _Case) -> Iterator[ReasonText]:
    nodes = guards.nodes_stopped_by(case.proposal, case.facts, case.budget)
    foreign = nodes & case.facts.nodes_cordoned_by_others
    if foreign:
        yield _say("cordoned_by_others", nodes=_names(foreign))
    elif nodes:
        yield _say("not_cordoned_by_others", nodes=_names(nodes))
    else:
        yield _no_node(case)


def _node_breaker(case: _Case) -> Iterator[ReasonText]:
    ours, others = case.budget.nodes, case.facts.nodes_cordoned_by_others - case.budget.nodes
    if not guards.nodes_stopped_by(case.proposal, case.facts, case.budget) - others:
        yield _no_node(case)
        return
    share = case.policy.node_share(case.facts.nodes_total)
    limits = {"most": case.policy.max_cordoned_nodes, "share": share, "total": case.facts.nodes_total}
    yield _say("node_breaker", ours=len(ours), out=len(ours) + len(others), **limits)


def _no_node(case: _Case) -> ReasonText:
    if case.kind in STOPPING:
        nodes = guards.nodes_of(case.proposal.target, case.facts.topology)
        return _say("node_out_already", nodes=_names(nodes)) if nodes else _say("no_node", action=case.kind)
    return _say("no_node", action=case.kind)


def _service_minimum(case: _Case) -> Iterator[ReasonText]:
    proposal, shifts = case.proposal, case.kind is ActionKind.SHIFT_TRAFFIC
    counted = {service: count for service, count in proposal.takes.items() if count or shifts}
    if not counted:
        yield _say("takes_none")
    for service, count in counted.items():
        ready, total = case.budget.ready(case.facts, service), case.facts.ready_replicas.get(service, 0)
        if ready is None:
            yield _say("replicas_unknown", service=service.name)
            continue
        least = guards.least_of(proposal, case.policy, service)
        yield _say("service_minimum", service=service.name, left=ready - count, ready=ready, least=least)
        if shifts and count:
            ejected = case.budget.removed.get(service, 0) + count
            yield _say("ejected", ejected=ejected, total=total, most=case.policy.ejection_share(total))


def _disruption_budget(case: _Case) -> Iterator[ReasonText]:
    yield _say("budget_blocks", names=case.answer.detail) if case.refused else _say("budget_none")


def _survivors(case: _Case) -> Iterator[ReasonText]:
    proposal = case.proposal
    if not proposal.scale_in:
        yield _say("no_scale_in")
        return
    needed = case.facts.needed_replicas.get(proposal.target)
    if needed is None:
        yield _say("replicas_unknown", service=proposal.target.name)
        return
    least = case.policy.minimum_of(proposal.target)
    yield _say("survivors", left=proposal.params["replicas"], needed=needed, least=least)
    if proposal.target in case.facts.burning:
        yield _say("burning", service=proposal.target.name)


def _owner(case: _Case) -> Iterator[ReasonText]:
    owner = objection(case.kind, case.proposal.target, case.facts.owners, writes_replicas=case.policy.writes_replicas)
    if owner is None:
        yield _say("owner_none")
    else:
        yield _say("owner" if owner.verdict is Verdict.REFUSED else "protected", owner=owner.owner)


def _confidence(case: _Case) -> Iterator[ReasonText]:
    confidence = case.proposal.confidence
    if confidence is None:
        yield _say("confidence_none")
    else:
        yield _say("confidence", confidence=f"{confidence:.2f}", least=f"{case.policy.min_confidence:.2f}")


def _own_evidence(case: _Case) -> Iterator[ReasonText]:
    if case.proposal.confidence is None:
        yield _say("confidence_none")
    else:
        yield _say("reported_only" if case.refused else "own_evidence")


def _headroom(case: _Case) -> Iterator[ReasonText]:
    taken = {service: count for service, count in case.proposal.takes.items() if count}
    if not taken:
        yield _say("takes_none")
    for service, count in taken.items():
        ready = case.budget.ready(case.facts, service)
        needed = guards.needed_by(case.proposal, case.facts, service)
        if ready is None or needed is None:
            yield _say("replicas_unknown", service=service.name)
            continue
        numbers = {"headroom": ready - needed, "count": count, "ready": ready, "needed": needed}
        yield _say("headroom", service=service.name, **numbers)
        if guards.burns(case.proposal, case.facts, service):
            yield _say("burning", service=service.name)


def _approval(case: _Case) -> Iterator[ReasonText]:
    if not case.refused:
        yield _say("approval_none", action=case.kind)
    elif case.kind in case.policy.two_person:
        yield _say("approval_of_two", action=case.kind)
    else:
        yield _say("approval_of_step" if case.proposal.ask else "approval", action=case.kind)


def _autonomy(case: _Case) -> Iterator[ReasonText]:
    if case.proposal.undoes:
        yield _say("undo")
    else:
        yield _say("autonomy", level=guards.level_of(case.proposal, case.policy, case.facts))


def _names(entities: Iterable[EntityRef]) -> str:
    names = sorted(entity.name for entity in entities)
    return ", ".join(names[:_MOST_NAMES]) + (f" +{len(names) - _MOST_NAMES}" if len(names) > _MOST_NAMES else "")


_COMPARED: Final[Mapping[str, Callable[[_Case], Iterator[ReasonText]]]] = {
    "target": _target,
    "performer": _performer,
    "cluster": _cluster,
    "hold": _hold,
    "breaker": _breaker,
    "freeze": _freeze,
    "maintenance_window": _maintenance_window,
    "trusted_values": _trusted_values,
    "cooldown": _cooldown,
    "rate_limit": _rate_limit,
    "foreign_cordon": _foreign_cordon,
    "node_breaker": _node_breaker,
    "service_minimum": _service_minimum,
    "disruption_budget": _disruption_budget,
    "survivors": _survivors,
    "owner": _owner,
    "confidence": _confidence,
    "own_evidence": _own_evidence,
    "headroom": _headroom,
    "approval": _approval,
    "autonomy": _autonomy,
}
