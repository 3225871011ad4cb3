"""noisy-neighbour: host CPU taken by something other than the usual work.

Engines use little CPU, evenly. CPU that rises far above its usual level on a single host belongs to a neighbor. A
surge rises everywhere, and a loading model keeps the disk busy.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import measure_run, newest, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.sampling import spacing
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider.model import EntityKind, Finding, Interval, NoVerdict, NoVerdictReason, SignalKey, Window
from outrider.topology import Topology

RISE = 0.3  # of all cores; several times the use of an engine
LASTING_SECONDS = 120.0  # images are unpacked and models compiled within this time, or with a busy disk
DISK_BUSY_RATIO = 0.3
USUAL_TAU_SECONDS = 3600.0
RISEN_TAU_SECONDS = 86400.0  # a neighbor that stays becomes usual within days, not while it harms
KNOWN_SECONDS = 240.0

_DEFAULTS = {"usual": np.nan, "seen": 0.0, "risen_since": np.nan}


class NoisyNeighborDetector(StatefulDetector):
    """noisy-neighbour of each node."""

    name = "neighbors"
    kind = EntityKind.NODE
    keys: tuple[SignalKey, ...] = (SignalKey("node_cpu_utilization_ratio"), SignalKey("node_disk_busy_ratio"))
    window = timedelta(minutes=5)
    state_version = 1
    defaults = _DEFAULTS

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """Compares each node's CPU with its usual level and with the rise of the other nodes."""
        busy = window.column("node_cpu_utilization_ratio")
        value = newest(window, busy)
        known = memory["seen"] >= KNOWN_SECONDS
        over = busy - memory["usual"][:, None]
        common = _common(over, known)
        disk = np.nan_to_num(window.column("node_disk_busy_ratio"))
        high = (over - common[None, :] >= RISE) & (disk < DISK_BUSY_RATIO)
        run = measure_run(~np.isnan(busy), high, window.times)
        verdicts: list[Finding | NoVerdict] = []
        started = np.where(run.scrapes > 0, window.times[run.start], np.nan)
        memory["risen_since"] = np.where(run.scrapes > 0, np.fmin(memory["risen_since"], started), np.nan)
        for row in np.flatnonzero(known & (run.seconds >= LASTING_SECONDS)):
            usual, since = float(memory["usual"][row]), float(memory["risen_since"][row])
            limit = Interval(None, usual + RISE)
            item = evidence(
                "node_cpu_utilization_ratio",
                float(value[row]),
                "cpu_taken",
                limit,
                ratio=float(value[row]),
                usual=usual,
            )
            node = window.entities[row]
            verdicts.append(
                finding(self.name, node, "noisy-neighbour", score=0.75, since=since, now=now, evidence_items=(item,))
            )
        _learn(memory, value, high[:, -1] & known, float(spacing(window)[-1]))
        status = window.column_status("node_cpu_utilization_ratio")
        verdicts.extend(no_verdicts(self.name, window.entities, status, np.isnan(value)))
        learning = np.flatnonzero(~known & ~np.isnan(value))
        verdicts.extend(NoVerdict(self.name, window.entities[row], NoVerdictReason.WARMING_UP) for row in learning)
        return verdicts


def _common(over: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Rise of the median node above its usual level at each time, (times,); 0 if none is known."""
    nodes = np.where(known[:, None], over, np.nan)
    there = ~np.isnan(nodes).all(axis=0) if nodes.size else np.zeros(over.shape[1], dtype=np.bool_)
    common = np.zeros(over.shape[1])
    if there.any():
        common[there] = np.nanmedian(nodes[:, there], axis=0)
    return common


def _learn(memory: dict[str, np.ndarray], value: np.ndarray, risen: np.ndarray, seconds: float) -> None:
    """The usual level follows within the hour, and is a plain mean before that; a risen one hardly counts."""
    taken = ~np.isnan(value)
    pace = np.maximum(seconds / (memory["seen"] + seconds), 1.0 - np.exp(-seconds / USUAL_TAU_SECONDS))
    pace = np.where(risen, 1.0 - np.exp(-seconds / RISEN_TAU_SECONDS), pace)
    moved = np.where(np.isnan(memory["usual"]), value, memory["usual"] + pace * (value - memory["usual"]))
    memory["usual"] = np.where(taken, moved, memory["usual"])
    memory["seen"] = memory["seen"] + np.where(taken, seconds, 0.0)
