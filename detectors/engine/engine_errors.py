"""Requests that an engine fails, by cause: a new revision, KV-cache transfers, memory fragmentation.

The engine's own log lines are accepted as they are. If only metrics are available, errors of the new revision's
processes while the old ones are healthy are a bad-rollout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np

from detectors.base.changes import CHANGE_HOLD, changed_at
from detectors.base.condition_durations import Flags, newest
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider import windows
from outrider.model import (
    EntityKind,
    EntityRef,
    EventKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

RECENT = timedelta(minutes=2)
LOG_HOLD = timedelta(minutes=4)  # failures vary with the batch size
TRANSFER_HOLD = timedelta(minutes=2)
TRANSFER_SIGNS = 2  # lines or scrapes; one transfer may fail when its peer restarts
ERROR_RATIO = 0.05
ERRORS = 5.0  # fewer in two minutes are single requests
WELL_RATIO = 0.01  # share of the responses of the old revision
FRAGMENTED, TRANSFER_FAILED = "memory_fragmented", "kv_transfer_failed"
TRANSFERS = "engine_kv_transfer_failures_per_second"
# (failures, all responses) by two counters: the scheduler's and the HTTP server's
_COUNTS = (
    ("engine_requests_failed_total", "engine_requests_finished_total"),
    ("engine_http_failed_total", "engine_http_requests_total"),
)
# Errors belong to the revision until the process is replaced; a terminating replica lacks capacity.
BAD_HOLD = timedelta(minutes=5)
_DEFAULTS: dict[str, float] = {
    "process": np.nan,
    "changed_at": -np.inf,
    "bad_process": np.nan,
    "bad_at": -np.inf,
    "bad_ratio": np.nan,
}


class EngineErrorDetector(StatefulDetector):
    """bad-rollout of a service; kv-transfer-fail and gpu-memory-fragmentation of a replica."""

    name = "engine-errors"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = (
        *(SignalKey(name) for pair in _COUNTS for name in pair),
        SignalKey(TRANSFERS),
        SignalKey("engine_start_time_seconds"),
    )
    window = timedelta(minutes=10)
    state_version = 1
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judges every replica on its newest minutes."""
        started = newest(window, window.column("engine_start_time_seconds"))
        memory["process"] = np.where(np.isnan(started), memory["process"], started)
        memory["changed_at"] = changed_at(window, memory["changed_at"], topology, now)
        lines = _lines(window, memory, topology, now)
        verdicts: list[Finding | NoVerdict] = list(self._fragmentation(window, lines, now))
        verdicts.extend(self._transfers(window, lines, now))
        verdicts.extend(self._rollouts(window, memory, set(lines), topology, now))
        return verdicts

    def _fragmentation(self, window: Window, lines: dict[int, dict[str, list[float]]], now: datetime) -> list[Finding]:
        findings = []
        for row, log_lines in lines.items():
            at = [
                moment
                for moment in log_lines.get(FRAGMENTED, ())
                if moment > now.timestamp() - LOG_HOLD.total_seconds()
            ]
            if at:
                item = evidence(
                    "engine_requests_failed_total", None, "fragmented_lines", lines=len(log_lines[FRAGMENTED])
                )
                since = min(log_lines[FRAGMENTED])
                findings.append(self._finding(window, row, "gpu-memory-fragmentation", 0.9, since, now, (item,)))
        return findings

    def _transfers(self, window: Window, lines: dict[int, dict[str, list[float]]], now: datetime) -> list[Finding]:
        """Failed KV-cache transfers, from the engine's counter or its log."""
        recent = windows.recent(window, RECENT)
        rate = window.column(TRANSFERS)
        scrapes = (np.nan_to_num(rate[:, recent]) > 0).sum(axis=1)
        rows = {int(row) for row in np.flatnonzero(scrapes)} | {row for row in lines if TRANSFER_FAILED in lines[row]}
        findings = []
        for row in sorted(rows):
            log_lines = lines.get(row, {}).get(TRANSFER_FAILED, [])
            fresh = bool(scrapes[row]) or (
                bool(log_lines) and max(log_lines) > now.timestamp() - TRANSFER_HOLD.total_seconds()
            )
            if not fresh or scrapes[row] + len(log_lines) < TRANSFER_SIGNS:
                continue
            first = window.times[np.flatnonzero(np.nan_to_num(rate[row]) > 0)]
            value = float(np.nan_to_num(rate[row, recent]).max(initial=0.0))
            item = evidence(TRANSFERS, value, "transfers_fail", Interval(None, 0.0), rate=value, lines=len(log_lines))
            since = float(min([*log_lines, *first]))
            findings.append(self._finding(window, row, "kv-transfer-fail", 0.9, since, now, (item,)))
        return findings

    def _rollouts(
        self, window: Window, memory: Arrays, explained: set[int], topology: Topology, now: datetime
    ) -> list[Finding]:
        """Services whose new processes fail requests while the old ones do not."""
        share, count = _errors(window)
        recent = now.timestamp() - memory["changed_at"] <= CHANGE_HOLD.total_seconds()
        new: Flags = recent & (memory["process"] >= memory["changed_at"])
        failing: Flags = (share >= ERROR_RATIO) & (count >= ERRORS)
        failing[list(explained)] = False  # their log gives the cause
        bad_now, held = failing & new, _held(memory, now)
        held[list(explained)] = False
        if not (bad_now | held).any():
            return []
        members: dict[EntityRef, list[int]] = defaultdict(list)
        wanted = {
            service
            for row in np.flatnonzero(bad_now | held)
            for service in topology.above(window.entities[row], EntityKind.SERVICE)
        }
        for row in np.flatnonzero(~np.isnan(share) | held):
            for service in topology.above(window.entities[row], EntityKind.SERVICE):
                if service in wanted:
                    members[service].append(int(row))
        findings = []
        for service, rows in members.items():
            bad = [row for row in rows if bad_now[row] or held[row]]
            old = [row for row in rows if not new[row] and not held[row]]
            begins = not held[bad].any()
            if begins and any(share[row] > WELL_RATIO and count[row] >= ERRORS for row in old):
                continue
            fresh = [row for row in bad if bad_now[row]]
            memory["bad_process"][fresh], memory["bad_at"][fresh] = memory["process"][fresh], now.timestamp()
            memory["bad_ratio"][fresh] = np.fmax(memory["bad_ratio"][fresh], share[fresh])
            worst = float(np.nanmax(memory["bad_ratio"][bad]))
            item = evidence(
                "engine_error_ratio",
                worst,
                "new_revision_fails",
                Interval(None, ERROR_RATIO),
                ratio=worst,
                failing=len(bad),
                others=len(old),
            )
            since = float(memory["process"][bad].min())
            findings.append(
                finding(
                    self.name,
                    service,
                    "bad-rollout",
                    score=0.9 if len(bad) > 1 else 0.85,
                    since=since,
                    now=now,
                    evidence_items=(item,),
                )
            )
        return findings

    def _finding(
        self,
        window: Window,
        row: int,
        fault: str,
        score: float,
        since: float,
        now: datetime,
        evidence_items: tuple[Evidence, ...],
    ) -> Finding:
        return finding(
            self.name, window.entities[row], fault, score=score, since=since, now=now, evidence_items=evidence_items
        )


