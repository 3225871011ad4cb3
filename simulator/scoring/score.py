"""Drill scores: detection, root cause and remediation of injected faults, from ground truth and observation.

Pure: no platform, no clock, no files. The rules are those of "How a drill is scored": an injected fault is detected if
an incident opens between its start and its end + 120 s whose cause, or any alert folded into it, lies on the topology
path of the faulted entity. One incident matches one fault, earliest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

from scipy.special import gammaincinv

from outrider.model import ActionKind, Priority
from outrider.vocabulary.faults import faults
from simulator.scoring.beyond_repair import beyond_repair
from simulator.scoring.calibration import answers_of, reliability
from simulator.scoring.grouping import Pairs, pairs_of
from simulator.scoring.run import InjectedFault, Run, ScoredAction, ScoredIncident

GRACE = timedelta(seconds=120)
REPAIRED_WITHIN = timedelta(minutes=5)
LOUD = (Priority.P0, Priority.P1, Priority.P2)
# Undo, preparation and diagnosis end no impact.
_UNDO = frozenset(
    {
        *(ActionKind.UNCORDON, ActionKind.RESTORE_TRAFFIC, ActionKind.RESUME_ROLLOUT, ActionKind.PAUSE_ROLLOUT),
        *(ActionKind.RESUME_ENGINE, ActionKind.RESTORE_SERVICE, ActionKind.RUN_DIAGNOSTIC),
    }
)
_ENDS_NOTHING = _UNDO | {ActionKind.CORDON}
# A cordon decides where the next pod starts; traffic and degrade levels do not start one.
_STARTS_NOTHING = _UNDO | {
    *(ActionKind.SHIFT_TRAFFIC, ActionKind.BALANCE_TRAFFIC, ActionKind.WAKE_ENGINE, ActionKind.DEGRADE_SERVICE),
}
BY_HAND = ("ask", "notify", "watch", "propose", "link", "check")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result for one injected fault. Times are seconds relative to its start; None: never."""

    scenario: str
    injected: InjectedFault
    incident: ScoredIncident | None
    rank: int | None  # rank of the true (entity, fault) among the hypotheses, from 1
    entity_correct: bool
    fault_correct: bool
    lost: bool  # no own incident while another one was open
    repaired_after: float | None
    remedied_by: str | None = None  # kind of the action that ended it

    @property
    def delay(self) -> float | None:
        """Seconds from the fault's start to the opening of its incident."""
        if self.incident is None:
            return None
        return (self.incident.opened_at - self.injected.start).total_seconds()


def verdicts(run: Run) -> tuple[Verdict, ...]:
    """Returns the verdict on every fault of a run, in order of start."""
    free = sorted(run.incidents, key=lambda incident: (incident.opened_at, incident.id))
    result = []
    for injected in sorted(run.injected, key=lambda one: (one.start, one.fault, one.entity.key)):
        incident = next((one for one in free if _answers(one, injected)), None)
        if incident is not None:
            free.remove(incident)
        result.append(_verdict(run, injected, incident))
    return tuple(result)


def _answers(incident: ScoredIncident, injected: InjectedFault) -> bool:
    in_time = injected.start <= incident.opened_at <= injected.end + GRACE
    return in_time and not injected.path.isdisjoint(incident.entities)


def _verdict(run: Run, injected: InjectedFault, incident: ScoredIncident | None) -> Verdict:
    remedy = _remedy(run, injected) if incident is not None else None
    truth = (injected.entity, injected.fault)
    named = incident.hypotheses if incident else ()
    return Verdict(
        scenario=run.scenario,
        injected=injected,
        incident=incident,
        rank=named.index(truth) + 1 if truth in named else None,
        entity_correct=bool(named) and named[0][0] == injected.entity,
        fault_correct=bool(named) and named[0][1] == injected.fault,
        lost=incident is None and any(_open_during(incident, injected) for incident in run.incidents),
        repaired_after=_repaired_after(run, injected, incident),
        remedied_by=str(remedy.kind) if remedy else None,
    )


def _open_during(incident: ScoredIncident, injected: InjectedFault) -> bool:
    until = incident.resolved_at
    return incident.opened_at <= injected.end + GRACE and (until is None or until >= injected.start)


