"""The way in of a service: whether requests get through, and whether as many come as are usual.

*gateway-fault*: the probe from outside gets errors or no answer, while the engines are healthy, nobody
queues, and fewer requests reach them than before. A probe that fails at its name or at TLS is another
fault. *traffic-drop*: far fewer come than before and than was forecast, or is usual at this hour where no
forecast can be used, and the probe gets through. What the calendar names, a view that loses engines, and the end of a
burst are none. More or fewer than forecast for long is told as *traffic-forecast*, without a fault (``traffic.py``).
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import ClassVar

import numpy as np

from detectors import arrivals, probes, readings, traffic
from detectors.attic import Absence, begin_anew
from detectors.baseline import Baseline, follow
from detectors.memory import Arrays, align
from detectors.pasts import newest_of
from detectors.probes import Probes
from detectors.spells import Flags, newest, silences, unusable
from detectors.traffic import Expected
from detectors.verdicts import evidence, finding
from outrider import windows
from outrider.model import (
    DetectorState,
    EntityKind,
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
HELD_AT_MOST = 12 * 3600.0  # then what was low is the new usual
_RATE = traffic.RATE
_BLOCK = 256


class EntryDetector:
    """gateway-fault and traffic-drop."""

    name = "entry"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = (
        *arrivals.KEYS,
        *probes.KEYS,
        *(
            SignalKey(name)
            for name in (
                _RATE,
                "svc_failed_total",
                "svc_queue_requests",
                "svc_ready_backends",
            )
        ),
    )
    window = timedelta(minutes=10)
    state_version = 2
    _defaults: ClassVar[dict[str, float | bool]] = {
        "shut": False,
        "dropped": False,
        "since": np.nan,
        "arriving": np.nan,
        "arriving_weight": 0.0,
        "each": np.nan,
        "each_weight": 0.0,
        "named_until": np.nan,
        **traffic.DEFAULTS,
    }

    def __init__(self) -> None:
        """The hours of the day and the days of the week are learnt for one signal, the rate of requests."""
        self._baseline = Baseline((_RATE,))

    def set_zone(self, zone: tzinfo) -> None:
        """Where the days of the week begin and end; before the first cycle."""
        self._baseline.set_zone(zone)

    def initial(self) -> DetectorState:
        """Nothing learnt."""
        return DetectorState(self.state_version, (), {**self.of_entities(0), "last": np.array([-np.inf])})

    def of_entities(self, count: int) -> Arrays:
        """Memory of ``count`` services that nothing is known about."""
        return {
            **{name: np.full(count, value) for name, value in self._defaults.items()},
            **self._baseline.empty(count),
        }

    def clock(self, state: DetectorState) -> float:
        """The newest unix second that was seen."""
        return newest_of(state)

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Bring services that return up to now: of what goes on there nothing is known, of their days all."""
        begin_anew(memory, self.of_entities(away.seconds.size), tuple(self._defaults))
        self._baseline.rest(memory, away.seconds)

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learn the hours of the day from history, oldest first."""
        memory, last = self._follow(state, window)
        seconds = readings.spacing(window)
        first = int(np.searchsorted(window.times, last, side="right"))
        for start in range(first, window.times.size, _BLOCK):
            values = readings.read(window, (_RATE,), slice(start, start + _BLOCK))
            for place in range(values.shape[1]):
                at, long = float(window.times[start + place]), float(seconds[start + place])
                self._baseline.learn(memory, values[:, place], at, long)
        return self._state(window, memory, last)

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """A finding per service whose way in fails or whose requests stay away."""
        reason = unusable(window, now.timestamp())
        if reason is not None or not window.entities:
            return state, (NoVerdict(self.name, None, reason),) if reason else ()
        memory, last = self._follow(state, window)
        _note_calendar(window, memory)
        at = float(window.times[-1])
        self._baseline.turn(memory, at)
        usual = self._baseline.usual(memory, at)
        due = traffic.expected(window, memory, usual)
        probe = probes.read(window)
        rate, each = _rates(window)
        near, before = _now_and_before(window, memory, rate, each)
        healthy = _healthy(window)
        self._judge(memory, probe, near, before, due, healthy)
        comes = traffic.follow(window, memory, due, last)
        self._learn(window, memory, rate, each, healthy, last)
        found = self._findings(window, memory, probe, near, before, usual.level[:, 0], due, now)
        other = memory["shut"] | memory["dropped"] | ((memory["off_side"] < 0) & (memory["named_until"] >= at))
        found += traffic.findings(window.entities, memory, comes, due, other, now)
        untold = np.asarray(np.isnan(rate).all(axis=1), dtype=np.bool_)
        quiet = silences(self.name, window.entities, window.column_status("svc_requests_total"), untold)
        unsure = traffic.silences(window, memory, comes, due)
        return self._state(window, memory, last), (*found, *quiet, *unsure)

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
        frozen = memory["shut"] | memory["dropped"] | ~healthy
        step = window.step.total_seconds()
        for name, values in (("arriving", rate), ("each", each)):
            newest_value = newest(window, values)
            with np.errstate(invalid="ignore"):
                far = newest_value < DROP_RATIO * arrivals.remembered(memory[name], memory[f"{name}_weight"])
            arrivals.follow(memory, name, newest_value, step, frozen | far)
        if window.times[-1] > last:
            value = readings.read(window, (_RATE,), slice(-1, None))[:, 0]
            self._baseline.learn(memory, value, float(window.times[-1]), step, frozen[:, None])

    def _findings(
        self,
        window: Window,
        memory: Arrays,
        probe: Probes,
        near: tuple[Floats, Floats],
        before: tuple[Floats, Floats],
        usual: Floats,
        due: Expected,
        now: datetime,
    ) -> list[Finding]:
        found = []
        for row in np.flatnonzero(memory["shut"] | memory["dropped"]):
            rate, held = float(near[0][row]), float(before[0][row])
            if memory["shut"][row]:
                because: tuple[Evidence, ...] = (probes.why(probe, int(row)), _why_fewer(rate, held, FEWER))
                fault = "gateway-fault"
            else:
                fault = "traffic-drop"
                because = (*_why_dropped(rate, held, float(usual[row]), probe, int(row)), due.why(int(row)))
            since = memory["since"][row]
            entity = window.entities[row]
            found.append(finding(self.name, entity, fault, score=0.9, since=since, now=now, because=because))
        return found

    def _follow(self, state: DetectorState, window: Window) -> tuple[Arrays, float]:
        plain = align(state, window.entities, self._defaults)
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
    columns = windows.recent(window, probes.PROBES)  # a probe without an engine, or behind a queue, failed for that
    queue, flight = window.column("svc_queue_requests")[:, columns], window.column("svc_inflight_requests")[:, columns]
    answered = np.nan_to_num(window.column("svc_requests_total")[:, columns]).sum(axis=1)
    failed = np.nan_to_num(window.column("svc_failed_total")[:, columns]).sum(axis=1)
    ready = window.column("svc_ready_backends")
    none = (ready[:, columns] < 1).any(axis=1) | (newest(window, ready) < 1)
    with np.errstate(invalid="ignore"):
        free = ~(queue > np.maximum(1.0, QUEUE_SHARE * flight)).any(axis=1)
        found: Flags = free & ~none & (failed <= FAILED_MOST * np.maximum(answered, 20.0))
    return found


def _why_fewer(rate: float, before: float, ratio: float) -> Evidence:
    return evidence(_RATE, rate, "engines_get_less", Interval(ratio * before, None), rate=rate, before=before)


def _why_dropped(rate: float, before: float, usual: float, probe: Probes, row: int) -> tuple[Evidence, ...]:
    limit = Interval(DROP_RATIO * before, None)
    told = [evidence(_RATE, rate, "arrivals_fell", limit, rate=rate, before=before, usual=usual)]
    if probe.asked[row] > 0:
        told.append(evidence("probe_success", 1.0, "way_in_works", None, asked=int(probe.asked[row])))
    return tuple(told)
