"""Engine saturation: tokens are generated and the queue grows, the opposite of a hang.

A full batch with a short queue is not reported, nor is a full KV cache without waiting requests. Waiting users are:
TTFT above the SLO, or a queue longer than the running batch, for a minute and not already draining. The backlog of an
outage therefore belongs to that outage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np

from detectors.base.condition_durations import Flags, measure_run, newest
from detectors.base.findings import evidence, finding, fingerprint
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.load import arrivals
from outrider import windows
from outrider.model import (
    EntityKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    Priority,
    SignalKey,
    Window,
    signal_keys,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

TTFT_LIMIT_SECONDS = 2.0  # SLO: P1 at TTFT P99 > 2 s
TTFT_QUANTILE = 0.9  # over one minute, P99 would depend on a single request
TTFT_EVENTS = 10.0  # fewer first tokens per minute prove neither impact nor health
SUSTAINED = timedelta(minutes=1)  # a burst that is served within a minute is normal queueing
SUSTAINED_SCRAPES = 3
RECENT = timedelta(minutes=2)
DRAINING = 0.9  # a queue 10 % below its peak of the last minute is draining
KV_FULL_RATIO = 0.95  # limit of the memory rule
KV_RISE = 1.4  # cache per running request relative to before; contexts vary less
RUNNING_FEWEST = 4.0  # with fewer requests, one long context is a rise
# names of symptoms without a fault
SERVICE_WAITS, BACKLOG, REPLICA_WAITS = "queue", "backlog", "cache"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue now; arrays of shape (entities,). ``since`` is unix seconds."""

    length: Floats
    running: Floats
    ttft: Floats
    since: Floats
    starts: Flags
    holds: Flags


def read_queue(window: Window, waiting: Floats, running: Floats, tokens: str, ttft: str) -> Queue:
    """Reads the queue; ``waiting`` and ``running`` have shape (entities, times).

    ``starts``: requests wait for at least ``SUSTAINED``, tokens are generated and the queue is not draining.
    ``holds``: a started condition continues.
    """
    seen = ~np.isnan(waiting)
    length = newest(window, waiting)
    batch = np.nan_to_num(newest(window, running))
    queueing = measure_run(seen, np.nan_to_num(waiting) > 0, window.times)
    longer = measure_run(seen, np.nan_to_num(waiting) > np.maximum(np.nan_to_num(running), 1.0), window.times)
    lasting = queueing.lasts(SUSTAINED.total_seconds(), SUSTAINED_SCRAPES)
    peak = np.nan_to_num(waiting[:, windows.recent(window, SUSTAINED)]).max(axis=1, initial=0.0)
    growing = length >= DRAINING * peak
    flowing = (np.nan_to_num(window.column(tokens)[:, windows.recent(window, SUSTAINED)]) > 0).any(axis=1)
    late, fine, value = _first_tokens(window, ttft)
    overlong = longer.lasts(SUSTAINED.total_seconds(), SUSTAINED_SCRAPES) & ~fine
    alive = flowing & (length > 0)
    return Queue(
        length=length,
        running=batch,
        ttft=value,
        since=window.times[queueing.start],
        starts=alive & lasting & growing & (late | overlong),
        holds=alive & (late | (length > batch) & ~fine),
    )


def _first_tokens(window: Window, ttft: str) -> tuple[Flags, Flags, Floats]:
    """TTFT of the last minute: flags above and within the SLO (neither: unknown), and the value."""
    counted = windows.buckets(window, ttft, SUSTAINED)
    value, _ = catalog.bucket_quantile(counted, catalog.signal(ttft).bounds, TTFT_QUANTILE)
    enough = counted.sum(axis=1) >= TTFT_EVENTS
    slow = np.nan_to_num(value) > TTFT_LIMIT_SECONDS
    return enough & slow, enough & ~slow, np.where(enough, value, np.nan)


def queue_evidence(queue: Queue, row: int, waiting: str, ttft: str) -> list[Evidence]:
    """Queue length of a row, and its TTFT if known."""
    length, running = float(queue.length[row]), float(queue.running[row])
    evidence_items = [
        evidence(waiting, length, "queue_grows", Interval(None, running), waiting=length, running=running)
    ]
    if not np.isnan(queue.ttft[row]):
        value = float(queue.ttft[row])
        limit = Interval(None, TTFT_LIMIT_SECONDS)
        evidence_items.append(evidence(ttft, value, "ttft_late", limit, seconds=value, limit=TTFT_LIMIT_SECONDS))
    return evidence_items


