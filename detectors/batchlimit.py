"""batch-misconfigured by the flag itself: the most requests at once were lowered below what engines have run.

A limit that binds only at the peak shows in no queue before the peak comes. So the change speaks: it says what the
limit was and is, and the batches of the day before say what was needed. ``surge`` names the same fault from the queue,
where nobody tells the limit. A limit that is raised again, or a rollback, ends it. A replica that appears takes over
what was noted of its service: a changed flag replaces the pods, and their names with them.

It misleads where the busiest hour lies further back than a day, and where a limit was lowered on purpose.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from detectors.memory import Arrays, align
from detectors.remembering import Remembering
from detectors.verdicts import evidence, finding
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
HALVES_IN_SECONDS = 86400.0  # a peak of yesterday at this hour still counts half
HELD_SECONDS = 86400.0  # whoever leaves a limit for a day means it
# The flag in vLLM, in SGLang, and in Triton, TensorRT-LLM and MindIE: sequences of one engine that run at once.
_LIMIT = re.compile(r"(?i)max[-_]?(?:num[-_]?seqs|running[-_]?requests|batch[-_]?size)[=:\"'\s]{1,3}(\d+)")


class BatchLimitDetector(Remembering):
    """One finding per service whose engines may run fewer requests at once than they have run."""

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
        """As ``judge``, once the replicas that are new have taken over what their service's have seen."""
        return super().detect(_handed_on(state, self.defaults, window.entities, topology), window, topology, now)

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding while the limit of a service is below the batch of its middle replica; silence without values."""
        _note_changes(window, memory, topology, now)
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
                    self._tell(service, needed, limit, before, float(memory["changed_at"][rows].max()), now)
                )
        if np.isnan(memory["busiest"]).all():
            verdicts.append(NoVerdict(self.name, None, NoVerdictReason.NO_VALUES))
        return verdicts

    def _tell(
        self, service: EntityRef, needed: float, limit: float, before: float, since: float, now: datetime
    ) -> Finding:
        told = {"needed": needed, "limit": limit, "before": "-" if np.isnan(before) else f"{before:.0f}"}
        one = evidence(RUNNING.name, needed, "batch_limit_lowered", Interval(None, limit), **told)
        return finding(self.name, service, "batch-misconfigured", score=0.8, since=since, now=now, because=(one,))


def limit_of(flags: str) -> float:
    """The most requests at once that a line of flags sets, NaN where it sets none.

    0 is none: a model of Triton whose ``max_batch_size`` is 0 leaves batches to its engine.
    """
    found = _LIMIT.search(flags)
    return (float(found.group(1)) or float("nan")) if found else float("nan")


def _handed_on(
    state: DetectorState, defaults: dict[str, Any], entities: tuple[EntityRef, ...], topology: Topology
) -> DetectorState:
    """The state with the window's new replicas in it; those that left are still there, if not in the topology."""
    held = align(state, state.entities, defaults)
    known = set(state.entities)
    new = tuple(entity for entity in entities if entity not in known)
    if not new and held["services"].all():
        return state
    together = (*state.entities, *new)
    memory = align(DetectorState(state.version, state.entities, dict(held)), together, defaults)
    noted = np.isfinite(memory["changed_at"]) | ~np.isnan(memory["busiest"])
    unsorted = np.flatnonzero(memory["services"] == 0)
    memory["services"][unsorted] = [_mark(together[row], topology) for row in unsorted]
    heirs = unsorted[(memory["services"][unsorted] != 0) & ~noted[unsorted]]
    if noted.any():
        for mark in np.unique(memory["services"][heirs]):
            same = memory["services"] == mark
            _inherit(memory, heirs[same[heirs]], np.flatnonzero(noted & same))
    return DetectorState(state.version, together, memory)


def _mark(replica: EntityRef, topology: Topology) -> int:
    """A number for the services of a replica, 0 where it has none."""
    services = sorted(service.key for service in topology.above(replica, EntityKind.SERVICE))
    return zlib.crc32("|".join(services).encode()) if services else 0


def _inherit(memory: Arrays, heirs: np.ndarray, elders: np.ndarray) -> None:
    """The middle batch of a service's replicas, and the newest change that they noted."""
    if not elders.size:
        return
    batches = memory["busiest"][elders]
    if not np.isnan(batches).all():
        memory["busiest"][heirs], memory["at"][heirs] = np.nanmedian(batches), np.nanmax(memory["at"][elders])
    newest = elders[memory["changed_at"][elders] == memory["changed_at"][elders].max()]
    for name in ("limit", "before", "changed_at"):
        memory[name][heirs] = memory[name][newest[0]]
    needed = memory["needed"][newest]
    memory["needed"][heirs] = np.nan if np.isnan(needed).all() else np.nanmedian(needed)


def _note_changes(window: Window, memory: Arrays, topology: Topology, now: datetime) -> None:
    """Take up changes of the limit, oldest first; what ran until then is what is needed."""
    place = {entity: row for row, entity in enumerate(window.entities)}
    for event in sorted(window.events, key=lambda one: (one.at, one.id)):
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
    """The busiest batch of each replica, fading by half a day; what a lowered limit lets run does not raise it."""
    if window.times.size == 0:
        return
    running = windows.believed(window, RUNNING)[:, -1]
    now = window.times[-1]
    faded = memory["busiest"] * 0.5 ** ((now - memory["at"]) / HALVES_IN_SECONDS)
    memory["busiest"] = np.fmax(faded, running)
    memory["at"] = np.where(np.isnan(memory["busiest"]), np.nan, now)
