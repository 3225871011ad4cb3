"""The way in of a service as two detectors see it: what comes, what came before, what is due, what a probe meets.

Whether the gateway fails and whether requests stay away is judged here, for it says what is no level to learn from and
what the other one need not tell. Detectors know nothing of each other, so each follows the way in by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar

import numpy as np

from detectors.base import sampling
from detectors.base.condition_durations import Flags, newest, unusable
from detectors.base.protocols import Absence
from detectors.base.state_arrays import Arrays, align
from detectors.learning.dormant_state import begin_anew
from detectors.learning.learning_detector import newest_of
from detectors.load import arrivals, probe_window
from detectors.load.expected_traffic import RATE, Expected, expected
from detectors.load.probe_window import Probes
from detectors.statistics.baseline import Baseline, follow
from outrider import windows
from outrider.model import DetectorState, EntityKind, EventKind, Finding, Floats, NoVerdict, SignalKey, Window
from outrider.topology import Topology

MINUTE = timedelta(minutes=1)
FAILED_PROBES = 2  # of two minutes; one may be a blip of the network between
FEWER = 0.85  # a gateway that loses less than this share of the requests is a matter of the error budget
DROP_RATIO = 0.4  # of the level before; a day the calendar names leaves about half
DROP_RATIO_UNTAUGHT = 0.15  # while the hours of the day are not known, a burst may have ended
USUAL_RATIO = 0.6  # of what was forecast, or is usual at this hour
BACK_RATIO = 0.7
SIGMAS = 5.0
QUEUE_SHARE = 0.1
FAILED_MOST = 0.05
CALENDAR_SECONDS = 86400.0
HELD_AT_MOST = 12 * 3600.0  # then what is low is the new usual
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Way:
    """What is known of one instant; arrays of shape (entities,), rates per second, NaN unknown.

    ``last`` is the newest instant that was taken up before, in unix seconds, ``rate`` (entities, times) what arrived.
    ``near`` is that of the last minute, ``before`` the level before it, ``usual`` that of this hour.
    """

    memory: Arrays
    last: float
    probe: Probes
    rate: Floats
    near: Floats
    before: Floats
    usual: Floats
    due: Expected


class IngressDetector(ABC):
    """The memory of the way in of each service, and whether its gateway fails or its requests stay away."""

    name: str
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = (
        *arrivals.KEYS,
        *probe_window.KEYS,
        *(
            SignalKey(name)
            for name in (
                RATE,
                "svc_failed_total",
                "svc_queue_requests",
                "svc_ready_backends",
            )
        ),
    )
    window = timedelta(minutes=10)
    state_version: int
    defaults: ClassVar[dict[str, Any]] = {
        "shut": False,
        "dropped": False,
        "since": np.nan,
        "arriving": np.nan,
        "arriving_weight": 0.0,
        "each": np.nan,
        "each_weight": 0.0,
        "named_until": np.nan,
        "low_since": np.nan,
    }

    def __init__(self) -> None:
        """The hours of the day and the days of the week are learnt for one signal, the rate of requests."""
        self._baseline = Baseline((RATE,))

    def set_zone(self, zone: tzinfo) -> None:
        """Where the days of the week begin and end; before the first cycle."""
        self._baseline.set_zone(zone)

    def initial(self) -> DetectorState:
        """Nothing learnt."""
        return DetectorState(self.state_version, (), {**self.of_entities(0), "last": np.array([-np.inf])})

    def of_entities(self, count: int) -> Arrays:
        """Memory of ``count`` services that nothing is known about."""
        return {
            **{name: np.full(count, value) for name, value in self.defaults.items()},
            **self._baseline.empty(count),
        }

    def clock(self, state: DetectorState) -> float:
        """The newest unix second that was seen."""
        return newest_of(state)

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Bring services that return up to now: of what goes on there nothing is known, of their days all."""
        begin_anew(memory, self.of_entities(away.seconds.size), tuple(self.defaults))
        self._baseline.rest(memory, away.seconds)

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learn the hours of the day from history, oldest first."""
        memory, last = self._follow(state, window)
        seconds = sampling.spacing(window)
        first = int(np.searchsorted(window.times, last, side="right"))
        for start in range(first, window.times.size, _BLOCK):
            values = sampling.read(window, (RATE,), slice(start, start + _BLOCK))
            for place in range(values.shape[1]):
                at, long = float(window.times[start + place]), float(seconds[start + place])
                self._baseline.learn(memory, values[:, place], at, long)
        return self._state(window, memory, last)

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """What is said of the way in of each service, and why nothing can be said of others."""
        reason = unusable(window, now.timestamp())
        if reason is not None or not window.entities:
            return state, (NoVerdict(self.name, None, reason),) if reason else ()
        way = self._look(state, window)
        verdicts = tuple(self.judge(window, way, now))
        return self._state(window, way.memory, way.last), verdicts

    @abstractmethod
    def judge(self, window: Window, way: Way, now: datetime) -> Iterable[Finding | NoVerdict]:
        """What is said of the window's services; changes ``way.memory``."""

    def _look(self, state: DetectorState, window: Window) -> Way:
        """What is known of the way in now, and learnt."""
        memory, last = self._follow(state, window)
        _note_calendar(window, memory)
        at = float(window.times[-1])
        self._baseline.turn(memory, at)
        usual = self._baseline.usual(memory, at)
        due = expected(window, memory, usual)
        probe = probe_window.read(window)
        rate, each = _rates(window)
        near, before = _now_and_before(window, memory, rate, each)
        healthy = _healthy(window)
        self._judge(memory, probe, near, before, due, healthy)
        self._learn(window, memory, rate, each, healthy, last)
        return Way(memory, last, probe, rate, near[0], before[0], usual.level[:, 0], due)

    def _judge(
        self,
        memory: Arrays,
        probe: Probes,
        near: tuple[Floats, Floats],
        before: tuple[Floats, Floats],
        due: Expected,
        healthy: Flags,
    ) -> None:
        """Set ``shut`` (the gateway fails) and ``dropped`` (requests stay away)."""
        at, usual = due.at, due.middle
        with np.errstate(invalid="ignore"):
            fewer = _below(near, before, FEWER)
            fails = (probe.failed >= FAILED_PROBES) & probe.lately & ~probe.unreached
            memory["shut"] = healthy & ((fails & fewer) | (memory["shut"] & (probe.failed > 0)))
            few = np.where(np.isnan(usual), DROP_RATIO_UNTAUGHT, DROP_RATIO)
            unusual = np.isnan(usual) | ((near[0] < USUAL_RATIO * usual) & ~(due.forecast & (near[0] >= due.low)))
            through = (probe.failed == 0) | ((probe.failed == 1) & ~probe.lately)
            named = memory["named_until"] >= at
            starts = _below(near, before, few) & unusual & through & healthy & ~named & ~memory["shut"]
            holds = memory["dropped"] & ~(near[0] > BACK_RATIO * before[0]) & ~(probe.failed >= FAILED_PROBES)
            holds &= at - memory["since"] < HELD_AT_MOST
        standing = starts | holds
        begun = np.where(np.isnan(memory["since"]), at - MINUTE.total_seconds(), memory["since"])
        memory["dropped"] = standing
        memory["since"] = np.where(standing | memory["shut"], begun, np.nan)

    def _learn(self, window: Window, memory: Arrays, rate: Floats, each: Floats, healthy: Flags, last: float) -> None:
        """Follow the level; one that is far below what came before is none until it has lasted."""
        at, step = float(window.times[-1]), window.step.total_seconds()
        levels = {"arriving": newest(window, rate), "each": newest(window, each)}
        with np.errstate(invalid="ignore"):
            far = {
                name: value < DROP_RATIO * arrivals.remembered(memory[name], memory[f"{name}_weight"])
                for name, value in levels.items()
            }
        low = np.isfinite(levels["arriving"]) & far["arriving"]
        since = np.where(low, np.fmin(memory["low_since"], at), np.nan)
        memory["low_since"] = np.where(np.isnan(levels["arriving"]), memory["low_since"], since)
        lasted: Flags = low & (at - memory["low_since"] >= HELD_AT_MOST)
        memory["dropped"] &= ~lasted
        memory["since"] = np.where(lasted & ~memory["shut"], np.nan, memory["since"])
        frozen = memory["shut"] | memory["dropped"] | ~healthy
        for name, value in levels.items():
            memory[name] = np.where(lasted & np.isfinite(value), value, memory[name])
            arrivals.follow(memory, name, value, step, frozen | (far[name] & ~lasted))
        if at > last:
            value = sampling.read(window, (RATE,), slice(-1, None))[:, 0]
            self._baseline.learn(memory, value, at, step, frozen[:, None])

    def _follow(self, state: DetectorState, window: Window) -> tuple[Arrays, float]:
        plain = align(state, window.entities, self.defaults)
        fresh = self._baseline.empty(len(window.entities))
        learnt = follow(dict(state.arrays), state.entities, window.entities, fresh)
        last = state.arrays.get("last")
        return {**plain, **learnt}, float(last[0]) if last is not None and last.size == 1 else -np.inf

    def _state(self, window: Window, memory: Arrays, last: float) -> DetectorState:
        newest_time = max(last, float(window.times[-1])) if window.times.size else last
        return DetectorState(self.state_version, window.entities, {**memory, "last": np.array([newest_time])})


