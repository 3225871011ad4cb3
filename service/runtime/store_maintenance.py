"""The engine's job that keeps the metric store in shape, and says what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime

from outrider import log
from store.tsdb.metric_store import SqlMetricStore
from store.tsdb.retention import DeletionReason, Retention, summary
from store.tsdb.status import LateSamples

_log = log.get("upkeep")


class Keeper:
    """Runs the store's upkeep and tells what came of it, each kind of news once."""

    def __init__(self, metrics: SqlMetricStore, retention: Retention, stop: Callable[[], bool]) -> None:
        """``stop`` is asked between steps of some seconds."""
        self._metrics, self._retention, self._stop = metrics, retention, stop
        self._told: Counter[str] | None = None

    def look(self, now: datetime) -> None:
        """Do what is due. Raises StoreError."""
        if self._told is None:
            self._told = self._refused()
        found = self._metrics.upkeep(now, self._retention, stop=self._stop)
        if found.done:
            _log.info("kept", **{f"{work}_spans": many for work, many in sorted(found.done.items())})
        forgotten = found.forgotten
        if forgotten.rows:
            _log.info("forgotten", bytes=forgotten.bytes, **summary(forgotten.rows))
        if any(because is DeletionReason.SIZE_NOTHING_ELSE_LEFT for _, because in forgotten.rows):
            _log.warning(
                "values_lost_for_room",
                hint="raise store.retention.size_limit_bytes: raw values went that no roll-up holds",
            )
        if forgotten.kept:
            _log.warning("kept_beyond_its_age", **{str(because): many for because, many in forgotten.kept.items()})
        if found.given_back:
            _log.info("room_given_back", bytes=found.given_back)
        if found.put_off:
            _log.info("put_off", spans=found.put_off, because="written meanwhile")
        now_refused = self._refused()
        if fresh := now_refused - self._told:
            _log.warning(
                "late_values_refused", **fresh, hint="retention left nothing of their time that could take them"
            )
        self._told = now_refused

    def _refused(self) -> Counter[str]:
        """Values that came too late, since the database was made; what a server refused is told when it does."""
        found = self._metrics.condition().refused
        return Counter({str(reason): found[reason] for reason in LateSamples if reason in found})