def _repaired_after(run: Run, injected: InjectedFault, incident: ScoredIncident | None) -> float | None:
    """Returns seconds to recovery, if an action of its playbook ended it."""
    done = injected.recovered_at
    if incident is None or done is None or _remedy(run, injected) is None:
        return None
    return (done - injected.start).total_seconds()


def _remedy(run: Run, injected: InjectedFault) -> ScoredAction | None:
    """Returns the last action before the recovery that can have ended the fault; None if it ended by itself.

    It is an action of the fault's playbook or ladder, on its path, after its start.
    """
    done = injected.recovered_at
    if done is None:
        return None
    fitting = [
        act
        for act in run.acted
        if injected.start <= act.at <= done
        and act.target in injected.path
        and (injected.repaired_by is None or act.kind in injected.repaired_by)
        and _can_have_ended(act, injected)
    ]
    # Of two actions the earlier one ended an impact that was over when the later one came.
    return max(fitting, key=lambda act: (act.at < done, act.at), default=None)


def _can_have_ended(act: ScoredAction, injected: InjectedFault) -> bool:
    """Returns False for an action that was too late, or of a kind that changed nothing.

    If a pod had to start, the action came before that pod was created: a pod that existed already started without it.
    If none had to, a cordon changed nothing. A scale-out relieves a service only by replicas that serve.
    """
    created, newest = injected.pod_created_at, injected.newest_pod_at
    if created is not None:
        return act.at <= created and act.kind not in _STARTS_NOTHING
    if act.kind == ActionKind.SCALE:
        return newest is not None and act.at <= newest
    return act.kind not in _ENDS_NOTHING


def has_remedy(fault_id: str) -> bool:
    """Returns True if the fault has an automatic remedy: its first one is not an instruction for a person."""
    return not faults()[fault_id].remedy.startswith(BY_HAND)


def poisson_upper95(count: int) -> float:
    """Returns the 95 % upper bound on the mean of a Poisson count: 3.0 for 0 (exact, one-sided; Garwood 1936)."""
    return float(gammaincinv(count + 1, 0.95))


