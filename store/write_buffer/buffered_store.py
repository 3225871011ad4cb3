"""A metric store that buffers cycles on disk while the real one is unavailable, and writes them in order afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from outrider import log
from outrider.errors import StoreError, StoreUnavailableError
from outrider.model import EntityKind, EntityRef, Event, SampleBatch, SignalKey, Statistic, Window
from outrider.ports import MetricStore
from store.write_buffer.segments import BufferedCycle, BufferStatus, CycleFiles

CATCH_UP = timedelta(seconds=2)
"""Time that one cycle may spend on writing buffered cycles."""
_REFUSALS = 3  # a cycle that is rejected so often, while others are accepted, is set aside
_log = log.get("spool")


class BufferedMetricStore:
    """Implements ``outrider.ports.MetricStore``: reads go to the store; writes never fail because it is unavailable."""

    def __init__(
        self, store: MetricStore, folder: Path, limit_bytes: int, may_write: Callable[[], bool] = lambda: True
    ) -> None:
        """``folder`` should not be on the store's own disk. While ``may_write`` is False, cycles are buffered too."""
        self._store, self._may_write = store, may_write
        self._files = CycleFiles(folder, limit_bytes)
        self._refused: dict[Path, int] = {}
        self._unavailable = False

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        """Writes one cycle to the store, or behind the buffered ones; returns the number of cells with a value."""
        if not self._may_write():
            is_buffered = self._keep(BufferedCycle(at, tuple(batches), tuple(events)))
        elif not self._files.waiting():
            try:
                return self._store.write(at, batches, events)
            except StoreError as error:
                self._log_state(unavailable=True, error=error)
                is_buffered = self._keep(BufferedCycle(at, tuple(batches), tuple(events)))
        else:
            is_buffered = self._keep(BufferedCycle(at, tuple(batches), tuple(events)))
            self._catch_up()
        return sum(int(np.count_nonzero(~np.isnan(batch.values))) for batch in batches) if is_buffered else 0

    def _keep(self, cycle: BufferedCycle) -> bool:
        try:
            dropped = self._files.put(cycle)
        except OSError as error:
            _log.error("write_buffer_failed", error=error.strerror, at=str(cycle.at), lost="one cycle")
            return False
        if dropped:
            _log.error("write_buffer_full", dropped_cycles=dropped, hint="raise store.spool.limit_bytes")
        return True

    def _catch_up(self) -> None:
        """Writes buffered cycles, oldest first, within the time limit."""
        until = time.monotonic() + CATCH_UP.total_seconds()
        for path in self._files.waiting():
            try:
                cycle = self._files.read(path)
                self._store.write(cycle.at, cycle.batches, cycle.events)
            except StoreError as error:
                if self._is_stuck(path, error):
                    return
                continue
            self._files.done(path)
            self._refused.clear()
            self._log_state(unavailable=False)
            if time.monotonic() >= until:
                return

    def _is_stuck(self, path: Path, error: StoreError) -> bool:
        """True if the following cycles must wait too; False if only this cycle was faulty and is set aside."""
        self._log_state(unavailable=True, error=error)
        if isinstance(error, StoreUnavailableError):
            return True
        self._refused[path] = self._refused.get(path, 0) + 1
        if self._refused[path] < _REFUSALS:
            return True
        _log.error("cycle_set_aside", file=str(path), error=error.message)
        self._files.set_aside(path)
        return False

    def _log_state(self, *, unavailable: bool, error: StoreError | None = None) -> None:
        if unavailable and not self._unavailable:
            _log.error("store_unavailable", error=error.message if error else "", hint=error.hint if error else "")
        elif self._unavailable and not unavailable:
            _log.info("store_available", waiting=self.status().cycles)
        self._unavailable = unavailable

    def set_aside(self) -> int:
        """Sets all buffered cycles aside, because another engine wrote these timestamps; returns their number."""
        waiting = self._files.waiting()
        for path in waiting:
            self._files.set_aside(path)
        return len(waiting)

    def status(self) -> BufferStatus:
        """Status of the buffer."""
        return self._files.status()

    # --- reads go to the store --------------------------------------------------------------------

    def read_windows(
        self,
        kind: EntityKind,
        keys: Sequence[SignalKey],
        start: datetime,
        end: datetime,
        step: timedelta,
        entities: Sequence[EntityRef] | None = None,
        *,
        statistic: Statistic = Statistic.LAST,
    ) -> Window:
        """Reads from the store."""
        return self._store.read_windows(kind, keys, start, end, step, entities, statistic=statistic)

    def latest(self, kind: EntityKind, keys: Sequence[SignalKey] | None = None) -> Window:
        """Reads from the store."""
        return self._store.latest(kind, keys)

    def entities(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Reads from the store."""
        return self._store.entities(kind)

    def events(self, start: datetime, end: datetime, entity: EntityRef | None = None) -> tuple[Event, ...]:
        """Reads from the store."""
        return self._store.events(start, end, entity)

    def close(self) -> None:
        """Closes the store. Buffered cycles stay on disk for the next start."""
        self._store.close()
