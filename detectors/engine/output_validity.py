"""garbled-output: empty, endlessly repeated or garbled responses, by the service's own count.

Latency does not show this fault. The count is per service; ``invalid_output_source`` finds the replica from how the
share varies with its load, and that replica is named beside the service. If all replicas cause them alike, no single
engine is broken. The service finding then gets half the score, and a falling KPI is reported separately.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from detectors.base.condition_durations import newest, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays, align
from detectors.base.stateful import StatefulDetector
from detectors.engine.invalid_output_source import source
from outrider import windows
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Finding,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    Window,
)
from outrider.topology import Topology

INVALID = "svc_output_invalid_ratio"
REQUESTS = "svc_requests_total"
FINISHED, STARTED = SignalKey("engine_requests_finished_total"), SignalKey("engine_start_time_seconds")
RECENT = timedelta(minutes=2)
SCRAPES = 3
LIMIT = 0.01  # ten times the error budget of 99.9 % valid responses
TIMES_USUAL = 3.0
ANSWERS = 5.0  # fewer invalid responses in two minutes are single prompts
USUAL_SECONDS = 6 * 3600.0
ANSWERS_AGAIN = 20.0  # responses of a replica since the last invalid one, enough to call it healthy
NOWHERE, EVENLY = -1, -2  # instead of a replica's number: undecided, and all of them
EVENLY_SCORE = 0.5  # all replicas alike: no process is broken, and the cause is unknown here


class OutputValidityDetector(StatefulDetector):
    """One verdict per service that counts its invalid responses."""

    name = "validity"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = (SignalKey(INVALID), SignalKey(REQUESTS))
    window = timedelta(minutes=10)
    beside: ClassVar[tuple[EntityKind, tuple[SignalKey, ...]]] = (EntityKind.REPLICA, (FINISHED, STARTED))
    state_version = 3
    defaults: ClassVar[dict[str, Any]] = {
        "usual": np.nan,
        "since": np.nan,
        "place": NOWHERE,
        "share": np.nan,
        "told_at": np.nan,
        "answered": 0.0,
        "counted_at": np.nan,
    }

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """A finding while the share of the last two minutes is far above the target and the usual."""
        columns = windows.recent(window, RECENT)
        ratio, requests = (windows.believed(window, name)[:, columns] for name in (INVALID, REQUESTS))
        known = ~np.isnan(ratio) & ~np.isnan(requests)
        bad = np.where(known, ratio * requests, 0.0).sum(axis=1)
        answers = np.where(known, requests, 0.0).sum(axis=1)
        share = np.divide(bad, answers, out=np.full_like(bad, np.nan), where=answers > 0)
        above = np.nan_to_num(ratio) >= LIMIT
        lasting = (above.sum(axis=1) >= SCRAPES) & (newest(window, window.column(INVALID)) >= LIMIT / 2)
        ill = lasting & (bad >= ANSWERS) & (share >= LIMIT) & ~(share < TIMES_USUAL * memory["usual"])
        # the start of the condition stays after its columns leave the two minutes
        begun = window.times[columns][np.argmax(above, axis=1)] if above.shape[1] else memory["since"]
        memory["since"] = np.where(ill, np.fmin(memory["since"], begun), np.nan)
        verdicts: list[Finding | NoVerdict] = []
        for row in np.flatnonzero(ill):
            value = float(share[row])
            item = evidence(
                INVALID, value, "answers_invalid", Interval(None, LIMIT), ratio=value, answers=float(bad[row])
            )
            since = float(memory["since"][row])
            entity, fault = window.entities[row], "garbled-output"
            verdicts.append(finding(self.name, entity, fault, score=0.9, since=since, now=now, evidence_items=(item,)))
        step = window.step.total_seconds() / USUAL_SECONDS
        held = np.where(np.isnan(memory["usual"]), np.minimum(share, LIMIT), memory["usual"])
        learns = ~ill & ~np.isnan(share)
        memory["usual"] = np.where(learns, held + step * (share - held), memory["usual"])
        verdicts.extend(no_verdicts(self.name, window.entities, window.column_status(INVALID), np.isnan(share)))
        return verdicts

    def wants_beside(self, state: DetectorState, verdicts: Sequence[Finding | NoVerdict]) -> bool:
        """True while responses are invalid, or an affected replica is stored."""
        remembered = state.arrays.get("place", np.full(0, NOWHERE))  # missing in a damaged checkpoint
        return any(isinstance(verdict, Finding) for verdict in verdicts) or bool((remembered != NOWHERE).any())

    def placed(
        self,
        state: DetectorState,
        verdicts: Sequence[Finding | NoVerdict],
        window: Window,
        replicas: Window,
        topology: Topology,
        now: datetime,
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """The verdicts, with the affected replica named beside the service.

        ``replicas`` holds their finished responses and start times. A named replica stays until another has a higher
        score. The health of a replica without responses since then is unknown.
        """
        memory = align(state, window.entities, self.defaults)
        findings_by_service = {verdict.entity: verdict for verdict in verdicts if isinstance(verdict, Finding)}
        result: list[Finding | NoVerdict] = [verdict for verdict in verdicts if not isinstance(verdict, Finding)]
        for row, service in enumerate(window.entities):
            finding_of, place = findings_by_service.get(service), int(memory["place"][row])
            if finding_of is None and place < 0:
                memory["place"][row] = NOWHERE
                continue
            members = _members(service, replicas, topology)
            if finding_of is not None:
                memory["answered"][row], memory["counted_at"][row] = 0.0, window.times[-1]
                self._look(memory, row, finding_of, window, replicas, members)
            at = _replica_at(memory, row, replicas, members)
            if finding_of is not None:
                evenly = memory["place"][row] == EVENLY
                result.append(replace(finding_of, score=EVENLY_SCORE) if evenly else finding_of)
                if at is not None:
                    share = float(memory["share"][row])
                    result.append(self._of_replica(finding_of, replicas.entities[at], share, now))
            elif at is not None and _answered(memory, row, replicas, at) < ANSWERS_AGAIN:
                result.append(NoVerdict(self.name, replicas.entities[at], NoVerdictReason.NO_VALUES))
            else:
                memory["place"][row] = NOWHERE
        return DetectorState(self.state_version, window.entities, memory), tuple(result)

    def _look(
        self, memory: Arrays, row: int, verdict: Finding, window: Window, replicas: Window, members: list[int]
    ) -> None:
        """Stores the origin of a service's invalid responses, if it can be decided."""
        times, here, there = np.intersect1d(window.times, replicas.times, return_indices=True)
        since = times >= verdict.window.start.timestamp()
        ratio = windows.believed(window, INVALID)[row, here[since]]
        place = source(ratio, windows.believed(replicas, FINISHED)[members][:, there[since]])
        if place.replica is not None:
            memory["place"][row] = _mark(replicas.entities[members[place.replica]])
            memory["share"][row], memory["told_at"][row] = place.share, window.times[-1]
        elif place.evenly:
            memory["place"][row] = EVENLY

    def _of_replica(self, verdict: Finding, replica: EntityRef, share: float, now: datetime) -> Finding:
        item = evidence(INVALID, share, "answers_of_replica", Interval(None, LIMIT), share=share)
        since = verdict.window.start.timestamp()
        evidence_items = (item, *verdict.evidence)
        return finding(
            self.name,
            replica,
            "garbled-output",
            score=verdict.score,
            since=since,
            now=now,
            evidence_items=evidence_items,
        )


