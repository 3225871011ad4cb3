"""The periodic task that compacts the metric store, deletes by retention and logs the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime

from outrider import log
from store.tsdb.metric_store import SqlMetricStore
from store.tsdb.retention import DeletionReason, Retention, summary
from store.tsdb.status import LateSamples

_log = log.get("maintenance")


class StoreMaintenance:
    """Runs the maintenance of the metric store and logs the result; refused late values are logged once."""

    def __init__(self, metrics: SqlMetricStore, retention: Retention, stop: Callable[[], bool]) -> None:
        """``stop`` is checked between steps, which take some seconds."""
        self._metrics, self._retention, self._stop = metrics, retention, stop
        self._logged: Counter[str] | None = None

    def run_due(self, now: datetime) -> None:
        """Runs the maintenance that is due. Raises StoreError."""
        if self._logged is None:
            self._logged = self._refused()
        report = self._metrics.maintain(now, self._retention, stop=self._stop)
        if report.done:
            _log.info("maintenance_done", **{f"{work}_spans": count for work, count in sorted(report.done.items())})
        deleted = report.deletions
        if deleted.rows:
            _log.info("retention_deleted", bytes=deleted.bytes, **summary(deleted.rows))
        if any(reason is DeletionReason.SIZE_NOTHING_ELSE_LEFT for _, reason in deleted.rows):
            _log.warning(
                "data_deleted_for_size_limit",
                hint="raise store.retention.size_limit_bytes: raw values were deleted before a roll-up held them",
            )
        if deleted.kept:
            _log.warning("retention_postponed", **{str(reason): count for reason, count in deleted.kept.items()})
        if report.released_bytes:
            _log.info("disk_space_released", bytes=report.released_bytes)
        if report.postponed:
            _log.info("maintenance_postponed", spans=report.postponed, because="written in the meantime")
        refused = self._refused()
        if fresh := refused - self._logged:
            _log.warning(
                "late_values_refused", **fresh, hint="retention has deleted the time range that they belong to"
            )
        self._logged = refused

    def _refused(self) -> Counter[str]:
        """Returns late values since the database was created; values refused by a remote server are logged at once."""
        counts = self._metrics.condition().refused
        return Counter({str(reason): counts[reason] for reason in LateSamples if reason in counts})
