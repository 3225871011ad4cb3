"""Drills on a running platform: ordered at the fleet's door, kept in the store, judged from what was decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import parse_rfc3339
from outrider.documents import serialization
from outrider.errors import OutriderError, UsageError
from outrider.model import EntityKind, EntityRef
from outrider.ports import StateReader, StateStore
from outrider.records.drill import Drill
from service.drills import observation
from service.drills.control import FaultControl
from simulator.faults import Truth
from simulator.scoring.score import (
    GRACE,
    LOUD,
    InjectedFault,
    Run,
    ScoredIncident,
    Verdict,
    has_remedy,
    repaired,
    verdicts,
)

BY_HAND = "by_hand"


def start(
    state: StateStore,
    control: FaultControl,
    order: dict[str, Any],
    *,
    by: str,
    now: datetime,
    game_day: str | None = None,
) -> Drill:
    """Break something now and keep the truth, with the path of what broke as it is at this moment.

    Raises UsageError when the fleet refuses, UnavailableError when none answers; both are audited.
    """
    try:
        told = control.start(order)
    except OutriderError as error:
        why = {"error": error.message}
        refused = AuditRecord(now, AuditEvent.DRILL_REFUSED, order["fault"], game_day or BY_HAND, by=by, detail=why)
        state.append_audit([refused])
        raise
    truth = _truth(told)
    drill = Drill(
        id=told["id"],
        fault=truth.fault,
        entity=truth.entity,
        seed=int(order.get("seed", 0)),
        starts_at=truth.start,
        ends_at=truth.end,
        by=by,
        symptoms=truth.symptoms,
        game_day=game_day,
        negative=truth.negative,
        path=tuple(sorted(observation.path_of(truth, state.topology()), key=lambda entity: entity.key)),
    )
    state.save_drill(drill)
    _audit(state, AuditEvent.DRILL_STARTED, drill, drill.starts_at, by)
    return drill


def stop(state: StateStore, control: FaultControl, drill: Drill, *, by: str, now: datetime) -> Drill:
    """End a drill before its time. Raises UsageError when it is over."""
    if drill.stopped_at is not None or now >= drill.ends_at:
        raise UsageError(f"the drill {drill.id!r} is over", hint="GET /api/v1/drills shows when each one ended")
    control.stop(drill.id)
    stopped = replace(drill, stopped_at=max(now, drill.starts_at))
    state.save_drill(stopped)
    _audit(state, AuditEvent.DRILL_STOPPED, stopped, now, by)
    return stopped


def judged(state: StateReader, drills: Sequence[Drill], told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each drill with the truth and what was found of it. ``told`` is what the fleet's door says of each.

    One incident answers to one fault, so ``drills`` must be all there are and never a part of them.
    """
    if not drills:
        return []
    recovered = {one["id"]: one["recovered_at"] for one in told}
    first = min(drill.starts_at for drill in drills)
    incidents = tuple(one for one in observation.opened(state, since=first) if one.opened_at >= first)
    injected = {drill.id: _injected(drill, recovered.get(drill.id)) for drill in drills}
    run = Run(
        scenario="live",
        start=first,
        end=max(drill.over_at for drill in drills),
        targets=0,
        injected=tuple(injected[drill.id] for drill in drills if not drill.negative),
        incidents=incidents,
        alerts=0,
        acted=observation.acted(state, since=first),
    )
    found = {(one.injected.fault, one.injected.entity, one.injected.start): one for one in verdicts(run)}
    answered = {one.incident.id for one in found.values() if one.incident is not None}
    free = [one for one in incidents if one.id not in answered]
    verdict_of = {
        drill.id: _of_a_state(injected[drill.id], free)
        if drill.negative
        else found[drill.fault, drill.entity, drill.starts_at]
        for drill in drills
    }
    return [drill_json(drill, verdict_of[drill.id], recovered.get(drill.id)) for drill in drills]


def drill_json(drill: Drill, verdict: Verdict, recovered_at: str | None) -> dict[str, Any]:
    """A drill with its truth beside what was found. A state is passed when nothing loud was opened about it."""
    incident = verdict.incident
    cause = incident.hypotheses[0] if incident and incident.hypotheses else None
    named = verdict.entity_correct and verdict.fault_correct
    right = incident is None if drill.negative else named and (not has_remedy(drill.fault) or repaired(verdict))
    return {
        "id": drill.id,
        "fault": drill.fault,
        "negative": drill.negative,
        "entity": serialization.entity(drill.entity),
        "seed": drill.seed,
        "starts_at": serialization.instant(drill.starts_at),
        "ends_at": serialization.instant(drill.over_at),
        "stopped": drill.stopped_at is not None,
        "by": drill.by,
        "game_day": drill.game_day,
        "symptoms": list(drill.symptoms),
        "recovered_at": recovered_at,
        "detected": incident is not None,
        "detect_seconds": verdict.delay,
        "incident": incident.id if incident else None,
        "suspected_cause": {"entity": serialization.entity(cause[0]), "fault": cause[1]} if cause else None,
        "named_entity_correct": verdict.entity_correct,
        "named_fault_correct": verdict.fault_correct,
        "rank": verdict.rank,
        "notified": _was_told(incident),
        "remediated": verdict.repaired_after is not None,
        "recover_seconds": verdict.repaired_after,
        "passed": right,
    }


def _was_told(incident: ScoredIncident | None) -> bool:
    return incident is not None and incident.notified_at is not None


def _of_a_state(state: InjectedFault, free: Sequence[ScoredIncident]) -> Verdict:
    """The verdict on a state that is no fault: ``incident`` is one that should not have been opened."""
    loud = (
        one
        for one in sorted(free, key=lambda one: (one.opened_at, one.id))
        if one.priority in LOUD
        and state.start <= one.opened_at <= state.end + GRACE
        and not state.path.isdisjoint(one.entities)
    )
    return Verdict("live", state, next(loud, None), None, False, False, False, None)


def _injected(drill: Drill, recovered_at: str | None) -> InjectedFault:
    at = None if recovered_at is None else parse_rfc3339(recovered_at)
    path = frozenset({drill.entity, *drill.path})
    return InjectedFault(drill.fault, drill.entity, drill.starts_at, drill.over_at, path, at)


def _truth(told: Mapping[str, Any]) -> Truth:
    return Truth(
        told["fault"],
        _entity(told["entity"]),
        parse_rfc3339(told["start"]),
        parse_rfc3339(told["end"]),
        tuple(told["symptoms"]),
        tuple(_entity(one) for one in told["touches"]),
        told["negative"],
    )


def _entity(written: Mapping[str, Any]) -> EntityRef:
    return EntityRef(written["cluster"], EntityKind(written["kind"]), written["namespace"], written["name"])


def _audit(state: StateStore, event: AuditEvent, drill: Drill, at: datetime, by: str) -> None:
    state.append_audit([AuditRecord(at, event, drill.id, drill.game_day or BY_HAND, by=by)])
