"""Faults from a model server's log: GPU out of memory, stuck collective, model that fails to load.

``collectors`` reads the lines; here they are events with a code. A line describes the time at which it was written, so
its finding lasts for ``EVENT_HOLD``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.base.condition_durations import unseen, unusable_reason
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import empty
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

EVENT_HOLD = timedelta(minutes=10)
_MOST_CHARACTERS = 160  # characters of a line


@dataclass(frozen=True, slots=True)
class _Meaning:
    """Meaning of a log line: a fault, the nearest signal, a text, and the score of a single line."""

    fault: str
    signal: str
    text: str
    score: float


_LOAD = _Meaning("model-load-failed", "engine_startup_seconds", "weights_refused", 0.9)
_MEANINGS = {
    "cuda_oom": _Meaning("gpu-oom", "hw_accel_memory_used_ratio", "device_memory_out", 0.9),
    "memory_fragmented": _Meaning("gpu-memory-fragmentation", "hw_accel_memory_used_ratio", "memory_in_pieces", 0.9),
    "nccl_timeout": _Meaning("nccl-timeout", "engine_iterations_total", "collective_stuck", 0.95),
    **dict.fromkeys(
        ("weights_missing", "weights_corrupt", "weights_wrong", "kv_cache_too_small", "load_failed"), _LOAD
    ),
}


class EngineLogDetector:
    """gpu-oom, gpu-memory-fragmentation, nccl-timeout and model-load-failed of each replica."""

    name = "engine-logs"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = (SignalKey("engine_up"),)
    window = EVENT_HOLD
    state_version = 1

    def initial(self) -> DetectorState:
        """Empty state: the window holds everything."""
        return empty(self.state_version, {})

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """One finding per replica and fault for the lines of the last ``EVENT_HOLD``."""
        reason = unusable_reason(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        lines_of: dict[tuple[EntityRef, str], list[Event]] = defaultdict(list)
        for event in sorted(window.events, key=lambda event: event.at):
            is_known_line = event.kind is EventKind.LOG and event.code in _MEANINGS
            if is_known_line and now - EVENT_HOLD < event.at <= now:
                lines_of[event.entity, _MEANINGS[event.code].fault].append(event)
        if not window.entities and not lines_of:
            return state, (NoVerdict(self.name, None, NoVerdictReason.NO_VALUES),)
        result = tuple(
            self._finding(replica, lines, now) for (replica, _), lines in sorted(lines_of.items(), key=_order)
        )
        return state, (*result, *unseen(self.name, window, result))

    def _finding(self, replica: EntityRef, lines: list[Event], now: datetime) -> Finding:
        meaning = _MEANINGS[lines[0].code]
        count = sum(1 + _repeats(line) for line in lines)
        line = " ".join((lines[-1].attributes.get("text") or lines[-1].code).split())[:_MOST_CHARACTERS]
        item = evidence(meaning.signal, float(count), meaning.text, Interval(0.0, 0.0), times=count, line=line)
        since = lines[0].at.timestamp()
        return finding(
            self.name, replica, meaning.fault, score=meaning.score, since=since, now=now, evidence_items=(item,)
        )


def _repeats(line: Event) -> int:
    """Number of equal lines that were collapsed into the event."""
    before = line.attributes.get("lines_before", "")
    return int(before) if before.isdigit() else 0


def _order(item: tuple[tuple[EntityRef, str], list[Event]]) -> tuple[str, str]:
    return item[0][0].key, item[0][1]
