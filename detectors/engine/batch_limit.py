"""batch-misconfigured, from the flag: the limit of concurrent requests was lowered below past batch sizes.

A limit that binds only at the peak causes no queue before the peak. The change event gives the old and the new limit;
the batches of the last day give the need. ``surge`` names the same fault from the queue if the limit is unknown. A
raised limit or a rollback ends the finding. A new replica inherits the records of its service, since changed flags
replace pods and their names. Records outlive the last replica by a day, so that all pods may leave before new ones
start.

Misleading if the busiest hour is more than a day ago, or if the limit was lowered on purpose.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays, align
from detectors.base.stateful import StatefulDetector
from outrider import windows
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Finding,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    Window,
)
from outrider.topology import Topology

RUNNING = SignalKey("engine_requests_running")
HALVES_IN_SECONDS = 86400.0  # yesterday's peak at this hour still counts half
HELD_SECONDS = 86400.0  # a limit that stays for a day is intended
_KEPT = "kept_"  # prefix of arrays with a row per service without replicas
# The flag in vLLM, in SGLang, and in Triton, TensorRT-LLM and MindIE: concurrent sequences of one engine.
_LIMIT = re.compile(r"(?i)max[-_]?(?:num[-_]?seqs|running[-_]?requests|batch[-_]?size)[=:\"'\s]{1,3}(\d+)")


class BatchLimitDetector(StatefulDetector):
    """One finding per service whose engines may run fewer concurrent requests than before."""

    name = "batch-limit"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = (RUNNING,)
    window = timedelta(minutes=10)
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {
        "services": 0,
        "busiest": np.nan,
        "at": np.nan,
        "needed": np.nan,
        "limit": np.nan,
        "before": np.nan,
        "changed_at": -np.inf,
    }

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """As ``judge``, after new replicas have inherited the records of their service."""
        kept = _stored_records(state, self.defaults, now.timestamp())
        _note_changes(window, kept, _services_without(window, kept, state, topology), topology, now)
        inherited = _inherited(state, kept, self.defaults, window.entities, topology)
        state, verdicts = super().detect(inherited, window, topology, now)
        return replace(
            state, arrays={**state.arrays, **{_KEPT + name: value for name, value in kept.items()}}
        ), verdicts

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding while a service's limit is below the batch of its median replica; NoVerdict without values."""
        _note_changes(window, memory, {entity: row for row, entity in enumerate(window.entities)}, topology, now)
        _note_batches(window, memory)
        verdicts: list[Finding | NoVerdict] = []
        lasting = now.timestamp() - memory["changed_at"] <= HELD_SECONDS
        lowered = np.flatnonzero(lasting & ~np.isnan(memory["limit"]) & ~np.isnan(memory["needed"]))
        services: dict[EntityRef, list[int]] = defaultdict(list)
        for row in lowered:
            for service in topology.above(window.entities[row], EntityKind.SERVICE):
                services[service].append(int(row))
        for service, rows in services.items():
            needed, limit = float(np.median(memory["needed"][rows])), float(memory["limit"][rows].min())
            if needed > limit:
                before = float(memory["before"][rows].max())
                verdicts.append(
                    self._finding(service, needed, limit, before, float(memory["changed_at"][rows].max()), now)
                )
        if np.isnan(memory["busiest"]).all():
            verdicts.append(NoVerdict(self.name, None, NoVerdictReason.NO_VALUES))
        return verdicts

    def _finding(
        self, service: EntityRef, needed: float, limit: float, before: float, since: float, now: datetime
    ) -> Finding:
        arguments = {"needed": needed, "limit": limit, "before": "-" if np.isnan(before) else f"{before:.0f}"}
        item = evidence(RUNNING.name, needed, "batch_limit_lowered", Interval(None, limit), **arguments)
        return finding(
            self.name, service, "batch-misconfigured", score=0.8, since=since, now=now, evidence_items=(item,)
        )


def limit_of(flags: str) -> float:
    """The limit of concurrent requests in a line of flags, NaN if it sets none.

    0 means no limit: Triton with ``max_batch_size`` 0 leaves batching to its engine.
    """
    result = _LIMIT.search(flags)
    return (float(result.group(1)) or float("nan")) if result else float("nan")


def _inherited(
    state: DetectorState, kept: Arrays, defaults: dict[str, Any], entities: tuple[EntityRef, ...], topology: Topology
) -> DetectorState:
    """The state including the window's new replicas, which inherit the records of their service.

    Records of departed replicas stay in ``kept`` until new ones of the service appear. Changes ``kept``.
    """
    held = align(state, state.entities, defaults)
    if entities == state.entities and held["services"].all():
        return state
    known, present = set(state.entities), set(entities)
    gone = np.array([entity not in present for entity in state.entities], dtype=np.bool_)
    new = tuple(entity for entity in entities if entity not in known)
    together = (*state.entities, *new)
    memory = align(DetectorState(state.version, state.entities, dict(held)), together, defaults)
    noted = np.isfinite(memory["changed_at"]) | ~np.isnan(memory["busiest"])
    unsorted = np.flatnonzero(memory["services"] == 0)
    memory["services"][unsorted] = [_mark(together[row], topology) for row in unsorted]
    for mark in np.unique(memory["services"][np.flatnonzero(gone)]):
        _keep(kept, int(mark), memory, np.flatnonzero(noted & (memory["services"] == mark)))
    heirs = unsorted[(memory["services"][unsorted] != 0) & ~noted[unsorted]]
    for mark in np.unique(memory["services"][heirs]):
        same = memory["services"] == mark
        elders = np.flatnonzero(noted & same)
        place = np.flatnonzero(kept["services"] == mark)
        source, rows = (memory, elders) if elders.size else (kept, place)
        _inherit(memory, heirs[same[heirs]], source, rows)
    return DetectorState(state.version, together, memory)