def _members(service: EntityRef, replicas: Window, topology: Topology) -> list[int]:
    """The rows of a service's replicas."""
    members = set(topology.below(service, EntityKind.REPLICA))
    return [number for number, entity in enumerate(replicas.entities) if entity in members]


def _replica_at(memory: Arrays, row: int, replicas: Window, members: list[int]) -> int | None:
    """The row of the stored replica; None if there is none, or if another process runs there by now."""
    place = int(memory["place"][row])
    at = next((number for number in members if place >= 0 and _mark(replicas.entities[number]) == place), None)
    if at is None:
        return None
    started = windows.last_value(replicas, STARTED)[at]
    if started > memory["told_at"][row]:
        memory["place"][row] = NOWHERE
        return None
    return at


def _answered(memory: Arrays, row: int, replicas: Window, at: int) -> float:
    """Responses of a replica since the last invalid one of its service. Changes ``memory``."""
    new = ~(replicas.times <= memory["counted_at"][row])  # a damaged checkpoint lacks the timestamp
    if new.any():
        memory["answered"][row] += np.nan_to_num(replicas.column(FINISHED)[at, new]).sum()
        memory["counted_at"][row] = replicas.times[-1]
    return float(memory["answered"][row])


def _mark(replica: EntityRef) -> int:
    """A number for a replica, so that the state of services can hold it in an array."""
    return zlib.crc32(replica.key.encode())
