"""Values: the result of one scrape, and the window that a detector reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from outrider.model.entities import EntityKind, EntityRef
from outrider.model.events import Event
from outrider.model.signals import CellStatus, SignalKey
from outrider.model.stored_forecasts import ForecastView

Floats = NDArray[np.float64]
Statuses = NDArray[np.uint8]


class TrustVerdict(StrEnum):
    """Trust in a batch as a whole."""

    FRESH = "fresh"
    FAILED = "failed"  # the scrape failed: only target_up has a value
    STALE = "stale"
    RESET = "reset"
    PARTIAL = "partial"  # series of the previous page are missing: devices until they return, others for a while
    CLOCK_STEP = "clock_step"
    FROZEN = "frozen"  # values that always change have not changed: the page is cached
    DUPLICATE = "duplicate"  # a series is on the page more than once; the first one counts
    EXPLOSION = "explosion"  # more series than the limit of the target; only those of the adapter were kept

    @property
    def code(self) -> float:
        """The value of the signal ``target_trust_code``."""
        return float(tuple(TrustVerdict).index(self))

    @property
    def is_doubtful(self) -> bool:
        """True if such a batch must not lead to removals (safety rule 1)."""
        return self not in {TrustVerdict.FRESH, TrustVerdict.DUPLICATE, TrustVerdict.EXPLOSION}


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Values of one scrape of one target, for the entities of one kind.

    ``values`` and ``status`` have shape (entities, keys). A cell without a value is NaN, with its reason as status.
    ``interval_seconds`` is the time since the target's last successful scrape, None on the first; deltas and rates
    refer to that interval.
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
    """Input of a detector: recent values of the entities of one kind.

    ``values`` and ``status`` have shape (entities, times, keys); ``times`` are unix seconds, ascending, one per cycle
    and not necessarily evenly spaced. ``events`` are those of this kind of entity inside the window. ``foreseen`` is
    the forecast for the current time, None without one. Raises nothing; a column that was never collected is all
    ABSENT.
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
        """Indexes the columns: detectors read hundreds of them per cycle."""
        object.__setattr__(self, "_places", {key: index for index, key in enumerate(self.keys)})

    def column(self, key: SignalKey | str) -> Floats:
        """The (entities, times) values of one key; all NaN if the window does not have it."""
        index = self._places.get(SignalKey(key) if isinstance(key, str) else key)
        return np.full(self.values.shape[:2], np.nan) if index is None else self.values[:, :, index]

    def column_status(self, key: SignalKey | str) -> Statuses:
        """The (entities, times) statuses of one key; all ABSENT if the window does not have it."""
        index = self._places.get(SignalKey(key) if isinstance(key, str) else key)
        if index is None:
            return np.full(self.values.shape[:2], CellStatus.ABSENT, dtype=np.uint8)
        return self.status[:, :, index]