def _stored_records(state: DetectorState, defaults: dict[str, Any], now: float) -> Arrays:
    """Records per service, one row each, as copies; drops those older than a day."""
    held = {name: state.arrays.get(_KEPT + name) for name in defaults}
    arrays = {name: item.copy() for name, item in held.items() if item is not None and item.ndim == 1}
    if len(arrays) < len(defaults) or len({array.size for array in arrays.values()}) > 1:
        return {name: np.full(0, value) for name, value in defaults.items()}
    fresh = now - np.fmax(arrays["at"], arrays["changed_at"]) <= HELD_SECONDS
    return {name: array[fresh] for name, array in arrays.items()}


def _keep(kept: Arrays, mark: int, memory: Arrays, rows: np.ndarray) -> None:
    """Stores the records of a service's replicas. Changes ``kept``."""
    if not rows.size or not mark:
        return
    others = kept["services"] != mark
    for name, value in kept.items():
        kept[name] = np.append(value[others], memory[name][rows[:1]])
    _inherit(kept, np.array([kept["services"].size - 1]), memory, rows)


def _mark(replica: EntityRef, topology: Topology) -> int:
    """A number for the services of a replica, 0 if it has none."""
    services = topology.above(replica, EntityKind.SERVICE) if replica.kind is EntityKind.REPLICA else (replica,)
    keys = sorted(service.key for service in services)
    return zlib.crc32("|".join(keys).encode()) if keys else 0


def _inherit(memory: Arrays, heirs: np.ndarray, source: Arrays, elders: np.ndarray) -> None:
    """The median batch of a service's replicas, and their newest change."""
    if not elders.size:
        return
    batches = source["busiest"][elders]
    if not np.isnan(batches).all():
        memory["busiest"][heirs], memory["at"][heirs] = np.nanmedian(batches), np.nanmax(source["at"][elders])
    newest = elders[source["changed_at"][elders] == source["changed_at"][elders].max()]
    for name in ("limit", "before", "changed_at"):
        memory[name][heirs] = source[name][newest[0]]
    needed = source["needed"][newest]
    memory["needed"][heirs] = np.nan if np.isnan(needed).all() else np.nanmedian(needed)


def _services_without(window: Window, kept: Arrays, state: DetectorState, topology: Topology) -> dict[EntityRef, int]:
    """Rows of stored services by service, if no replica is present; empty in nearly every cycle."""
    if not kept["services"].size or not any(event.kind is EventKind.CHANGE for event in window.events):
        return {}
    present = set(window.entities) & set(state.entities)
    ours = align(state, state.entities, {"services": 0})["services"]
    manned = {int(mark) for entity, mark in zip(state.entities, ours, strict=True) if entity in present}
    rows = {int(mark): row for row, mark in enumerate(kept["services"]) if int(mark) not in manned}
    marks = {_mark(service, topology): service for service in topology.of_kind(EntityKind.SERVICE)}
    return {marks[mark]: row for mark, row in rows.items() if mark in marks}


def _note_changes(
    window: Window, memory: Arrays, place: dict[EntityRef, int], topology: Topology, now: datetime
) -> None:
    """Applies changes of the limit, oldest first; past batch sizes become the need."""
    for event in sorted(window.events, key=lambda item: (item.at, item.id)):
        if event.kind is not EventKind.CHANGE or event.at > now or event.code not in ("flags", "rollback"):
            continue
        reached = topology.causes_of(event.entity) | topology.affected_by(event.entity)
        rows = np.array([place[entity] for entity in reached if entity in place], dtype=np.intp)
        rows = rows[memory["changed_at"][rows] < event.at.timestamp()]
        if rows.size:
            _take(event, rows, memory)


def _take(event: Event, rows: np.ndarray, memory: Arrays) -> None:
    before, after = (limit_of(event.attributes.get(name, "")) for name in ("from", "to"))
    if event.code == "flags" and np.isnan(after) and np.isnan(before):
        return  # another flag
    lowered = event.code == "flags" and not np.isnan(after) and not after >= before
    memory["changed_at"][rows] = event.at.timestamp()
    memory["limit"][rows] = after if lowered else np.nan
    memory["before"][rows] = before
    memory["needed"][rows] = memory["busiest"][rows]


def _note_batches(window: Window, memory: Arrays) -> None:
    """The busiest batch of each replica, decaying over half a day; a lowered limit does not raise it."""
    if window.times.size == 0:
        return
    running = windows.believed(window, RUNNING)[:, -1]
    now = window.times[-1]
    faded = memory["busiest"] * 0.5 ** ((now - memory["at"]) / HALVES_IN_SECONDS)
    memory["busiest"] = np.fmax(faded, running)
    memory["at"] = np.where(np.isnan(memory["busiest"]), np.nan, now)
