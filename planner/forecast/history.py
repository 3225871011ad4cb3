"""Load history as the planner reads it: in time order, without impossible values, with counts of missing ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from outrider.model import CellStatus, SignalKey, Window
from outrider.windows import holding

NEW_DAYS = 2.0
MOST_PER_SECOND = 1e12  # no service receives so many requests: the metric counts something else
_SPARSE_RATIO = 0.25


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """Counts of the slots of one service's load up to now. ``negative`` (and infinite) values count as missing."""

    slots: int
    missing: int
    held: int
    negative: int
    days: float

    @property
    def is_new(self) -> bool:
        """True if the history is too short for a daily pattern."""
        return self.days < NEW_DAYS

    @property
    def confidence(self) -> str:
        """``low`` for a new service or if a quarter of the slots is missing, otherwise ``usual``."""
        sparse = self.slots > 0 and (self.missing + self.held) / self.slots > _SPARSE_RATIO
        return "low" if self.is_new or sparse else "usual"


def clean_history(history: Window, key: SignalKey, now: datetime) -> tuple[Window, tuple[HistoryFacts, ...]]:
    """Returns the window with rising times and without negative or infinite values, and the facts of each row.

    If two columns share a timestamp, the later one counts.
    """
    times = np.asarray(history.times, dtype=np.float64)
    order = np.argsort(times, kind="stable")
    last = np.append(np.diff(times[order]) > 0, True) if order.size else np.zeros(0, dtype=bool)
    order = order[last]
    values, status = history.values[:, order].copy(), history.status[:, order].copy()
    column = history.keys.index(key) if key in history.keys else None
    past = times[order] < now.timestamp()
    facts = []
    for row in range(len(history.entities)):
        load = values[row, :, column] if column is not None else np.full(order.size, np.nan)
        impossible = ~np.isnan(load) & ~(np.isfinite(load) & (load >= 0) & (load < MOST_PER_SECOND))
        known = np.isfinite(load) & ~impossible & past
        held = holding(status[row, :, column]) & known if column is not None else np.zeros(order.size, dtype=bool)
        if column is not None:
            values[row, impossible, column] = np.nan
            status[row, impossible, column] = CellStatus.UNTRUSTED
        positions = np.flatnonzero(known)
        inside = past[positions[0] :].sum() if positions.size else 0
        span = float(now.timestamp() - times[order][positions[0]]) / 86400.0 if positions.size else 0.0
        facts.append(
            HistoryFacts(
                int(inside), int(inside - positions.size), int(held.sum()), int((impossible & past).sum()), span
            )
        )
    return replace(history, times=times[order], values=values, status=status), tuple(facts)