def _lines(window: Window, memory: Arrays, topology: Topology, now: datetime) -> dict[int, dict[str, list[float]]]:
    """Times of the log lines of each row's current process, by code."""
    place = {entity: row for row, entity in enumerate(window.entities)}
    result: dict[int, dict[str, list[float]]] = {}
    for event in window.events:
        if event.kind is not EventKind.LOG or event.code not in (FRAGMENTED, TRANSFER_FAILED) or event.at > now:
            continue
        owners = (event.entity,) if event.entity in place else topology.above(event.entity, EntityKind.REPLICA)
        at = event.at.timestamp()
        for owner in owners:
            row = place.get(owner)
            if row is not None and not at < memory["process"][row]:
                result.setdefault(row, {}).setdefault(event.code, []).append(at)
    return result


def _held(memory: Arrays, now: datetime) -> Flags:
    """True for processes that were recently found bad and are not replaced yet."""
    result: Flags = memory["bad_process"] == memory["process"]
    return result & (now.timestamp() - memory["bad_at"] <= BAD_HOLD.total_seconds())


def _errors(window: Window) -> tuple[Floats, Floats]:
    """Share and number of failed responses in the recent minutes, by the counter that shows more; NaN unknown."""
    columns = windows.recent(window, RECENT)
    share, most = np.full(len(window.entities), np.nan), np.zeros(len(window.entities))
    for failures, answers in _COUNTS:
        bad, every = (windows.believed(window, name)[:, columns] for name in (failures, answers))
        known = ~np.isnan(bad).all(axis=1)
        failed, all_of = np.nan_to_num(bad).sum(axis=1), np.nan_to_num(every).sum(axis=1)
        value = np.divide(failed, np.maximum(all_of, failed), out=np.zeros_like(failed), where=failed > 0)
        share = np.where(known, np.fmax(share, value), share)
        most = np.maximum(most, failed)
    return share, most
