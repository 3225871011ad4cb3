"""SLOs as detectors, named ``slo:<name>``: error-budget burn rate over a long and a short window.

Events of three days are counted in blocks of a minute and of half an hour in the detector's own state, so that no
three-day window is kept. For an entity younger than the long window, the burn rate covers its lifetime: the question
is the share of the budget spent. Without values, or with so few events that a few bad ones look like many, there is no
verdict; a firing alert then continues. An entity unseen for three hours starts over. An SLO on a part of a service
sums the replicas of that part, and counts no history from before its start. Misleading if clients retry failures: one
fault then counts as many events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import late_seconds, no_verdicts, unusable_reason
from detectors.base.findings import evidence, fingerprint
from detectors.base.sampling import spacing
from detectors.base.state_arrays import Arrays
from detectors.learning import state_fingerprint
from detectors.rules.service_parts import by_service
from detectors.statistics.baseline import follow
from detectors.statistics.rolling_counts import RollingCounts
from outrider.model import (
    CellStatus,
    DetectorState,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    TimeRange,
    Window,
)
from outrider.ports import Detector
from outrider.topology import Topology
from outrider.vocabulary import indicators
from outrider.vocabulary.slo import BURNS, Burn, Slo
from outrider.vocabulary.units import format_duration

KEPT_SECONDS = 3 * 3600.0  # seconds that counts of an unseen entity are kept
MINUTES = RollingCounts("minutes", timedelta(minutes=1), timedelta(hours=6))
HALF_HOURS = RollingCounts("half_hours", timedelta(minutes=30), timedelta(days=3))
_COUNTED = ("bad", "total")
_PER_ENTITY = ("first", "seen")


def compile_slos(slos: Sequence[Slo]) -> tuple[Detector, ...]:
    """A detector for every SLO."""
    return tuple(BurnRateDetector(slo) for slo in slos)


@dataclass(frozen=True, slots=True)
class _Burning:
    """One pair of windows, for all entities: arrays of shape (entities,)."""

    burn: Burn
    rate: Floats
    bad: Floats
    total: Floats
    holds: NDArray[np.bool_]
    unsure: NDArray[np.bool_]


class BurnRateDetector:
    """One SLO over all entities that it covers."""

    state_version = 1
    window = timedelta(minutes=10)

    def __init__(self, slo: Slo) -> None:
        """Raises ValueError for an objective outside (0, 1), which has no budget."""
        indicators.burn_rate(1.0, slo.objective)
        self._slo = slo
        self.name = slo.detector
        self.kind = slo.kind
        self.keys = slo.keys
        self._counts = [f"{which}:{key}" for which, keys in (("bad", slo.bad), ("total", slo.total)) for key in keys]
        self._counts += [f"where:{key}={'|'.join(values)}" for key, values in slo.where.items()]

    def initial(self) -> DetectorState:
        """Returns the state without counts."""
        return self._state((), _fresh(0), -np.inf)

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """The usable part of a checkpoint: events of another SLO definition are dropped."""
        fits = state_fingerprint.same_signals(state, self._counts)
        return (state, "") if fits else (self.initial(), "it counted other events")

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Counts the last three days of history. Finds nothing."""
        if self._slo.where:
            return state  # the facts of that time are not known
        entities, memory, last = self._follow(state, window)
        if window.times.size:
            reach = float(window.times[-1]) - HALF_HOURS.span.total_seconds()
            last = self._count(window, memory, max(last, reach), last)
        return self._state(entities, memory, last)

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """One finding per entity whose budget burns, with its most urgent pair of windows."""
        reason = unusable_reason(window, now.timestamp())
        if reason is None and now.timestamp() < _last(state):
            reason = NoVerdictReason.CLOCK_STEP
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        if self._slo.where:
            window = by_service(window, self._slo.where, topology)
        entities, memory, last = self._follow(state, window)
        last = self._count(window, memory, last, last)
        mine = np.array([self._slo.about(entity) for entity in window.entities], dtype=np.bool_)
        verdicts = self._verdicts(window, memory, mine, now)
        return self._state(entities, memory, last), verdicts

    def _verdicts(
        self, window: Window, memory: Arrays, mine: NDArray[np.bool_], now: datetime
    ) -> tuple[Finding | NoVerdict, ...]:
        if not mine.any():
            return (NoVerdict(self.name, self._slo.service, NoVerdictReason.NO_VALUES),)
        at, count = float(window.times[-1]), len(window.entities)
        judged = {name: array[:count] for name, array in memory.items()}
        silent = mine & ~(judged["seen"] >= at - late_seconds(window))
        burning = [self._burning(judged, burn, at) for burn in BURNS]
        verdicts: list[Finding | NoVerdict] = []
        open_ = mine & ~silent
        for item in burning:
            rows = np.flatnonzero(open_ & item.holds)
            verdicts += [self._finding(window.entities[row], int(row), item, now) for row in rows]
            open_ &= ~item.holds
        unsure = open_ & np.logical_or.reduce([entry.unsure for entry in burning])
        few = NoVerdictReason.NOT_ENOUGH_EVENTS
        verdicts += [NoVerdict(self.name, window.entities[row], few) for row in np.flatnonzero(unsure)]
        status = np.stack([window.column_status(key) for key in self._slo.keys], axis=2).min(axis=2)
        return (*verdicts, *no_verdicts(self.name, window.entities, status, silent))

    def _burning(self, memory: Arrays, burn: Burn, at: float) -> _Burning:
        bad, total = (_within(memory, counted, at, burn.long) for counted in _COUNTED)
        short_bad, short_all = (_within(memory, counted, at, burn.short) for counted in _COUNTED)
        budget = 1.0 - self._slo.objective
        lived = np.clip((at - memory["first"]) / burn.long.total_seconds(), 0.0, 1.0)
        rate = _share(bad, total) / budget
        burns = np.nan_to_num(rate * lived) >= burn.factor
        still = np.nan_to_num(_share(short_bad, short_all) / budget) >= burn.factor
        enough = (total >= self._slo.least_events) & (bad >= self._slo.least_bad)
        holds = burns & still & enough
        return _Burning(burn, rate, bad, total, holds, burns & (still | (short_all <= 0)) & ~holds)

    def _finding(self, entity: EntityRef, row: int, burning: _Burning, now: datetime) -> Finding:
        burn, slo, rate = burning.burn, self._slo, float(burning.rate[row])
        item = evidence(
            slo.bad[0].name,
            rate,
            "budget_burns",
            Interval(None, burn.factor),
            slo=slo.name,
            rate=rate,
            factor=burn.factor,
            long=format_duration(burn.long),
            short=format_duration(burn.short),
            bad=f"{burning.bad[row]:.0f}",
            events=f"{burning.total[row]:.0f}",
        )
        return Finding(
            detector=self.name,
            entity=entity,
            signals=tuple(dict.fromkeys(key.name for key in slo.keys)),
            severity=slo.page if burn.pages else slo.ticket,
            score=1.0,
            observed=rate,
            expected=Interval(None, burn.factor),
            window=TimeRange(now - burn.long, now),
            evidence=(item,),
            fingerprint=fingerprint(self.name, entity, "burns"),
        )

    def _count(self, window: Window, memory: Arrays, after: float, last: float) -> float:
        """Counts every column after ``after``; returns the time of the last count."""
        count, seconds = len(window.entities), spacing(window)
        bad, total = events(window, self._slo)
        for place in np.flatnonzero(window.times > after):
            at = float(window.times[place])
            has_events = np.zeros(memory["seen"].size, dtype=np.bool_)
            has_events[:count] = ~np.isnan(total[:, place])
            counted = {name: np.zeros(has_events.size) for name in _COUNTED}
            counted["total"][:count] = np.nan_to_num(total[:, place])
            counted["bad"][:count] = np.minimum(np.nan_to_num(bad[:, place]), counted["total"][:count])
            for tally in (MINUTES, HALF_HOURS):
                tally.add(memory, counted, at, last)
            first = has_events & np.isnan(memory["first"])
            memory["first"] = np.where(first, at - float(seconds[place]), memory["first"])
            memory["seen"] = np.where(has_events, at, memory["seen"])
            last = at
        return last

    def _follow(self, state: DetectorState, window: Window) -> tuple[tuple[EntityRef, ...], Arrays, float]:
        """State of the window's entities, then of recently seen ones."""
        state, _ = self.restored(state)
        there, seen = set(window.entities), state.arrays.get("seen")
        newest = float(window.times[-1]) if window.times.size else -np.inf
        away: tuple[EntityRef, ...] = ()
        if seen is not None and seen.shape == (len(state.entities),):
            recent = np.flatnonzero(seen >= newest - KEPT_SECONDS)
            away = tuple(state.entities[row] for row in recent if state.entities[row] not in there)
        entities = (*window.entities, *away)
        return entities, follow(dict(state.arrays), state.entities, entities, _fresh(len(entities))), _last(state)

    def _state(self, entities: tuple[EntityRef, ...], memory: Arrays, last: float) -> DetectorState:
        rest = {"last": np.array([last]), **state_fingerprint.of_signals(self._counts)}
        return DetectorState(self.state_version, entities, {**memory, **rest})


