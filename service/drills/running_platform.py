"""Drills on a running platform: injected over HTTP, stored, and scored from the stored decisions."""

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
from simulator.scoring.run import InjectedFault, Run, ScoredIncident
from simulator.scoring.score import GRACE, LOUD, Verdict, has_remedy, repaired, verdicts

BY_HAND = "by_hand"
ANNOUNCED = "k8s-"  # ids of drills that someone else injects: outrider drill run --kubernetes


def start(
    state: StateStore,
    control: FaultControl,
    order: dict[str, Any],
    *,
    by: str,
    now: datetime,
    game_day: str | None = None,
) -> Drill:
    """Injects a fault now and stores its ground truth, with the current dependency path of the faulty entity.

    Raises UsageError if the fleet refuses it, UnavailableError if the fleet does not respond. Both are audited.
    """
    try:
        injected = control.start(order)
    except OutriderError as error:
        detail = {"error": error.message}
        refused = AuditRecord(now, AuditEvent.DRILL_REFUSED, order["fault"], game_day or BY_HAND, by=by, detail=detail)
        state.append_audit([refused])
        raise
    truth = _truth(injected)
    drill = Drill(
        id=injected["id"],
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


def announce(state: StateStore, drill: Drill, known: Sequence[Drill]) -> Drill:
    """Stores a drill that someone else injects, so that its messages are marked and its result is scored.

    Raises UsageError if one of the ``known`` drills is running, or has its id.
    """
    if any(other.id == drill.id or other.running(drill.starts_at) for other in known):
        raise UsageError("another drill is running", hint="GET /api/v1/drills lists it; end it first")
    truth = Truth(drill.fault, drill.entity, drill.starts_at, drill.ends_at, drill.symptoms)
    path = tuple(sorted(observation.path_of(truth, state.topology()), key=lambda entity: entity.key))
    stored = replace(drill, path=path)
    state.save_drill(stored)
    _audit(state, AuditEvent.DRILL_STARTED, stored, stored.starts_at, stored.by)
    return stored


def is_announced(drill_id: str) -> bool:
    """True for a drill that this platform did not inject."""
    return drill_id.startswith(ANNOUNCED)


def stop(state: StateStore, control: FaultControl | None, drill: Drill, *, by: str, now: datetime) -> Drill:
    """Ends a drill early. ``control`` None: its injector ends the fault. Raises UsageError if it is over."""
    if drill.stopped_at is not None or now >= drill.ends_at:
        raise UsageError(f"the drill {drill.id!r} is over", hint="GET /api/v1/drills lists the end of each drill")
    if control is not None:
        control.stop(drill.id)
    stopped = replace(drill, stopped_at=max(now, drill.starts_at))
    state.save_drill(stopped)
    _audit(state, AuditEvent.DRILL_STOPPED, stopped, now, by)
    return stopped


def judge(state: StateReader, drills: Sequence[Drill], faults: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns each drill with its ground truth and its findings. ``faults`` are those listed by the fleet.

    ``drills`` must be all drills, because an incident counts for one fault only.
    """
    if not drills:
        return []
    known = {fault["id"]: fault for fault in faults}
    first = min(drill.starts_at for drill in drills)
    scored = observation.scored_incidents(state, since=first)
    incidents = tuple(incident for incident in scored if incident.opened_at >= first)
    injected = {drill.id: _injected(drill, known.get(drill.id, {})) for drill in drills}
    run = Run(
        scenario="live",
        start=first,
        end=max(drill.over_at for drill in drills),
        targets=0,
        injected=tuple(injected[drill.id] for drill in drills if not drill.negative),
        incidents=incidents,
        alerts=0,
        acted=observation.performed_actions(state, since=first),
    )
    by_fault = {
        (verdict.injected.fault, verdict.injected.entity, verdict.injected.start): verdict for verdict in verdicts(run)
    }
    matched = {verdict.incident.id for verdict in by_fault.values() if verdict.incident is not None}
    unmatched = [incident for incident in incidents if incident.id not in matched]
    verdict_of = {
        drill.id: _negative_verdict(injected[drill.id], unmatched)
        if drill.negative
        else by_fault[drill.fault, drill.entity, drill.starts_at]
        for drill in drills
    }
    return [drill_json(drill, verdict_of[drill.id]) for drill in drills]


def drill_json(drill: Drill, verdict: Verdict) -> dict[str, Any]:
    """Returns a drill with ground truth and findings. A negative one passes without a high-priority incident."""
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
        "recovered_at": serialization.instant(verdict.injected.recovered_at),
        "detected": incident is not None,
        "detect_seconds": verdict.delay,
        "incident": incident.id if incident else None,
        "suspected_cause": {"entity": serialization.entity(cause[0]), "fault": cause[1]} if cause else None,
        "named_entity_correct": verdict.entity_correct,
        "named_fault_correct": verdict.fault_correct,
        "rank": verdict.rank,
        "notified": _was_notified(incident),
        "remediated": verdict.repaired_after is not None,
        "recover_seconds": verdict.repaired_after,
        "passed": right,
    }


def _was_notified(incident: ScoredIncident | None) -> bool:
    return incident is not None and incident.notified_at is not None


def _negative_verdict(state: InjectedFault, unmatched: Sequence[ScoredIncident]) -> Verdict:
    """Returns the verdict on a state that is not a fault; its ``incident`` should not have opened."""
    false_incidents = (
        incident
        for incident in sorted(unmatched, key=lambda incident: (incident.opened_at, incident.id))
        if incident.priority in LOUD
        and state.start <= incident.opened_at <= state.end + GRACE
        and not state.path.isdisjoint(incident.entities)
    )
    return Verdict("live", state, next(false_incidents, None), None, False, False, False, None)


def _injected(drill: Drill, known: Mapping[str, Any]) -> InjectedFault:
    """Returns a drill for scoring. ``known`` is the injector's record of it, empty if it has none."""
    return InjectedFault(
        drill.fault,
        drill.entity,
        drill.starts_at,
        drill.over_at,
        frozenset({drill.entity, *drill.path}),
        _instant(known.get("recovered_at")),
        repaired_by=observation.repairing_kinds(drill.fault),
        pod_created_at=_instant(known.get("pod_created_at")),
        newest_pod_at=_instant(known.get("newest_pod_at")),
        harmed=known.get("harmed", True),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else parse_rfc3339(text)


def _truth(injected: Mapping[str, Any]) -> Truth:
    return Truth(
        injected["fault"],
        _entity(injected["entity"]),
        parse_rfc3339(injected["start"]),
        parse_rfc3339(injected["end"]),
        tuple(injected["symptoms"]),
        tuple(_entity(entity) for entity in injected["touches"]),
        injected["negative"],
    )


def _entity(fields: Mapping[str, Any]) -> EntityRef:
    return EntityRef(fields["cluster"], EntityKind(fields["kind"]), fields["namespace"], fields["name"])


def _audit(state: StateStore, event: AuditEvent, drill: Drill, at: datetime, by: str) -> None:
    state.append_audit([AuditRecord(at, event, drill.id, drill.game_day or BY_HAND, by=by)])