def _note_calendar(window: Window, memory: Arrays) -> None:
    """A day that the calendar names explains that few come, until a day after it was told."""
    place = {entity: row for row, entity in enumerate(window.entities)}
    for event in window.events:
        row = place.get(event.entity)
        if row is not None and event.kind is EventKind.CHANGE and event.code == "calendar":
            until = event.at.timestamp() + CALENDAR_SECONDS
            memory["named_until"][row] = np.fmax(memory["named_until"][row], until)


def _rates(window: Window) -> tuple[Floats, Floats]:
    """Arrivals of the service and of each backend that is ready: a view that loses engines halves the first only."""
    rate = arrivals.arrivals(window)
    ready = window.column("svc_ready_backends")
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.where(ready > 0, rate / ready, np.where(np.isnan(ready), rate, np.nan))
    return rate, each


def _now_and_before(
    window: Window, memory: Arrays, rate: Floats, each: Floats
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    near = arrivals.recent(window, rate, MINUTE), arrivals.recent(window, each, MINUTE)
    before = tuple(
        np.where(
            np.isnan(held := arrivals.remembered(memory[name], memory[f"{name}_weight"])),
            arrivals.earlier(window, values),
            held,
        )
        for name, values in (("arriving", rate), ("each", each))
    )
    return near, (before[0], before[1])


def _below(near: tuple[Floats, Floats], before: tuple[Floats, Floats], ratio: float | Floats) -> Flags:
    """True where the arrivals, in all and for each backend, are below a share of before by more than chance."""
    seconds = MINUTE.total_seconds()
    far = (before[0] - near[0]) * seconds > SIGMAS * np.sqrt(np.maximum(before[0] * seconds, 1.0))
    found: Flags = (near[0] < ratio * before[0]) & (near[1] < ratio * before[1]) & far
    return found


def _healthy(window: Window) -> Flags:
    """True where engines are ready, do not fail, and nobody queues for them."""
    columns = windows.recent(
        window, probe_window.PROBES
    )  # a probe without an engine, or behind a queue, failed for that
    queue, flight = window.column("svc_queue_requests")[:, columns], window.column("svc_inflight_requests")[:, columns]
    answered = np.nan_to_num(window.column("svc_requests_total")[:, columns]).sum(axis=1)
    failed = np.nan_to_num(window.column("svc_failed_total")[:, columns]).sum(axis=1)
    ready = window.column("svc_ready_backends")
    none = (ready[:, columns] < 1).any(axis=1) | (newest(window, ready) < 1)
    with np.errstate(invalid="ignore"):
        free = ~(queue > np.maximum(1.0, QUEUE_SHARE * flight)).any(axis=1)
        found: Flags = free & ~none & (failed <= FAILED_MOST * np.maximum(answered, 20.0))
    return found
