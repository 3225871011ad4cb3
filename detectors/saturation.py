"""Too much work for the engines: tokens flow and the queue grows. The opposite of a hang.

Nobody is told about a full batch with a short queue, nor about a full KV cache with nothing waiting.
It takes users who wait: TTFT beyond the objective, or a queue longer than the running batch, for a
minute, and not already draining. So the backlog that an outage leaves behind belongs to that outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np

from detectors.memory import Arrays, align, empty
from detectors.spells import Flags, gaps, newest, previous_index, spell, unusable
from detectors.verdicts import evidence, finding
from outrider import catalog, windows
from outrider.model import (
    DetectorState,
    EntityKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

TTFT_LIMIT_SECONDS = 2.0  # MEASURES: P1 at TTFT P99 > 2 s
TTFT_QUANTILE = 0.9  # over one minute P99 would hang on a single request
TTFT_EVENTS = 10.0  # fewer first tokens than this in a minute prove neither harm nor health
SUSTAINED = timedelta(minutes=1)  # a burst that is served within a minute is what a queue is for
SUSTAINED_SCRAPES = 3
RECENT = timedelta(minutes=2)
DRAINING = 0.9  # a queue a tenth below its peak of the last minute is draining
KV_FULL_RATIO = 0.95  # MEASURES, memory rule
SURGE_RATIO = 1.3  # above the scatter of two minutes of Poisson arrivals at 1/s and more
LEVEL_SECONDS = 1800.0  # the level before: half an hour's memory, short against a day's rhythm
LEVEL_KNOWN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Queue:
    """A queue now; arrays of shape (entities,). ``since`` is unix seconds."""

    length: Floats
    running: Floats
    ttft: Floats
    since: Floats
    starts: Flags
    holds: Flags


def _queue(window: Window, waiting: Floats, running: Floats, tokens: str, ttft: str) -> _Queue:
    """Read the queue; ``waiting`` and ``running`` have shape (entities, times).

    ``starts``: users wait for at least ``SUSTAINED``, tokens flow and the queue is not draining.
    ``holds``: what once started still goes on.
    """
    seen = ~np.isnan(waiting)
    length = newest(window, waiting)
    batch = np.nan_to_num(newest(window, running))
    queueing = spell(seen, np.nan_to_num(waiting) > 0, window.times)
    longer = spell(seen, np.nan_to_num(waiting) > np.maximum(np.nan_to_num(running), 1.0), window.times)
    lasting = _lasts(queueing.seconds, queueing.scrapes)
    peak = np.nan_to_num(waiting[:, windows.recent(window, SUSTAINED)]).max(axis=1, initial=0.0)
    growing = length >= DRAINING * peak
    flowing = (np.nan_to_num(window.column(tokens)[:, windows.recent(window, SUSTAINED)]) > 0).any(axis=1)
    late, fine, value = _first_tokens(window, ttft)
    overlong = _lasts(longer.seconds, longer.scrapes) & ~fine
    alive = flowing & (length > 0)
    return _Queue(
        length=length,
        running=batch,
        ttft=value,
        since=window.times[queueing.start],
        starts=alive & lasting & growing & (late | overlong),
        holds=alive & (late | (length > batch) & ~fine),
    )


def _lasts(seconds: Floats, scrapes: np.ndarray) -> Flags:
    found: Flags = (seconds >= SUSTAINED.total_seconds()) & (scrapes >= SUSTAINED_SCRAPES)
    return found


def _first_tokens(window: Window, ttft: str) -> tuple[Flags, Flags, Floats]:
    """Whether TTFT over the last minute is beyond the objective, inside it (neither: unknown), and its value."""
    counted = windows.buckets(window, ttft, SUSTAINED)
    value, _ = catalog.quantile_of_buckets(counted, catalog.signal(ttft).bounds, TTFT_QUANTILE)
    enough = counted.sum(axis=1) >= TTFT_EVENTS
    slow = np.nan_to_num(value) > TTFT_LIMIT_SECONDS
    return enough & slow, enough & ~slow, np.where(enough, value, np.nan)


def _why_queue(queue: _Queue, row: int, waiting: str, ttft: str) -> list[Evidence]:
    length, running = float(queue.length[row]), float(queue.running[row])
    found = [evidence(waiting, length, "queue_grows", Interval(None, running), waiting=length, running=running)]
    if not np.isnan(queue.ttft[row]):
        value = float(queue.ttft[row])
        limit = Interval(None, TTFT_LIMIT_SECONDS)
        found.append(evidence(ttft, value, "ttft_late", limit, seconds=value, limit=TTFT_LIMIT_SECONDS))
    return found


class SaturationDetector:
    """kv-pressure: a replica whose KV cache is what keeps its queue from being served."""

    name = "saturation"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = (
        *(
            SignalKey(name)
            for name in (
                "engine_requests_running",
                "engine_requests_waiting",
                "engine_kv_cache_usage_ratio",
                "engine_preemptions_per_second",
                "engine_generation_tokens_total",
            )
        ),
        *catalog.signal("engine_ttft_seconds").bucket_keys,
    )
    window = timedelta(minutes=10)
    state_version = 1

    def initial(self) -> DetectorState:
        """No replica under pressure."""
        return empty(self.state_version, {"pressed": False})

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """A finding while the queue stands and memory is short; silence where there is no queue to read."""
        reason = unusable(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        memory = align(state, window.entities, {"pressed": False})
        queue = _queue(
            window,
            window.column("engine_requests_waiting"),
            window.column("engine_requests_running"),
            "engine_generation_tokens_total",
            "engine_ttft_seconds",
        )
        columns = windows.recent(window, RECENT)
        fullest = np.nan_to_num(window.column("engine_kv_cache_usage_ratio")[:, columns]).max(axis=1, initial=0.0)
        evicted = np.nan_to_num(window.column("engine_preemptions_per_second")[:, columns]).max(axis=1, initial=0.0)
        short = (fullest >= KV_FULL_RATIO) | (evicted > 0)
        memory["pressed"] = (queue.starts & short) | (memory["pressed"] & queue.holds)
        found: list[Finding | NoVerdict] = []
        for row in np.flatnonzero(memory["pressed"]):
            full = evidence(
                "engine_kv_cache_usage_ratio",
                fullest[row],
                "kv_full",
                Interval(None, KV_FULL_RATIO),
                ratio=float(fullest[row]),
            )
            because = (full, *_why_queue(queue, int(row), "engine_requests_waiting", "engine_ttft_seconds"))
            found.append(
                finding(
                    self.name,
                    window.entities[row],
                    "kv-pressure",
                    score=0.8 if queue.ttft[row] > TTFT_LIMIT_SECONDS else 0.6,
                    since=queue.since[row],
                    now=now,
                    because=because,
                )
            )
        return DetectorState(self.state_version, window.entities, memory), tuple(found)


class SurgeDetector:
    """traffic-surge: a service that gets more than it can serve, on all its replicas together."""

    name = "surge"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = (
        *(
            SignalKey(name)
            for name in (
                "svc_queue_requests",
                "svc_inflight_requests",
                "svc_generation_tokens_total",
                "svc_requests_total",
            )
        ),
        *catalog.signal("svc_ttft_seconds").bucket_keys,
    )
    window = timedelta(minutes=10)
    state_version = 1
    _defaults: ClassVar[dict[str, bool | float]] = {
        "surging": False,
        "rose": False,
        "level": np.nan,
        "weight_seconds": 0.0,
        "before": np.nan,
    }

    def initial(self) -> DetectorState:
        """No service surging, no level known."""
        return empty(self.state_version, self._defaults)

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """A finding while users wait; its score says whether the arrivals explain it."""
        reason = unusable(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        memory = align(state, window.entities, self._defaults)
        waiting = window.column("svc_queue_requests")
        inflight = window.column("svc_inflight_requests")
        queue = _queue(window, waiting, inflight - waiting, "svc_generation_tokens_total", "svc_ttft_seconds")
        rate = _arrivals(window)
        recent = _mean(rate[:, windows.recent(window, RECENT)])
        was = memory["surging"].copy()
        memory["surging"] = queue.starts | (was & queue.holds)
        usual = _level(window, rate, memory["level"], memory["weight_seconds"])
        memory["before"] = np.where(was, memory["before"], usual)
        _follow(memory, newest(window, rate), window.step.total_seconds(), memory["surging"])
        # A surge stays one while its backlog is served, though the arrivals have fallen again.
        rose = recent > SURGE_RATIO * memory["before"]
        memory["rose"] = memory["surging"] & (rose | (was & memory["rose"]))
        found = tuple(
            finding(
                self.name,
                window.entities[row],
                "traffic-surge",
                score=0.85 if memory["rose"][row] else 0.5,
                since=queue.since[row],
                now=now,
                because=_why_surge(queue, int(row), recent, memory),
            )
            for row in np.flatnonzero(memory["surging"])
        )
        return DetectorState(self.state_version, window.entities, memory), found


def _why_surge(queue: _Queue, row: int, recent: Floats, memory: Arrays) -> tuple[Evidence, ...]:
    rate, before = float(recent[row]), float(memory["before"][row])
    why = _why_queue(queue, row, "svc_queue_requests", "svc_ttft_seconds")
    if np.isnan(before) or np.isnan(rate):
        return (*why, evidence("svc_requests_per_second", rate, "arrivals_level_unknown"))
    text = "arrivals_rose" if memory["rose"][row] else "arrivals_as_before"
    limit = Interval(None, SURGE_RATIO * before)
    return (*why, evidence("svc_requests_per_second", rate, text, limit, rate=rate, before=before))


def _arrivals(window: Window) -> Floats:
    """Requests arriving per second, (entities, times): what was answered plus what was added to flight."""
    answered = window.column("svc_requests_total")
    inflight = window.column("svc_inflight_requests")
    seen = ~np.isnan(answered)
    between = gaps(seen, window.times)
    held = np.where(seen, np.nan_to_num(inflight), np.nan)
    earlier = np.take_along_axis(held, np.maximum(previous_index(seen), 0), axis=1)
    rate: Floats = np.maximum(0.0, (answered + held - earlier) / between)
    return rate


def _mean(values: Floats) -> Floats:
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.nan_to_num(values).sum(axis=1) / np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    return found


def _level(window: Window, rate: Floats, level: Floats, weight: Floats) -> Floats:
    """The arrival rate before the recent minutes: the lower of the window's own and the remembered one."""
    earlier = rate[:, : windows.recent(window, RECENT).start]
    known = (~np.isnan(earlier)).sum(axis=1) * window.step.total_seconds()
    own = np.where(known >= LEVEL_KNOWN_SECONDS, _mean(earlier), np.nan)
    remembered = np.where(weight >= RECENT.total_seconds() + LEVEL_KNOWN_SECONDS, level, np.nan)
    lower: Floats = np.fmin(own, remembered)
    return lower


def _follow(memory: Arrays, newest_rate: Floats, step_seconds: float, frozen: Flags) -> None:
    """Move the remembered level towards the newest rate; not during a surge, which is no level."""
    use = ~np.isnan(newest_rate) & ~frozen
    weight = np.minimum(memory["weight_seconds"] + step_seconds, LEVEL_SECONDS)
    share = step_seconds / np.maximum(weight, step_seconds)
    moved = np.where(np.isnan(memory["level"]), newest_rate, memory["level"] + share * (newest_rate - memory["level"]))
    memory["level"] = np.where(use, moved, memory["level"])
    memory["weight_seconds"] = np.where(use, weight, memory["weight_seconds"])
