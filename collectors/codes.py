"""Fault codes on a page to events: a gauge that changes, or a count that grows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np

from collectors.exposition import Page
from collectors.places import Place, Watch
from outrider.clock import rfc3339
from outrider.model import EntityRef, Event, EventKind

_MOST_AT_ONCE = 20


class CodeWatch:
    """Remembers the codes of one target.

    The first sight of a device is a baseline and no event: after a restart of ours, or of the
    exporter, a sticky gauge still shows an old code. The same code twice is invisible in a gauge; a
    count per code shows it, one event an increment.
    """

    def __init__(self) -> None:
        self._codes: dict[EntityRef, float] = {}
        self._counts: dict[tuple[EntityRef, str], float] = {}
        self._seen: set[EntityRef] = set()

    def look(
        self, watches: Sequence[Watch], page: Page, bind: Callable[[Place], EntityRef], at: datetime, source: str
    ) -> tuple[Event, ...]:
        """Events since the last page. A code seen both ways at once is one event."""
        found: dict[str, Event] = {}
        codes: dict[EntityRef, tuple[float, Watch]] = {}
        counts: dict[tuple[EntityRef, str], float] = {}
        for watch in watches:
            entity, value = bind(watch.place), float(page.values[watch.row])
            if not np.isfinite(value):
                continue
            if watch.code is None:
                # The code may also be a label, so one device can have several series: the largest counts.
                if entity not in codes or value > codes[entity][0]:
                    codes[entity] = (value, watch)
            else:
                counts[entity, watch.code] = counts.get((entity, watch.code), 0.0) + value
        for entity, (value, watch) in codes.items():
            before = self._codes.get(entity)
            if before is not None and value not in {before, 0.0}:
                _add(found, entity, f"{value:g}", 0, watch, at, source)
        attributes = {(bind(watch.place), watch.code): watch for watch in watches if watch.code is not None}
        for (entity, code), value in counts.items():
            if entity in self._seen:
                grown = round(value - self._counts.get((entity, code), 0.0))
                for number in range(min(max(grown, 0), _MOST_AT_ONCE)):
                    _add(found, entity, code, number, attributes[entity, code], at, source)
        self._codes.update({entity: value for entity, (value, _) in codes.items()})
        self._counts = counts
        return tuple(found.values())

    def saw(self, entities: Sequence[EntityRef]) -> None:
        """These devices were on the page: from now on a new count of theirs is news."""
        self._seen = set(entities)


def _add(
    found: dict[str, Event], entity: EntityRef, code: str, number: int, watch: Watch, at: datetime, source: str
) -> None:
    key = f"{EventKind.XID}/{entity.key}/{code}/{rfc3339(at)}/{number}"
    identity = hashlib.sha256(key.encode()).hexdigest()[:24]
    found.setdefault(key, Event(identity, EventKind.XID, entity, at, source, code, dict(watch.attributes), key))