def score(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns all figures of ``outrider drill score``, of one seed or of several pooled; None without data."""
    judged = [verdict for run in runs for verdict in verdicts(run)]
    detected = [verdict for verdict in judged if verdict.incident is not None]
    negative = [run for run in runs if run.negative]
    storms = [run for run in runs if run.storm]
    false_pages = sum(false_pages_of(run) for run in runs)
    target_days = sum(run.target_days for run in runs)
    return {
        "scenarios": len(runs),
        "events": len(judged),
        "precision": _share(right for run in runs for right in _loud_and_right(run)),
        "recall": _share(verdict.incident is not None for verdict in judged),
        "median_delay_seconds": _quantile(detected, 0.5),
        "p95_delay_seconds": _quantile(detected, 0.95),
        "ac1": _share(_ranked(verdict, 1) for verdict in detected),
        "ac3": _share(_ranked(verdict, 3) for verdict in detected),
        "right_abstention": _share(not any(i.priority in LOUD for i in run.incidents) for run in negative),
        "folding_ratio": _folding(storms, pages_of),
        "folding_ratio_by_incident": _folding(storms, called_of),
        **sum((pairs_of(run, GRACE) for run in storms), Pairs()).figures(),
        "distinct_incidents_lost": sum(verdict.lost for verdict in judged),
        "false_pages": false_pages,
        "false_pages_by_call": sum(false_calls_of(run) for run in runs),
        "second_incidents": sum(len(second_incidents(run)) for run in runs),
        "second_pages": sum(second_pages_of(run) for run in runs),
        "target_days": target_days,
        "false_pages_per_target_day_upper95": poisson_upper95(false_pages) / target_days if target_days else None,
        "remediated_ratio": _remediated(detected),
        "remediated_ratio_of_endable": _share(repaired(verdict) for verdict in detected if _is_endable(verdict)),
        "beyond_repair": _beyond_repair(detected),
        "remedied_by": _remedies(detected),
        "harmful_actions": sum(len(harmful_actions(run)) for run in runs),
        "actions_off_path": sum(len(off_path_actions(run)) for run in runs),
        **reliability(answers_of(runs, GRACE)),
        "by_fault": _by_fault(judged),
        "by_storm": _by_storm(storms),
    }


def _matched(run: Run) -> set[str]:
    """Returns the incidents that match a fault. Ids are unique only within a run."""
    return {verdict.incident.id for verdict in verdicts(run) if verdict.incident is not None}


def _loud_and_right(run: Run) -> list[bool]:
    """Returns True for each P0-P2 incident that matches a fault, else False."""
    matched = _matched(run)
    return [incident.id in matched for incident in run.incidents if incident.priority in LOUD]


def pages_of(run: Run) -> int:
    """Counts first notifications of P0 and P1 incidents: one page, however many incidents it names."""
    return sum(incident.paged_at is not None for incident in run.incidents)


def called_of(run: Run) -> int:
    """Counts incidents named by a page, including those named by another incident's page."""
    return sum(incident.is_called for incident in run.incidents)


def false_pages_of(run: Run) -> int:
    """Counts paged incidents that match no injected fault, also if a true incident's page names them."""
    matched = _matched(run)
    return sum(incident.is_called and incident.id not in matched for incident in run.incidents)


def false_calls_of(run: Run) -> int:
    """Counts pages sent by an incident that matches no injected fault."""
    matched = _matched(run)
    return sum(incident.paged_at is not None and incident.id not in matched for incident in run.incidents)


def second_incidents(run: Run) -> tuple[ScoredIncident, ...]:
    """Returns the P0-P2 incidents about a fault that has one already, or about what it left behind.

    Such an incident matches no fault. It opened after the start of one that ended within the run, on its path or on
    another part of the services on that path.
    """
    matched = _matched(run)
    ended = [fault for fault in run.injected if fault.end <= run.end]
    return tuple(
        incident
        for incident in run.incidents
        if incident.id not in matched
        and incident.priority in LOUD
        and any(fault.start <= incident.opened_at and _reaches(fault, incident) for fault in ended)
    )


def _reaches(fault: InjectedFault, incident: ScoredIncident) -> bool:
    return any(not ring.isdisjoint(incident.entities) for ring in (fault.path, *fault.rings))


def second_pages_of(run: Run) -> int:
    """Counts pages about second incidents: one outage pages once."""
    return sum(incident.is_called for incident in second_incidents(run))


def _ranked(verdict: Verdict, within: int) -> bool:
    return verdict.rank is not None and verdict.rank <= within


def _share(answers: Iterable[bool]) -> float | None:
    known = list(answers)
    return sum(known) / len(known) if known else None


def _quantile(detected: Sequence[Verdict], share: float) -> float | None:
    """Returns the median, or the smallest delay that at least ``share`` of the verdicts do not exceed."""
    delays = sorted(verdict.delay for verdict in detected if verdict.delay is not None)
    if not delays:
        return None
    return median(delays) if share == 0.5 else delays[math.ceil(share * len(delays)) - 1]


def _folding(storms: Sequence[Run], counted: Callable[[Run], int]) -> float | None:
    fired = sum(run.alerts for run in storms)
    return 1.0 - sum(counted(run) for run in storms) / fired if fired else None


def _by_storm(storms: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Returns folding and grouping of each storm, pooled over its runs on several seeds."""
    groups: dict[str, list[Run]] = {}
    for run in storms:
        groups.setdefault(run.scenario, []).append(run)
    return {
        scenario: {
            "alerts": sum(run.alerts for run in groups[scenario]),
            "pages": sum(pages_of(run) for run in groups[scenario]),
            "incidents_paged": sum(called_of(run) for run in groups[scenario]),
            "folding_ratio": _folding(groups[scenario], pages_of),
            "folding_ratio_by_incident": _folding(groups[scenario], called_of),
            **sum((pairs_of(run, GRACE) for run in groups[scenario]), Pairs()).figures(),
        }
        for scenario in sorted(groups)
    }


def _remediated(detected: Iterable[Verdict]) -> float | None:
    return _share(repaired(verdict) for verdict in detected if has_remedy(verdict.injected.fault))


def _is_endable(verdict: Verdict) -> bool:
    """Returns True if an automatic action can end this event within five minutes."""
    fault = verdict.injected
    return has_remedy(fault.fault) and fault.harmed and fault.fault not in beyond_repair()


def _beyond_repair(detected: Iterable[Verdict]) -> dict[str, dict[str, Any]]:
    """Returns the faults with a remedy that cannot end them, with their number of events and the reason."""
    result: dict[str, dict[str, Any]] = {}
    for verdict in detected:
        fault = verdict.injected
        if not has_remedy(fault.fault) or _is_endable(verdict):
            continue
        reason = beyond_repair().get(fault.fault, "This event had no impact on the service.")
        row = result.setdefault(fault.fault, {"events": 0, "reason": reason})
        row["events"] += 1
    return dict(sorted(result.items()))


def _remedies(detected: Iterable[Verdict]) -> dict[str, int]:
    """Returns the number of events that each action kind ended within five minutes."""
    kinds = [verdict.remedied_by for verdict in detected if repaired(verdict) and verdict.remedied_by]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def harmful_actions(run: Run) -> tuple[ScoredAction, ...]:
    """Returns actions that took capacity from something healthy, in a scenario without a fault or with look-alikes."""
    return off_path_actions(run) if run.negative or run.lookalike else ()


def off_path_actions(run: Run) -> tuple[ScoredAction, ...]:
    """Returns actions that took capacity from something that no active fault reached."""
    return tuple(
        act
        for act in run.acted
        if act.takes_capacity
        and not any(fault.start <= act.at <= fault.end + GRACE and act.target in fault.path for fault in run.injected)
    )


def repaired(verdict: Verdict) -> bool:
    """Returns True if the service recovered by an allowed action within five minutes of the fault's start."""
    return verdict.repaired_after is not None and verdict.repaired_after <= REPAIRED_WITHIN.total_seconds()


def _by_fault(judged: Sequence[Verdict]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Verdict]] = {}
    for verdict in judged:
        groups.setdefault(verdict.injected.fault, []).append(verdict)
    return {fault: _one_fault(fault, groups[fault]) for fault in sorted(groups)}


def _one_fault(fault: str, judged: Sequence[Verdict]) -> dict[str, Any]:
    detected = [verdict for verdict in judged if verdict.incident is not None]
    return {
        "events": len(judged),
        "detected": len(detected),
        "median_delay_seconds": _quantile(detected, 0.5),
        "ac1": _share(_ranked(verdict, 1) for verdict in detected),
        "ac3": _share(_ranked(verdict, 3) for verdict in detected),
        "named_instead": _named_instead(fault, detected),
        "remediated_ratio": _remediated(detected) if has_remedy(fault) else None,
        "remedied_by": _remedies(detected),
        "recover_seconds": _median_recovery(detected),
    }


def _median_recovery(detected: Sequence[Verdict]) -> float | None:
    known = [verdict.repaired_after for verdict in detected if verdict.repaired_after is not None]
    return median(known) if known else None


def _named_instead(fault: str, detected: Iterable[Verdict]) -> dict[str, int]:
    """Returns faults suspected instead, with counts; ``unknown`` without one."""
    counts: dict[str, int] = {}
    for verdict in detected:
        assert verdict.incident is not None
        named = verdict.incident.hypotheses[0][1] if verdict.incident.hypotheses else "unknown"
        if named != fault:
            counts[named] = counts.get(named, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Result of ``outrider drill run`` for the first fault of a run; ``passed`` is about all faults."""

    fault: str
    seed: int
    detected: bool
    detect_seconds: float | None
    named_entity_correct: bool
    named_fault_correct: bool
    notified: bool
    remediated: bool
    recover_seconds: float | None
    pages: int
    false_pages: int
    passed: bool
    truth: Mapping[str, Any] = field(default_factory=dict)


def passed(verdict: Verdict) -> bool:
    """Returns True if a fault was detected, named, and remediated if it has a remedy."""
    named = verdict.entity_correct and verdict.fault_correct
    return named and (repaired(verdict) or not has_remedy(verdict.injected.fault))


def drill_result(run: Run, seed: int, truth: Mapping[str, Any]) -> DrillResult:
    """Returns the result of a run with at least one fault."""
    judged = verdicts(run)
    verdict = judged[0]
    return DrillResult(
        fault=verdict.injected.fault,
        seed=seed,
        detected=verdict.incident is not None,
        detect_seconds=verdict.delay,
        named_entity_correct=verdict.entity_correct,
        named_fault_correct=verdict.fault_correct,
        notified=verdict.incident is not None and verdict.incident.notified_at is not None,
        remediated=verdict.repaired_after is not None,
        recover_seconds=verdict.repaired_after,
        pages=pages_of(run),
        false_pages=false_pages_of(run),
        passed=all(passed(one) for one in judged),
        truth=truth,
    )