class SaturationDetector(StatefulDetector):
    """kv-pressure: a replica whose KV cache limits the service of its queue.

    A full cache under a queue is always reported. It is kv-pressure if each running request holds more cache than
    before, and prompts do not explain it: then cache is missing. Otherwise load fills it, and the finding is a symptom
    without a fault.
    """

    name = "saturation"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = (
        *signal_keys(
            "engine_requests_running",
            "engine_requests_waiting",
            "engine_kv_cache_usage_ratio",
            "engine_preemptions_per_second",
            "engine_generation_tokens_total",
            "engine_prompt_tokens_total",
        ),
        *catalog.signal("engine_ttft_seconds").bucket_keys,
    )
    window = timedelta(minutes=10)
    state_version = 2
    defaults: ClassVar[dict[str, bool | float]] = {
        "pressed": False,
        "short": False,
        "held": np.nan,
        "held_weight": 0.0,
        "prompt": np.nan,
        "prompt_weight": 0.0,
    }

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """A finding while requests queue and memory is short; NoVerdict without queue data."""
        queue = read_queue(
            window,
            window.column("engine_requests_waiting"),
            window.column("engine_requests_running"),
            "engine_generation_tokens_total",
            "engine_ttft_seconds",
        )
        columns = windows.recent(window, RECENT)
        fullest = np.nan_to_num(window.column("engine_kv_cache_usage_ratio")[:, columns]).max(axis=1, initial=0.0)
        evicted = np.nan_to_num(window.column("engine_preemptions_per_second")[:, columns]).max(axis=1, initial=0.0)
        full = (fullest >= KV_FULL_RATIO) | (evicted > 0)
        memory["pressed"] = (queue.starts & full) | (memory["pressed"] & queue.holds)
        grown = _grown(window, memory, queue, full)
        memory["short"] = memory["pressed"] & (memory["short"] | (grown > KV_RISE))
        return tuple(
            self._finding(window, int(row), queue, fullest, grown, now, named=bool(memory["short"][row]))
            for row in np.flatnonzero(memory["pressed"])
        )

    def _finding(
        self, window: Window, row: int, queue: Queue, fullest: Floats, grown: Floats, now: datetime, *, named: bool
    ) -> Finding:
        entity, limit = window.entities[row], Interval(None, KV_FULL_RATIO)
        ratio = float(fullest[row])
        evidence_items = [evidence("engine_kv_cache_usage_ratio", ratio, "kv_full", limit, ratio=ratio)]
        if named and not np.isnan(grown[row]):
            times = float(grown[row])
            evidence_items.append(evidence("engine_kv_cache_usage_ratio", times, "kv_per_request", None, times=times))
        evidence_items += queue_evidence(queue, row, "engine_requests_waiting", "engine_ttft_seconds")
        score = 0.8 if queue.ttft[row] > TTFT_LIMIT_SECONDS else 0.6
        since = queue.since[row]
        result = finding(
            self.name, entity, "kv-pressure", score=score, since=since, now=now, evidence_items=tuple(evidence_items)
        )
        return result if named else unnamed(result, REPLICA_WAITS, Priority.P3)


def unnamed(result: Finding, detector: str, severity: Priority) -> Finding:
    """The finding as a symptom without a fault."""
    return replace(
        result,
        detector=detector,
        fault=None,
        score=min(result.score, 0.5),
        severity=severity,
        fingerprint=fingerprint(detector, result.entity, result.signals[0]),
    )


def _grown(window: Window, memory: Arrays, queue: Queue, full: Flags) -> Floats:
    """Cache per running request, relative to before and to longer prompts; NaN unknown."""
    running = newest(window, window.column("engine_requests_running"))
    used = newest(window, window.column("engine_kv_cache_usage_ratio"))
    firsts = windows.buckets(window, "engine_ttft_seconds", RECENT).sum(axis=1)
    prompt = arrivals.per_first_token(window, "engine_prompt_tokens_total", firsts, RECENT)
    with np.errstate(invalid="ignore", divide="ignore"):
        held = np.where(running >= RUNNING_FEWEST, used / running, np.nan)
        grown = held / memory["held"]
        longer = np.fmax(prompt / memory["prompt"], 1.0)
    step = window.step.total_seconds()
    pressed = memory["pressed"] | full | (np.nan_to_num(queue.length) > 0)
    arrivals.follow(memory, "held", held, step, pressed)
    arrivals.follow(memory, "prompt", prompt, step, pressed)
    with np.errstate(invalid="ignore"):
        result: Floats = grown / longer
    return result
