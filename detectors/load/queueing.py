"""Queueing requests of a service, with the cause as far as the service's own traffic shows it.

*traffic-surge* needs arrivals above their earlier level. *retry-storm* needs the same, and clients that disconnect
while others retry. *long-prompt-burst* needs far longer prompts at the same arrivals. *batch-misconfigured* needs a
batch at a ceiling, free memory, normal step times and changed flags. A queue with none of these is a symptom without a
fault. Its name is ``backlog`` if the service had lost serving capacity by its start, else ``queue``. Other faults on
its path explain it.

While a service with requests in flight does not move, as in a hang, its arrivals are unknown. The first page after that
has them all, and they count as arriving evenly over that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np

from detectors.base.condition_durations import Flags, newest
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.load import arrivals
from detectors.load.saturation import BACKLOG, SERVICE_WAITS, Queue, queue_evidence, read_queue, unnamed
from outrider import windows
from outrider.model import (
    EntityKind,
    EventKind,
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

SURGE_RATIO = 1.3  # above the scatter of two minutes of Poisson arrivals at 1/s and more
PROMPT_RATIO = 1.6  # a shifted mix within its SLO has prompts up to 50 % longer
LEFT_SHARE = 0.25  # share of responses without a client; lower in a surge without retries
RETRY_SHARE = 0.1
STEP_RATIO = 1.2  # slower steps are another fault
CEILING_SPREAD = 0.15  # a batch that follows its requests varies more in a minute
MINUTE = timedelta(minutes=1)
LOST = timedelta(seconds=30)  # shorter losses of capacity cause no lasting queue
LOSS_LATENESS = 60.0  # seconds by which a loss of capacity may show after the queue that it caused
CHANGED = 1800.0  # seconds within which a change of flags may be the cause
_LEVELS = ("level", "prompt", "step")


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Requests and responses of the services, (entities,); ``known`` levels are the earlier ones."""

    rate: Floats
    prompt: Floats
    step: Floats
    left: Floats
    retries: Floats
    rate_before: Floats
    prompt_before: Floats
    step_before: Floats
    capped: Flags
    lowered: Flags


class QueueingDetector(StatefulDetector):
    """One finding per service with queueing requests, named by its traffic if that explains it."""

    name = "surge"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = (
        *arrivals.KEYS,
        *signal_keys(
            "svc_queue_requests",
            "svc_generation_tokens_total",
            "svc_prompt_tokens_total",
            "svc_abandoned_total",
            "svc_retries_per_second",
            "svc_ready_backends",
        ),
        *catalog.signal("svc_ttft_seconds").bucket_keys,
        *catalog.signal("svc_tpot_seconds").bucket_keys,
    )
    window = timedelta(minutes=10)
    state_version = 4
    defaults: ClassVar[dict[str, bool | float]] = {
        "surging": False,
        "backlog": False,
        "rose": False,
        "stormed": False,
        "shrunk": False,
        **{name: np.nan for level in _LEVELS for name in (level, f"{level}_before")},
        **{f"{level}_weight": 0.0 for level in _LEVELS},
        "changed_at": np.nan,
    }

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """A finding while requests queue; named if arrivals, prompts or a flag change explain it."""
        waiting = window.column("svc_queue_requests")
        inflight = window.column("svc_inflight_requests")
        queue = read_queue(window, waiting, inflight - waiting, "svc_generation_tokens_total", "svc_ttft_seconds")
        was = memory["surging"].copy()
        memory["surging"] = queue.starts | (was & queue.holds)
        _note_changes(window, memory)
        stopped = _stopped(window)
        traffic = _read(window, memory, was, queue, stopped)
        memory["backlog"] = memory["surging"] & ((was & memory["backlog"]) | _follows_loss(window, queue, stopped))
        names = _names(traffic, memory, was, now.timestamp())
        return tuple(
            self._finding(window, int(row), queue, traffic, names[row], now, memory)
            for row in np.flatnonzero(memory["surging"])
        )

    def _finding(
        self, window: Window, row: int, queue: Queue, traffic: _Traffic, fault: str, now: datetime, memory: Arrays
    ) -> Finding:
        entity, backlog = window.entities[row], not fault and bool(memory["backlog"][row])
        evidence_items = (
            *queue_evidence(queue, row, "svc_queue_requests", "svc_ttft_seconds"),
            *_evidence(traffic, row, fault),
            *([evidence("svc_ready_backends", None, "backlog_of_lost_capacity")] if backlog else ()),
        )
        since = queue.since[row]
        if fault == "batch-misconfigured":
            since = max(since, memory["changed_at"][row])  # the queue may be older and have another cause
        observations = finding(
            self.name, entity, fault or "traffic-surge", score=0.85, since=since, now=now, evidence_items=evidence_items
        )
        if fault:
            return observations
        return unnamed(observations, BACKLOG if backlog else SERVICE_WAITS, Priority.P2)