def _fresh(count: int) -> Arrays:
    return {
        **MINUTES.fresh(count, _COUNTED),
        **HALF_HOURS.fresh(count, _COUNTED),
        **{name: np.full(count, np.nan) for name in _PER_ENTITY},
    }


def _last(state: DetectorState) -> float:
    held = state.arrays.get("last")
    return float(held[0]) if held is not None and held.size == 1 else -np.inf


def _within(memory: Arrays, counted: str, at: float, span: timedelta) -> Floats:
    tally = MINUTES if span <= MINUTES.span else HALF_HOURS
    return tally.sums(memory, counted, at, span)


def _share(bad: Floats, total: Floats) -> Floats:
    return np.divide(bad, total, out=np.full_like(bad, np.nan), where=total > 0)


def events(window: Window, slo: Slo) -> tuple[Floats, Floats]:
    """Bad events and all events, (entities, times); NaN if an entity has no usable value of either kind."""
    bad, total = _sum(window, slo.bad), _sum(window, slo.total)
    if slo.otherwise is None:
        return bad, total
    lacking = ~np.isfinite(total).any(axis=1, keepdims=True)
    other_bad, other_total = (_sum(window, keys) for keys in slo.otherwise)
    return np.where(lacking, other_bad, bad), np.where(lacking, other_total, total)


def _sum(window: Window, keys: Sequence[SignalKey]) -> Floats:
    """Sums over the columns, (entities, times); NaN if none of them has a usable value."""
    values = np.stack([window.column(key) for key in keys], axis=2)
    status = np.stack([window.column_status(key) for key in keys], axis=2)
    good = (status <= CellStatus.BELOW_FIRST_BUCKET) & np.isfinite(values) & (values >= 0)
    summed = np.where(good, values, 0.0).sum(axis=2)
    result: Floats = np.where(good.any(axis=2), summed, np.nan)
    return result
