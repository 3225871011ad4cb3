"""Replays a rule over stored values at several thresholds and waiting times at once.

The steps from values to alerts are those of the cycle: the compiled expression over the rule's window, then pending,
firing, resolved with waiting and clear time. Missing values follow the policy of the rule. A test compares this with
the alert state machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import late_seconds
from detectors.rules.threshold import REMEMBERED, SHORTEST_WINDOW
from detectors.rules.tunable_threshold import TunableThreshold
from outrider.model import EntityRef, Floats, Priority, Window
from outrider.vocabulary.rules import AbsentPolicy, Rule

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class JudgedAlert:
    """One span of an alert with operator feedback; ``useful``: it had a real cause.

    Spans of one ``occasion`` (an incident) count once.
    """

    fingerprint: str
    entity: EntityRef
    priority: Priority
    starts_at: datetime
    ends_at: datetime
    useful: bool
    occasion: str = ""
    id: str = ""

    @property
    def is_page(self) -> bool:
        """True for an alert that pages."""
        return self.priority.rank <= Priority.P1.rank


def window_of(dial: TunableThreshold) -> timedelta:
    """The history that the rule reads in each cycle."""
    return max(dial.whole.span, SHORTEST_WINDOW)


def parts(window: Window, since: datetime, span: timedelta) -> Iterator[tuple[float, Window]]:
    """The rule's input at each column from ``since`` on: the time and its window."""
    for column in range(int(np.searchsorted(window.times, since.timestamp())), window.times.size):
        at = float(window.times[column])
        past = slice(int(np.searchsorted(window.times, at - span.total_seconds(), side="right")), column + 1)
        times, values, status = window.times[past], window.values[:, past], window.status[:, past]
        yield at, Window(window.kind, window.entities, times, window.keys, values, status, window.step)


class RuleBacktest:
    """The alerts of one rule at every setting. Feed windows in order with ``feed``, then read the results.

    ``alarms`` (settings,) counts fired alerts. ``caught`` (settings, judged) marks judged spans that would have fired,
    ``fired_at`` the time in unix seconds, NaN otherwise.
    """

    def __init__(
        self,
        dial: TunableThreshold,
        thresholds: Floats,
        waits: Floats,
        rule: Rule,
        entities: Sequence[EntityRef],
        judged: Sequence[JudgedAlert],
    ) -> None:
        """``thresholds`` and ``waits`` (seconds) are parallel: one setting each; the rest is that of the rule."""
        self._dial = dial
        self._rule = rule
        self._thresholds = np.asarray(thresholds, dtype=np.float64)
        self._waits = np.asarray(waits, dtype=np.float64)[:, None]
        self._clear = rule.clear.total_seconds()
        self._span = window_of(dial)
        shape = (self._thresholds.size, len(entities))
        self._pending, self._gone, self._seen, self._judged, self._absent = (np.full(shape, np.nan) for _ in range(5))
        self._firing, self._kept = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        self._last = -np.inf
        places = {entity: row for row, entity in enumerate(entities)}
        known = np.array([places.get(item.entity, -1) for item in judged], dtype=np.intp)
        self._rows, self._known = np.maximum(known, 0), known >= 0
        self._starts = np.array([item.starts_at.timestamp() for item in judged])
        self._ends = np.array([item.ends_at.timestamp() for item in judged])
        self.alarms = np.zeros(shape[0])
        self.caught = np.zeros((shape[0], len(judged)), dtype=bool)
        self.fired_at = np.full((shape[0], len(judged)), np.nan)

    def feed(self, window: Window, since: datetime) -> None:
        """Replays the new columns from ``since`` on; earlier ones are their history."""
        for at, part in parts(window, since, self._span):
            if at > self._last:
                self._step(*self._with_absent(*self._dial.judge(part, self._thresholds), at, late_seconds(part)), at)
                self._last = at

    def _with_absent(self, holds: Flags, silent: Flags, at: float, late: float) -> tuple[Flags, Flags]:
        """Values that are missing for too long count as true if the rule demands it, as in ``RuleDetector``."""
        if self._rule.absent is not AbsentPolicy.FIRE:
            return holds, silent
        self._judged = np.where(silent, self._judged, at)
        age = at - self._judged
        absent = (age > late) & (age <= REMEMBERED.total_seconds())
        return holds | absent, silent & ~absent

    def _step(self, holds: Flags, silent: Flags, at: float) -> None:
        """One cycle, as in ``alerts.state.machine``."""
        waiting = ~np.isnan(self._pending) & ~self._firing
        lost = waiting & self._kept & (at - self._seen > self._waits)
        begins = holds & ~self._firing & (~waiting | lost)
        self._pending = np.where(begins, at, self._pending)
        self._seen = np.where(holds, at, self._seen)
        fires = holds & ~self._firing & (at - self._pending >= self._waits)
        self._gone = np.where(holds | silent, np.nan, self._gone)
        over = ~holds & ~silent
        self._gone = np.where(over & self._firing & np.isnan(self._gone), at, self._gone)
        ends = over & self._firing & (at - self._gone >= self._clear)
        too_long = self._without_values(silent & ~holds, at)
        ends |= too_long & self._firing
        self._pending = np.where(((over | too_long) & ~self._firing) | ends, np.nan, self._pending)
        self._gone = np.where(ends, np.nan, self._gone)
        self._kept = silent & ~holds
        self._firing = (self._firing | fires) & ~ends
        self.alarms += fires.sum(axis=1)
        self._match(at)

    def _without_values(self, silent: Flags, at: float) -> Flags:
        """Alerts that end because their values have been missing for the time that the rule gives."""
        if self._rule.absent is not AbsentPolicy.RESOLVE:
            return np.zeros(silent.shape, dtype=bool)
        active = silent & ~np.isnan(self._pending)
        self._absent = np.where(active, np.where(np.isnan(self._absent), at, self._absent), np.nan)
        ends: Flags = active & (at - self._absent >= self._rule.resolve_after.total_seconds())
        return ends

    def _match(self, at: float) -> None:
        """A judged span is caught if the same entity's alert fires within it."""
        during = np.flatnonzero(self._known & (self._starts <= at) & (at <= self._ends))
        if during.size == 0:
            return
        fires = self._firing[:, self._rows[during]]
        new = fires & ~self.caught[:, during]
        self.caught[:, during] |= fires
        self.fired_at[:, during] = np.where(new, at, self.fired_at[:, during])
