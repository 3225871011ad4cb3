"""Values: what one scrape said, and the recent past that a detector reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from outrider.model.entities import EntityKind, EntityRef
from outrider.model.events import Event
from outrider.model.foreseen import ForecastView
from outrider.model.signals import CellStatus, SignalKey

Floats = NDArray[np.float64]
Statuses = NDArray[np.uint8]


class TrustVerdict(StrEnum):
    """What to believe of one batch as a whole."""

    FRESH = "fresh"
    FAILED = "failed"  # the scrape failed: there are no values beside target_up
    STALE = "stale"
    RESET = "reset"
    PARTIAL = "partial"  # what stood on the page before is missing: devices until they are back, all else for a while
    CLOCK_STEP = "clock_step"
    FROZEN = "frozen"  # what always moves on this page has stood still: somebody serves an old one
    DUPLICATE = "duplicate"  # a series stands on the page more than once; the first one counts
    EXPLOSION = "explosion"  # more series than the target may have; only what an adapter reads was kept

    @property
    def code(self) -> float:
        """The value of signal ``target_trust_code``."""
        return float(tuple(TrustVerdict).index(self))

    @property
    def is_doubtful(self) -> bool:
        """True when nothing may be taken away on the word of such a batch (safety rule 1)."""
        return self not in {TrustVerdict.FRESH, TrustVerdict.DUPLICATE, TrustVerdict.EXPLOSION}


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """What one scrape of one target said about the entities of one kind.

    ``values`` and ``status`` have shape (entities, keys). A cell without a value is NaN with the
    status that says why. ``interval_seconds`` is the time since the target's last good scrape, None
    on the first: deltas and rates are about that interval.
    """

    source: str
    scraped_at: datetime
    kind: EntityKind
    keys: tuple[SignalKey, ...]
    entities: tuple[EntityRef, ...]
    values: Floats
    status: Statuses
    interval_seconds: float | None = None
    trust: TrustVerdict = TrustVerdict.FRESH


@dataclass(frozen=True, slots=True)
class Window:
    """What a detector reads: the recent past of the entities of one kind.

    ``values`` and ``status`` have shape (entities, times, keys); ``times`` are unix seconds, rising,
    one per cycle and not necessarily evenly spaced. ``events`` are those of this kind of entity
    inside the window. ``foreseen`` is what was forecast of now, None where nobody plans or nothing is forecast
    yet. Raises nothing; a column that was never collected is all ABSENT.
    """

    kind: EntityKind
    entities: tuple[EntityRef, ...]
    times: Floats
    keys: tuple[SignalKey, ...]
    values: Floats
    status: Statuses
    step: timedelta
    events: tuple[Event, ...] = ()
    foreseen: ForecastView | None = None
    _places: Mapping[SignalKey, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Detectors ask for hundreds of columns a cycle: none of them is searched for."""
        object.__setattr__(self, "_places", {key: place for place, key in enumerate(self.keys)})

    def column(self, key: SignalKey | str) -> Floats:
        """The (entities, times) values of one key; all NaN when the window does not carry it."""
        place = self._places.get(SignalKey(key) if isinstance(key, str) else key)
        return np.full(self.values.shape[:2], np.nan) if place is None else self.values[:, :, place]

    def column_status(self, key: SignalKey | str) -> Statuses:
        """The (entities, times) statuses of one key; all ABSENT when the window does not carry it."""
        place = self._places.get(SignalKey(key) if isinstance(key, str) else key)
        if place is None:
            return np.full(self.values.shape[:2], CellStatus.ABSENT, dtype=np.uint8)
        return self.status[:, :, place]
