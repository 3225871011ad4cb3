"""Charts of an incident: signals of the suspected cause against its peers, and its impact.

The evidence of the hypothesis selects the signals first, then the kind of the cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from outrider.clock import parse_rfc3339, rfc3339
from outrider.documents import serialization
from outrider.model import EntityKind, EntityRef, Floats, Incident, SignalKey, SignalKind
from outrider.ports import MetricStore
from outrider.topology import Topology
from outrider.vocabulary import catalog

BEFORE, LEAST_BEFORE, AFTER = timedelta(minutes=30), timedelta(minutes=5), timedelta(minutes=15)
LONGEST = timedelta(hours=6)
POINTS = 240
_STEPS = (15, 30, 60, 120, 300, 600, 1800, 3600)
_CHARTS, _LINES, _PEERS = 8, 6, 200

# Most informative signals per kind, for a hypothesis without signals of its own.
_DEFAULT_SIGNALS: dict[EntityKind, tuple[str, ...]] = {
    EntityKind.GPU: ("hw_accel_utilization_ratio", "hw_accel_temperature_celsius", "hw_accel_core_clock_hertz"),
    EntityKind.NODE: ("hw_accel_present", "node_ready"),
    EntityKind.POD: ("pod_ready", "pod_restarts"),
    EntityKind.REPLICA: (
        "engine_up",
        "engine_requests_running",
        "engine_requests_waiting",
        "engine_generation_tokens_per_second",
    ),
    EntityKind.SERVICE: ("svc_requests_per_second", "svc_success_ratio", "svc_ttft_seconds", "svc_queue_requests"),
}
_RELATED_KINDS: dict[EntityKind, tuple[EntityKind, ...]] = {
    EntityKind.GPU: (EntityKind.NODE, EntityKind.REPLICA),
    EntityKind.NODE: (EntityKind.REPLICA,),
    EntityKind.POD: (EntityKind.REPLICA,),
    EntityKind.REPLICA: (),
    EntityKind.SERVICE: (EntityKind.REPLICA,),
}


@dataclass(frozen=True, slots=True)
class ChartRequest:
    """One chart: a signal of some entities, of the cause itself or of those it affects."""

    signal: str
    role: str
    entities: tuple[EntityRef, ...]
    peers: tuple[EntityRef, ...] = ()


def charts(
    incident: Incident, topology: Topology, metrics: MetricStore, now: datetime, interval: timedelta
) -> dict[str, Any]:
    """Charts of an incident. Charts without a value are omitted; no step is shorter than a cycle."""
    start, end = span(incident, now)
    step = max(interval, step_for(end - start))
    drawn = [chart(wanted, metrics, start, end, step) for wanted in choose(incident, topology)]
    return {
        "incident": incident.id,
        "start": _first_value(drawn, rfc3339(incident.opened_at - LEAST_BEFORE)) or rfc3339(start),
        "end": rfc3339(end),
        "opened_at": rfc3339(incident.opened_at),
        "resolved_at": serialization.instant(incident.resolved_at),
        "step_seconds": step.total_seconds(),
        "charts": [item for item in drawn if item["series"]],
    }


def _first_value(drawn: list[dict[str, Any]], latest: str) -> str | None:
    """Start of the charts: the first value of any of them, but at least some minutes before the incident."""
    firsts = [
        next((at for at, value in zip(item["times"], line["values"], strict=True) if value is not None), latest)
        for item in drawn
        for line in item["series"]
    ]
    return min([*firsts, latest], key=parse_rfc3339) if firsts else None


def span(incident: Incident, now: datetime) -> tuple[datetime, datetime]:
    """From half an hour before the incident until now, or shortly after it resolved; at most 6 h."""
    end = min(now, incident.resolved_at + AFTER) if incident.resolved_at else now
    start = incident.opened_at - BEFORE
    return start, max(start + BEFORE, min(end, start + LONGEST)) + timedelta(seconds=1)


def step_for(length: timedelta, points: int = POINTS) -> timedelta:
    """Shortest usual step that keeps a chart within ``points``."""
    wanted = length.total_seconds() / points
    return timedelta(seconds=next((step for step in _STEPS if step >= wanted), _STEPS[-1]))


def choose(incident: Incident, topology: Topology) -> list[ChartRequest]:
    """Selected charts, those of the cause first."""
    cause = incident.suspected_cause
    chosen: list[ChartRequest] = []
    if cause is not None:
        named = [item.signal for item in cause.evidence if catalog.known(item.signal)]
        near = _RELATED_KINDS.get(cause.entity.kind, ())
        for name in _unique([*named, *_DEFAULT_SIGNALS.get(cause.entity.kind, ())])[:4]:
            chosen += _about(name, cause.entity, topology)
        for kind in near:
            chosen += [w for name in _DEFAULT_SIGNALS[kind][:2] for w in _about(name, cause.entity, topology, kind)]
    services = _services(incident, topology)
    chosen += [
        ChartRequest(name, "service", services[:_LINES]) for name in _DEFAULT_SIGNALS[EntityKind.SERVICE] if services
    ]
    seen: dict[str, ChartRequest] = {}
    for wanted in chosen:
        seen.setdefault(wanted.signal, wanted)
    return _balanced(list(seen.values()))


def _balanced(chosen: list[ChartRequest]) -> list[ChartRequest]:
    """Half of the charts for the cause, half for the impact on users."""
    impact = [wanted for wanted in chosen if wanted.role == "service"][: _CHARTS // 2]
    return [wanted for wanted in chosen if wanted.role != "service"][: _CHARTS - len(impact)] + impact


def _about(name: str, cause: EntityRef, topology: Topology, kind: EntityKind | None = None) -> list[ChartRequest]:
    about = kind or catalog.signal(name).entity
    if about is cause.kind:
        peers = tuple(each for each in topology.of_kind(cause.kind) if each != cause)
        return [ChartRequest(name, "cause", (cause,), peers[:_PEERS])]
    reached = topology.above(cause, about) or topology.below(cause, about)
    return [ChartRequest(name, "reached", reached[:_LINES])] if reached else []


def _services(incident: Incident, topology: Topology) -> tuple[EntityRef, ...]:
    cause = incident.suspected_cause
    if cause is not None and topology.above(cause.entity, EntityKind.SERVICE):
        return topology.above(cause.entity, EntityKind.SERVICE)
    named = frozenset(incident.services)
    return tuple(
        service for service in topology.of_kind(EntityKind.SERVICE) if {service.key, str(service), service.name} & named
    )


def chart(
    wanted: ChartRequest, metrics: MetricStore, start: datetime, end: datetime, step: timedelta
) -> dict[str, Any]:
    """Series of one chart: one per entity, and the median of the peers if there are any."""
    signal = catalog.signal(wanted.signal)
    quantile = 0.99 if signal.kind is SignalKind.HISTOGRAM else None
    key = SignalKey(wanted.signal, quantile=quantile)
    entities = (*wanted.entities, *wanted.peers)
    window = metrics.read_windows(entities[0].kind, [key], start, end, step, entities)
    values = window.column(key)
    row_of = {entity: row for row, entity in enumerate(window.entities)}
    lines = [_line(entity, wanted.role, values[row_of[entity]]) for entity in wanted.entities if entity in row_of]
    rows = [row_of[entity] for entity in wanted.peers if entity in row_of]
    if rows:
        lines.append(_line(None, "peers", _median(values[rows])))
    return {
        "signal": wanted.signal,
        "quantile": quantile,
        "unit": signal.unit,
        "good": signal.good,
        "means": signal.means,
        "layer": signal.layer.value,
        "role": wanted.role,
        "times": serialization.instants(window.times),
        "peers": len(rows),
        "series": [line for line in lines if any(value is not None for value in line["values"])],
    }


def _line(entity: EntityRef | None, role: str, values: Floats) -> dict[str, Any]:
    return {
        "entity": serialization.entity(entity) if entity else None,
        "role": role,
        "values": serialization.numbers(values),
    }


def _median(values: Floats) -> Floats:
    known = ~np.isnan(values).all(axis=0)
    medians = np.full(values.shape[1], np.nan)
    medians[known] = np.nanmedian(values[:, known], axis=0)
    return medians


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
