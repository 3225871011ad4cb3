"""A history as the planner reads it: in order, without values that cannot be, and with a count of what is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from outrider.model import CellStatus, SignalKey, Window
from outrider.windows import holding

NEW_DAYS = 2.0
MOST_PER_SECOND = 1e12  # no service takes so many requests: whoever says so counts something else
_SPARSE_RATIO = 0.25


@dataclass(frozen=True, slots=True)
class Facts:
    """Slots of one service's load up to now. ``negative`` (and infinite) values were taken for missing."""

    slots: int
    missing: int
    held: int
    negative: int
    days: float

    @property
    def is_new(self) -> bool:
        """True with so little history that no daily pattern is known."""
        return self.days < NEW_DAYS

    @property
    def confidence(self) -> str:
        """``low`` for a new service and for one of which a quarter of the slots is missing, else ``usual``."""
        sparse = self.slots > 0 and (self.missing + self.held) / self.slots > _SPARSE_RATIO
        return "low" if self.is_new or sparse else "usual"


def cleaned(history: Window, key: SignalKey, now: datetime) -> tuple[Window, tuple[Facts, ...]]:
    """The window with rising times and without negative or infinite values, and the facts of each row.

    Where two columns bear one instant, the later one counts.
    """
    times = np.asarray(history.times, dtype=np.float64)
    order = np.argsort(times, kind="stable")
    last = np.append(np.diff(times[order]) > 0, True) if order.size else np.zeros(0, dtype=bool)
    order = order[last]
    values, status = history.values[:, order].copy(), history.status[:, order].copy()
    place = history.keys.index(key) if key in history.keys else None
    past = times[order] < now.timestamp()
    facts = []
    for row in range(len(history.entities)):
        load = values[row, :, place] if place is not None else np.full(order.size, np.nan)
        impossible = ~np.isnan(load) & ~(np.isfinite(load) & (load >= 0) & (load < MOST_PER_SECOND))
        known = np.isfinite(load) & ~impossible & past
        held = holding(status[row, :, place]) & known if place is not None else np.zeros(order.size, dtype=bool)
        if place is not None:
            values[row, impossible, place] = np.nan
            status[row, impossible, place] = CellStatus.UNTRUSTED
        seen = np.flatnonzero(known)
        inside = past[seen[0] :].sum() if seen.size else 0
        span = float(now.timestamp() - times[order][seen[0]]) / 86400.0 if seen.size else 0.0
        facts.append(Facts(int(inside), int(inside - seen.size), int(held.sum()), int((impossible & past).sum()), span))
    return replace(history, times=times[order], values=values, status=status), tuple(facts)
