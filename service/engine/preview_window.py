"""Recent values with one tentative cycle on top, which the cache does not keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey, Window
from service.engine.detect import RecentValues


class PreviewWindow:
    """Values of the recent cycles and of batches that no cycle has taken yet."""

    def __init__(
        self,
        recent: RecentValues,
        at: datetime,
        batches: Iterable[SampleBatch],
        events: Iterable[Event],
        only: frozenset[EntityRef] | None = None,
    ) -> None:
        """``at`` is after the newest cycle. ``only`` limits the rows, to judge a few entities of a large fleet."""
        self._recent, self._at, self._only = recent, at, only
        self._batches, self._events = tuple(batches), tuple(events)

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        """Returns the recent values with the batches as the newest column."""
        window = self._recent.window(kind, keys, span)
        batches = [batch for batch in self._batches if batch.kind is kind and batch.entities]
        rows = self._rows(window, batches)
        keep = window.times > self._at.timestamp() - span.total_seconds()
        values = np.full((len(rows), int(keep.sum()) + 1, len(keys)), np.nan)
        status = np.full(values.shape, CellStatus.ABSENT, dtype=np.uint8)
        old = [(row, before) for row, before in enumerate(rows.values()) if before >= 0]
        if old:
            target, source = np.array(old, dtype=np.intp).T
            values[target, :-1] = window.values[source][:, keep]
            status[target, :-1] = window.status[source][:, keep]
        row_of = {entity: row for row, entity in enumerate(rows)}
        for batch in batches:
            _put(batch, row_of, keys, values[:, -1], status[:, -1])
        fresh = [event for event in self._events if event.entity.kind is kind or event.kind is EventKind.CHANGE]
        events = {event.id: event for event in (*window.events, *fresh)}
        return replace(
            window,
            entities=tuple(rows),
            times=np.append(window.times[keep], self._at.timestamp()),
            values=values,
            status=status,
            events=tuple(events.values()),
        )

    def _rows(self, window: Window, batches: Sequence[SampleBatch]) -> dict[EntityRef, int]:
        """The entities of the result, each with its row among the recent values; -1 for a new one."""
        only = self._only
        rows = {entity: row for row, entity in enumerate(window.entities) if only is None or entity in only}
        for batch in batches:
            for entity in batch.entities:
                if only is None or entity in only:
                    rows.setdefault(entity, -1)
        return rows


def _put(
    batch: SampleBatch,
    row_of: dict[EntityRef, int],
    keys: Sequence[SignalKey],
    values: np.ndarray,
    status: np.ndarray,
) -> None:
    """Writes a batch into the newest column. A better status wins, as in the cache."""
    places = [(row, row_of[entity]) for row, entity in enumerate(batch.entities) if entity in row_of]
    columns = [(batch.keys.index(key), column) for column, key in enumerate(keys) if key in batch.keys]
    if not places or not columns:
        return
    (rows, targets), (sources, wanted) = np.array(places, dtype=np.intp).T, np.array(columns, dtype=np.intp).T
    new, new_status = batch.values[np.ix_(rows, sources)], batch.status[np.ix_(rows, sources)]
    infinite = np.isinf(new)
    new, new_status = np.where(infinite, np.nan, new), np.where(infinite, CellStatus.UNTRUSTED, new_status)
    cells = np.ix_(targets, wanted)
    better = (new_status < status[cells]) | ((new_status == status[cells]) & np.isnan(values[cells]))
    values[cells] = np.where(better, new, values[cells])
    status[cells] = np.where(better, new_status, status[cells])