def _stopped(window: Window) -> Flags:
    """Pages on which a service with requests in flight neither answers nor generates, (entities, times)."""
    answered, generated = window.column("svc_requests_total"), window.column("svc_generation_tokens_total")
    still = ~np.isnan(answered) & (np.nan_to_num(answered) + np.nan_to_num(generated) <= 0)
    result: Flags = still & (np.nan_to_num(window.column("svc_inflight_requests")) > 0)
    return result


def _follows_loss(window: Window, queue: Queue, stopped: Flags) -> Flags:
    """True if the service lacked ready replicas or stood still for ``LOST`` until its queue began, or as it began."""
    ready = window.column("svc_ready_backends")
    most = np.maximum.accumulate(np.where(np.isnan(ready), -np.inf, ready), axis=1)
    with np.errstate(invalid="ignore"):
        lost = stopped | (ready < most)
    by_then = window.times[None, :] <= queue.since[:, None] + LOSS_LATENESS
    result: Flags = (lost & by_then).sum(axis=1) * window.step >= LOST
    return result


def _read(window: Window, memory: Arrays, was: Flags, queue: Queue, stopped: Flags) -> _Traffic:
    """Current levels and those before the queue; updates the stored ones."""
    rate = arrivals.arrivals(window, stopped)
    firsts = windows.buckets(window, "svc_ttft_seconds", arrivals.RECENT).sum(axis=1)
    prompt = arrivals.per_first_token(window, "svc_prompt_tokens_total", firsts, arrivals.RECENT)
    step = _mean_step(window)
    answered, gone = (
        np.nan_to_num(windows.total(window, name, arrivals.RECENT))
        for name in ("svc_requests_total", "svc_abandoned_total")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.where(answered >= 20.0, gone / answered, 0.0)
    values = {"level": newest(window, rate), "prompt": prompt, "step": step}
    usual = {
        "level": arrivals.level(window, rate, memory["level"], memory["level_weight"]),
        "prompt": memory["prompt"],
        "step": memory["step"],
    }
    for name in _LEVELS:
        memory[f"{name}_before"] = np.where(was, memory[f"{name}_before"], usual[name])
    busy = memory["surging"] | (np.nan_to_num(queue.length) > 0)
    for name, value in values.items():
        frozen = memory["surging"] if name == "level" else busy
        arrivals.follow(memory, name, value, window.step.total_seconds(), frozen)
    now_rate = arrivals.recent_without_jump(window, rate)
    return _Traffic(
        rate=now_rate,
        prompt=prompt,
        step=step,
        left=np.nan_to_num(left),
        retries=np.nan_to_num(arrivals.recent(window, window.column("svc_retries_per_second"))),
        rate_before=memory["level_before"],
        prompt_before=memory["prompt_before"],
        step_before=memory["step_before"],
        capped=_capped(window),
        lowered=_lowered(window, memory["changed_at"]),
    )


def _mean_step(window: Window) -> Floats:
    """Seconds per output token, the median of the last two minutes' requests."""
    counted = windows.buckets(window, "svc_tpot_seconds", arrivals.RECENT)
    value, _ = catalog.bucket_quantile(counted, catalog.signal("svc_tpot_seconds").bounds, 0.5)
    return np.where(counted.sum(axis=1) >= 10.0, value, np.nan)


def _capped(window: Window) -> Flags:
    """True if the batch of the last minute was constant while requests waited."""
    columns = windows.recent(window, MINUTE)
    waiting = window.column("svc_queue_requests")[:, columns]
    running = window.column("svc_inflight_requests")[:, columns] - waiting
    if running.shape[1] == 0:
        return np.zeros(len(window.entities), dtype=np.bool_)
    filled = np.where(np.isnan(running), 0.0, running)
    most, least = filled.max(axis=1), filled.min(axis=1)
    result: Flags = (least > 0) & (most - least <= CEILING_SPREAD * most) & (np.nan_to_num(waiting) > 0).all(axis=1)
    return result


def _lowered(window: Window, changed: Floats) -> Flags:
    """True if fewer run, with requests waiting, than in the minute before a change inside the window."""
    waiting = window.column("svc_queue_requests")
    running = window.column("svc_inflight_requests") - waiting
    apart = window.times[None, :] - changed[:, None]
    before = windows.mean_by_row(
        np.where((apart < 0) & (apart >= -MINUTE.total_seconds()) & (waiting > 0), running, np.nan)
    )
    with np.errstate(invalid="ignore"):
        result: Flags = newest(window, running) < (1.0 - CEILING_SPREAD) * before
    return result


def _note_changes(window: Window, memory: Arrays) -> None:
    place = {entity: row for row, entity in enumerate(window.entities)}
    for event in window.events:
        row = place.get(event.entity)
        if row is not None and event.kind is EventKind.CHANGE and event.code == "flags":
            memory["changed_at"][row] = np.fmax(memory["changed_at"][row], event.at.timestamp())


def _names(traffic: _Traffic, memory: Arrays, was: Flags, now_seconds: float) -> list[str]:
    """The fault of each service's queue, empty if its traffic does not explain it."""
    surging = memory["surging"]
    with np.errstate(invalid="ignore"):
        rose = traffic.rate > SURGE_RATIO * traffic.rate_before
        longer = traffic.prompt > PROMPT_RATIO * traffic.prompt_before
        steady = ~(traffic.step > STEP_RATIO * traffic.step_before)
        again = (traffic.left >= LEFT_SHARE) | (traffic.retries >= RETRY_SHARE * traffic.rate)
        changed = now_seconds - memory["changed_at"] <= CHANGED
    # A surge lasts until its backlog is served, even if arrivals have fallen.
    memory["rose"] = surging & (rose | (was & memory["rose"]))
    memory["stormed"] = surging & ((again & rose) | (was & memory["stormed"]))
    # A backlog after a surge has another cause if a change removed the capacity to serve it.
    shrinks = ~rose & traffic.capped & changed & traffic.lowered & steady
    memory["shrunk"] = surging & (shrinks | (was & memory["shrunk"]))
    choices = (
        (memory["shrunk"], "batch-misconfigured"),
        (memory["stormed"], "retry-storm"),
        (memory["rose"], "traffic-surge"),
        (surging & longer, "long-prompt-burst"),
        (surging & traffic.capped & changed & steady, "batch-misconfigured"),
    )
    return [next((fault for holds, fault in choices if holds[row]), "") for row in range(surging.size)]


def _evidence(traffic: _Traffic, row: int, fault: str) -> tuple[Evidence, ...]:
    observations = [_rate_evidence(traffic, row, rose=fault in ("traffic-surge", "retry-storm"))]
    if fault == "retry-storm":
        share = float(traffic.left[row])
        observations.append(
            evidence("svc_abandoned_total", share, "clients_leave", Interval(None, LEFT_SHARE), share=share)
        )
    if fault == "long-prompt-burst":
        long, before = float(traffic.prompt[row]), float(traffic.prompt_before[row])
        limit = Interval(None, PROMPT_RATIO * before)
        observations.append(
            evidence("engine_prompt_length_tokens", long, "prompts_longer", limit, tokens=long, before=before)
        )
    if fault == "batch-misconfigured":
        observations.append(evidence("svc_inflight_requests", None, "batch_at_ceiling"))
    return tuple(observations)


def _rate_evidence(traffic: _Traffic, row: int, *, rose: bool) -> Evidence:
    rate, before = float(traffic.rate[row]), float(traffic.rate_before[row])
    if np.isnan(before) or np.isnan(rate):
        return evidence("svc_requests_per_second", rate, "arrivals_level_unknown")
    text = "arrivals_rose" if rose else "arrivals_as_before"
    limit = Interval(None, SURGE_RATIO * before)
    return evidence("svc_requests_per_second", rate, text, limit, rate=rate, before=before)
