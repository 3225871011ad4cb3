"""Drills on a running platform: ordered at the fleet's door, kept in the store, judged from what was decided."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from outrider import jsonable
from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import parse_rfc3339
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.ports import Drill, StateReader, StateStore
from outrider.topology import Topology
from service.drills import observe
from service.drills.control import FaultControl
from simulator.score import Injected, Run, Verdict, verdicts


def start(
    state: StateStore, control: FaultControl, order: dict[str, Any], *, by: str, game_day: str | None = None
) -> Drill:
    """Break something and keep the truth. Raises UsageError when the fleet refuses, UnavailableError without one."""
    truth = control.start(order)
    drill = Drill(
        id=truth["id"],
        fault=truth["fault"],
        entity=_entity(truth["entity"]),
        seed=int(order.get("seed", 0)),
        starts_at=parse_rfc3339(truth["start"]),
        ends_at=parse_rfc3339(truth["end"]),
        by=by,
        symptoms=tuple(truth["symptoms"]),
        game_day=game_day,
    )
    state.save_drill(drill)
    _audit(state, AuditEvent.DRILL_STARTED, drill, drill.starts_at, by)
    return drill


def stop(state: StateStore, control: FaultControl, drill: Drill, *, by: str, now: datetime) -> Drill:
    """End a drill before its time. Raises UsageError when it is over."""
    if drill.stopped_at is not None or now >= drill.ends_at:
        raise UsageError(f"the drill {drill.id!r} is over", hint="GET /api/v1/drills shows when each one ended")
    control.stop(drill.id)
    stopped = replace(drill, stopped_at=now)
    state.save_drill(stopped)
    _audit(state, AuditEvent.DRILL_STOPPED, stopped, now, by)
    return stopped


def judged(
    state: StateReader, topology: Topology, drills: tuple[Drill, ...], ordered: list[dict[str, Any]]
) -> list[Any]:
    """Each drill with the truth and what was found of it. ``ordered`` is what the fleet's door says of each."""
    recovered = {one["id"]: one["recovered_at"] for one in ordered}
    if not drills:
        return []
    first = min(drill.starts_at for drill in drills)
    incidents = observe.opened(state, since=first)
    run = Run(
        scenario="live",
        start=first,
        end=max(drill.ends_at for drill in drills),
        targets=0,
        injected=tuple(_injected(drill, topology, recovered.get(drill.id)) for drill in drills),
        incidents=tuple(one for one in incidents if one.opened_at >= first),
        alerts=0,
        acted=observe.acted(state, since=first),
    )
    found = {(one.injected.fault, one.injected.entity, one.injected.start): one for one in verdicts(run)}
    return [
        drill_json(drill, found[drill.fault, drill.entity, drill.starts_at], recovered.get(drill.id))
        for drill in drills
    ]


def drill_json(drill: Drill, verdict: Verdict, recovered_at: str | None) -> dict[str, Any]:
    """A drill with its truth beside what was found."""
    incident = verdict.incident
    cause = incident.hypotheses[0] if incident and incident.hypotheses else None
    return {
        "id": drill.id,
        "fault": drill.fault,
        "entity": jsonable.entity(drill.entity),
        "seed": drill.seed,
        "starts_at": jsonable.instant(drill.starts_at),
        "ends_at": jsonable.instant(drill.stopped_at or drill.ends_at),
        "stopped": drill.stopped_at is not None,
        "by": drill.by,
        "game_day": drill.game_day,
        "symptoms": list(drill.symptoms),
        "recovered_at": recovered_at,
        "detected": incident is not None,
        "detect_seconds": verdict.delay,
        "incident": incident.id if incident else None,
        "suspected_cause": {"entity": jsonable.entity(cause[0]), "fault": cause[1]} if cause else None,
        "named_entity_correct": verdict.entity_correct,
        "named_fault_correct": verdict.fault_correct,
        "rank": verdict.rank,
        "notified": incident is not None and incident.paged_at is not None,
        "remediated": verdict.repaired_after is not None,
        "recover_seconds": verdict.repaired_after,
    }


def _injected(drill: Drill, topology: Topology, recovered_at: str | None) -> Injected:
    path = frozenset({drill.entity}) | topology.affected_by(drill.entity) | topology.causes_of(drill.entity)
    at = None if recovered_at is None else parse_rfc3339(recovered_at)
    return Injected(drill.fault, drill.entity, drill.starts_at, drill.stopped_at or drill.ends_at, path, at)


def _entity(written: dict[str, Any]) -> EntityRef:
    return EntityRef(written["cluster"], EntityKind(written["kind"]), written["namespace"], written["name"])


def _audit(state: StateStore, event: AuditEvent, drill: Drill, at: datetime, by: str) -> None:
    state.append_audit([AuditRecord(at, event, drill.id, drill.game_day or "by_hand", by=by)])
