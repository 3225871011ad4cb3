"""Shared ingress state: arrivals, their earlier level, expected traffic, and probe results.

The gateway fault and the traffic drop are decided here, since they also define which levels not to learn and which
findings to suppress. Detectors do not know each other, so each of the two keeps its own copy of this state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, ClassVar

import numpy as np

from detectors.base import sampling
from detectors.base.condition_durations import Flags, newest, unusable_reason
from detectors.base.protocols import Absence
from detectors.base.state_arrays import Arrays, align
from detectors.learning import state_fingerprint
from detectors.learning.dormant_state import begin_anew
from detectors.learning.learning_detector import newest_of
from detectors.load import arrivals, probe_window
from detectors.load.expected_traffic import RATE, ExpectedTraffic, expected
from detectors.load.probe_window import Probes
from detectors.statistics.baseline import Baseline, Span, follow
from outrider import windows
from outrider.model import DetectorState, EntityKind, EventKind, Finding, Floats, NoVerdict, SignalKey, Window
from outrider.topology import Topology

MINUTE = timedelta(minutes=1)
FAILED_PROBES = 2  # of two minutes; one may be a network blip
FEWER = 0.85  # a smaller loss at the gateway is left to the error budget
DROP_RATIO = 0.4  # of the earlier level; a calendar day leaves about half
DROP_RATIO_UNTAUGHT = 0.15  # stricter while the time of day is unknown, as a burst may have ended
DROP_RATIO_HOLIDAY = 0.05  # few people work, but the requests have not ceased
USUAL_RATIO = 0.6  # of the forecast or the baseline
BACK_RATIO = 0.7
SIGMAS = 5.0
QUEUE_SHARE = 0.1
FAILED_MOST = 0.05
SERVER_ERROR = 500
CALENDAR_SECONDS = 86400.0
HELD_AT_MOST = 12 * 3600.0  # after this, the low level is the new normal
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class IngressReading:
    """Ingress values at one time; arrays of shape (entities,), rates per second, NaN unknown. ``holiday`` is of today.

    ``last`` is the time of the previous update in unix seconds, ``rate`` (entities, times) the arrivals. ``near`` is
    the rate of the last minute, ``before`` the earlier level, ``usual`` the baseline.
    """

    memory: Arrays
    last: float
    probe: Probes
    rate: Floats
    near: Floats
    before: Floats
    usual: Floats
    due: ExpectedTraffic
    holiday: bool


class IngressDetector(ABC):
    """Ingress state per service, and whether its gateway fails or its requests are missing."""

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
        "degraded_until": np.nan,
        "low_since": np.nan,
    }

    def __init__(self) -> None:
        """Time of day and day of week are learned for one signal, the request rate."""
        self._baseline = Baseline((RATE,))
        self._zone: tzinfo = UTC

    def set_zone(self, zone: tzinfo) -> None:
        """Sets the time zone of times of day and days of the week. Call before the first cycle."""
        self._zone = zone
        self._baseline.set_zone(zone)

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Sets the days on which few requests are no drop and teach no profile. Call before the first cycle."""
        self._baseline.set_holidays(holidays)

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """The usable part of a checkpoint and the reason if a part is dropped: another time zone has other hours."""
        fits = state_fingerprint.same_zone(state, self._zone)
        return (state, "") if fits else (self.initial(), "it was learned in another time zone")

    def initial(self) -> DetectorState:
        """Returns the state before anything is learned."""
        return DetectorState(self.state_version, (), {**self.of_entities(0), "last": np.array([-np.inf])})

    def of_entities(self, count: int) -> Arrays:
        """State of ``count`` unknown services."""
        return {
            **{name: np.full(count, value) for name, value in self.defaults.items()},
            **self._baseline.empty(count),
        }

    def clock(self, state: DetectorState) -> float:
        """The newest unix second in the state."""
        return newest_of(state)

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Advances returning services to now: profiles stay, the present is unknown. Changes ``memory``."""
        begin_anew(memory, self.of_entities(away.seconds.size), tuple(self.defaults))
        self._baseline.rest(memory, away.seconds)

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learns the time of day from history, oldest first."""
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
        """Returns the verdicts on the ingress of each service."""
        reason = unusable_reason(window, now.timestamp())
        if reason is not None or not window.entities:
            return state, (NoVerdict(self.name, None, reason),) if reason else ()
        ingress = self._read(state, window)
        verdicts = tuple(self.judge(window, ingress, now))
        return self._state(window, ingress.memory, ingress.last), verdicts

    @abstractmethod
    def judge(self, window: Window, ingress: IngressReading, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Returns the verdicts on the window's services; changes ``way.memory``."""

    def _read(self, state: DetectorState, window: Window) -> IngressReading:
        """Returns the current ingress values, and learns them."""
        memory, last = self._follow(state, window)
        _note_events(window, memory)
        at = float(window.times[-1])
        self._baseline.turn(memory, at)
        usual = self._baseline.usual(memory, at)
        due = expected(window, memory, usual, self._baseline.slot(at))
        holiday = self._baseline.is_holiday(at)
        probe = probe_window.read(window)
        rate, each = _rates(window)
        near, before = _now_and_before(window, memory, rate, each)
        healthy = _healthy(window)
        self._judge(memory, probe, near, before, due, healthy, holiday=holiday)
        self._learn(window, memory, rate, each, healthy, last)
        return IngressReading(memory, last, probe, rate, near[0], before[0], usual.level[:, 0], due, holiday)

    def _judge(
        self,
        memory: Arrays,
        probe: Probes,
        near: tuple[Floats, Floats],
        before: tuple[Floats, Floats],
        due: ExpectedTraffic,
        healthy: Flags,
        *,
        holiday: bool,
    ) -> None:
        """Sets ``shut`` (the gateway fails) and ``dropped`` (requests are missing)."""
        at, usual = due.at, due.middle
        with np.errstate(invalid="ignore"):
            fewer = _below(near, before, FEWER)
            # at a degrade level the gateway itself rejects requests (429) and lets others wait
            shed = (memory["degraded_until"] >= at) & ~(probe.status >= SERVER_ERROR)
            fails = (probe.failed >= FAILED_PROBES) & probe.failing_now & ~probe.unreached & ~shed
            memory["shut"] = healthy & ((fails & fewer) | (memory["shut"] & probe.failing_now))
            few = np.where(np.isnan(usual), DROP_RATIO_UNTAUGHT, DROP_RATIO)
            few = np.minimum(few, DROP_RATIO_HOLIDAY) if holiday else few
            unusual = np.isnan(usual) | ((near[0] < USUAL_RATIO * usual) & ~(due.forecast & (near[0] >= due.low)))
            through = (probe.failed == 0) | ((probe.failed == 1) & ~probe.failing_now)
            named = memory["named_until"] >= at
            starts = _below(near, before, few) & unusual & through & healthy & ~named & ~memory["shut"]
            holds = memory["dropped"] & ~(near[0] > BACK_RATIO * before[0]) & ~(probe.failed >= FAILED_PROBES)
            holds &= at - memory["since"] < HELD_AT_MOST
        standing = starts | holds
        begun = np.where(np.isnan(memory["since"]), at - MINUTE.total_seconds(), memory["since"])
        memory["dropped"] = standing
        memory["since"] = np.where(standing | memory["shut"], begun, np.nan)

    def _learn(self, window: Window, memory: Arrays, rate: Floats, each: Floats, healthy: Flags, last: float) -> None:
        """Follows the level; one far below the earlier level counts only after it has lasted, or on a holiday."""
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
        quiet = self._baseline.is_holiday(at)
        frozen = memory["shut"] | memory["dropped"] | ~healthy
        for name, value in levels.items():
            memory[name] = np.where(lasted & np.isfinite(value), value, memory[name])
            arrivals.follow(memory, name, value, step, frozen | (far[name] & ~lasted & (not quiet)))
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
        pool = {"last": np.array([newest_time])} | state_fingerprint.of_zone(self._zone)
        return DetectorState(self.state_version, window.entities, {**memory, **pool})


_EXPLAINED_SECONDS = {
    (EventKind.CHANGE, "calendar"): CALENDAR_SECONDS,
    (EventKind.ACTION, "switch_cluster"): 3600.0,
    (EventKind.ACTION, "degrade_service"): 3600.0,
}
# A restore ends one of several levels, and the requests that were held come after it.
_SHED_SECONDS = {(EventKind.ACTION, "degrade_service"): 3600.0, (EventKind.ACTION, "restore_service"): 600.0}


def _note_events(window: Window, memory: Arrays) -> None:
    """Notes calendar days, switches between clusters and degrade levels: they explain few requests."""
    place = {entity: row for row, entity in enumerate(window.entities)}
    for event in sorted(window.events, key=lambda event: event.at):
        row, what = place.get(event.entity), (event.kind, event.code)
        if row is None:
            continue
        if what in _EXPLAINED_SECONDS:
            until = event.at.timestamp() + _EXPLAINED_SECONDS[what]
            memory["named_until"][row] = np.fmax(memory["named_until"][row], until)
        if what in _SHED_SECONDS:
            memory["degraded_until"][row] = event.at.timestamp() + _SHED_SECONDS[what]


def _rates(window: Window) -> tuple[Floats, Floats]:
    """Arrivals of the service and per ready backend; lost engine data halves the first only."""
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
    """True if arrivals, in total and per backend, are below a share of the earlier level by more than chance."""
    seconds = MINUTE.total_seconds()
    far = (before[0] - near[0]) * seconds > SIGMAS * np.sqrt(np.maximum(before[0] * seconds, 1.0))
    result: Flags = (near[0] < ratio * before[0]) & (near[1] < ratio * before[1]) & far
    return result


def _healthy(window: Window) -> Flags:
    """True if engines are ready and do not fail, and nothing queues."""
    columns = windows.recent(
        window, probe_window.PROBES
    )  # a probe without an engine or behind a queue failed because of that
    queue, flight = window.column("svc_queue_requests")[:, columns], window.column("svc_inflight_requests")[:, columns]
    answered = np.nan_to_num(window.column("svc_requests_total")[:, columns]).sum(axis=1)
    failed = np.nan_to_num(window.column("svc_failed_total")[:, columns]).sum(axis=1)
    ready = window.column("svc_ready_backends")
    none = (ready[:, columns] < 1).any(axis=1) | (newest(window, ready) < 1)
    with np.errstate(invalid="ignore"):
        free = ~(queue > np.maximum(1.0, QUEUE_SHARE * flight)).any(axis=1)
        result: Flags = free & ~none & (failed <= FAILED_MOST * np.maximum(answered, 20.0))
    return result
