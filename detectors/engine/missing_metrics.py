"""metric-renamed: a new engine process works but no longer exports metrics of the previous one.

The engine is healthy, but the rules on these metrics would never fire again. A series may appear only after its first
event. A process is therefore judged after it has served for a while. Only metrics that the adapter read from every page
of the previous process count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import measure_run, newest
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Finding,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

WATCHED = (
    "engine_requests_running",
    "engine_requests_waiting",
    "engine_kv_cache_usage_ratio",
    "engine_generation_tokens_total",
    "engine_iterations_total",
    "engine_requests_finished_total",
    "engine_requests_failed_total",
    "engine_prompt_tokens_total",
    "engine_prefix_cache_hit_ratio",
    "engine_preemptions_per_second",
    "engine_error_ratio",
)
_PROOF = ("engine_generation_tokens_total", "engine_iterations_total", "engine_http_requests_total")
STEADY_SCRAPES = 8  # consecutive pages of the previous process
GONE_SCRAPES = 4
SERVED_SCRAPES = 3  # scrapes in which the new process generated tokens or answered requests
_DEFAULTS: dict[str, float] = {
    "process": np.nan,
    **{f"seen_{name}": 0.0 for name in WATCHED},
    **{f"had_{name}": 0.0 for name in WATCHED},
}


class MissingMetricsDetector(StatefulDetector):
    """One verdict per service whose newer processes renamed or dropped metrics."""

    name = "vanished-metrics"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = tuple(
        SignalKey(name)
        for name in dict.fromkeys((*WATCHED, *_PROOF, "engine_up", "engine_start_time_seconds", "target_samples"))
    )
    window = timedelta(minutes=5)
    state_version = 1
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Counts the metrics on the pages of each process, and compares with the previous process."""
        started = newest(window, window.column("engine_start_time_seconds"))
        fresh = ~np.isnan(started) & ~np.isnan(memory["process"]) & (started > memory["process"] + 1.0)
        memory["process"] = np.where(np.isnan(started), memory["process"], started)
        answers = window.column("engine_up") == 1
        inside = answers & (window.times[None, :] >= memory["process"][:, None])
        served = np.zeros(inside.shape, dtype=np.bool_)
        for name in _PROOF:
            served |= np.nan_to_num(window.column(name)) > 0
        works = inside[:, -1] & ((served & inside).sum(axis=1) >= SERVED_SCRAPES)
        gone: dict[int, list[str]] = defaultdict(list)
        kept = np.zeros(len(window.entities), dtype=np.intp)
        since = np.full(len(window.entities), np.inf)
        for name in WATCHED:
            there = window.column_status(name) != CellStatus.ABSENT
            had, seen = memory[f"had_{name}"], memory[f"seen_{name}"]
            memory[f"had_{name}"] = np.where(fresh, np.where(inside[:, -1] & there[:, -1], seen, seen), had)
            seen = np.where(fresh, 0.0, seen)
            memory[f"seen_{name}"] = np.where(answers[:, -1], np.where(there[:, -1], seen + 1.0, 0.0), seen)
            run = measure_run(inside, ~there, window.times)
            never = works & (memory[f"had_{name}"] >= STEADY_SCRAPES) & (memory[f"seen_{name}"] == 0)
            kept += there[:, -1] & inside[:, -1]
            for row in np.flatnonzero(never & (run.scrapes >= GONE_SCRAPES)):
                gone[int(row)].append(name)
                since[row] = min(since[row], float(window.times[run.start[row]]))
        return _findings(
            self.name, window, {row: names for row, names in gone.items() if kept[row]}, since, topology, now
        )


def _findings(
    detector: str,
    window: Window,
    gone: dict[int, list[str]],
    since: np.ndarray,
    topology: Topology,
    now: datetime,
) -> list[Finding]:
    """One finding per service, or on the replica itself if no service is known."""
    services: dict[EntityRef, list[int]] = defaultdict(list)
    for row in gone:
        entity = window.entities[row]
        for service in topology.above(entity, EntityKind.SERVICE) or (entity,):
            services[service].append(row)
    findings = []
    for service, rows in services.items():
        names = sorted({name for row in rows for name in gone[row]})
        item = evidence("target_samples", None, "series_gone", names=", ".join(names), replicas=len(rows))
        first = float(since[rows].min())
        findings.append(
            finding(detector, service, "metric-renamed", score=0.85, since=first, now=now, evidence_items=(item,))
        )
    return findings
