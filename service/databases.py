"""What people do with the databases of a store: check, back up, restore, prune. Results are ready for JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from outrider.clock import rfc3339
from service import revisions, wiring
from service.leader import leading
from service.settings import Settings
from service.tokens import spool_of
from store import backup as backups
from store import check as checks
from store import migrate, sql, tables
from store import restore as restores
from store.cycle_files import CycleFiles

Progress = Callable[[str, float], None]


def check(settings: Settings, *, deep: bool, progress: Progress) -> dict[str, Any]:
    """What is damaged, a report a database. Raises StoreError."""
    spool = CycleFiles(spool_of(settings), settings.store.spool.limit_bytes)

    def spooled() -> checks.Spooled:
        status = spool.status()
        return spool.instants(), status.dropped_cycles + status.refused_cycles

    reports = checks.check(settings.store.url, deep=deep, progress=progress, spooled=spooled)
    return {
        "revision": revisions.text({report.name: report.revision for report in reports}),
        "sound": not any(report.problems for report in reports),
        "deep": deep,
        "databases": checks.as_plain(reports),
    }


def backup(settings: Settings, file: Path, now: datetime, *, force: bool, progress: Progress) -> dict[str, Any]:
    """Write a backup. Raises UsageError and StoreError."""
    started = time.monotonic()
    made = backups.backup(
        settings.store.url, file, program=metadata.version("outrider"), now=now, force=force, progress=progress
    )
    members = {name: {"bytes": one.bytes, "sha256": one.sha256} for name, one in made.manifest.members.items()}
    return {
        "revision": revisions.text(made.manifest.revisions),
        "file": str(made.file),
        "bytes": made.bytes,
        "seconds": round(time.monotonic() - started, 3),
        "engine": made.manifest.engine,
        "made_at": rfc3339(made.manifest.made_at),
        "members": [{"name": name, **member} for name, member in members.items()],
    }


def restore(settings: Settings, file: Path, now: datetime, *, force: bool, progress: Progress) -> dict[str, Any]:
    """Put a backup in the place of the store, while no engine may start on it. Raises UsageError, UnavailableError."""
    started = time.monotonic()
    with leading(settings):
        done = restores.restore(settings.store.url, file, now=now, force=force, progress=progress)
    return {
        "revision": revisions.text(done.revisions),
        "file": str(file),
        "made_at": rfc3339(done.manifest.made_at),
        "taken_from": done.manifest.engine,
        "seconds": round(time.monotonic() - started, 3),
        "moved_aside": [str(path) for path in done.moved_aside],
    }


def prune(settings: Settings, now: datetime) -> dict[str, Any]:
    """Do the upkeep that is due, and say what went. Safe beside an engine at work. Raises StoreError."""
    before = _sizes(settings)
    with wiring.stores(settings) as (state, metrics):
        done = _upkeep(metrics, now)
        done["rows_forgotten"] = sum(state.prune(now, settings.store.retention.of_state).values())
    after = _sizes(settings)
    return {
        "revision": revisions.text(migrate.revision(settings.store.url)),
        "done": done,
        "databases": [
            {"name": name, "place": place, "bytes_before": before.get(name, (place, 0))[1], "bytes_after": size}
            for name, (place, size) in after.items()
        ],
    }


def _upkeep(metrics: sql.SqlMetricStore, now: datetime) -> dict[str, int]:
    """What was done, by kind of work."""
    return {"hours_compacted": metrics.compact(now)}


def _sizes(settings: Settings) -> dict[str, tuple[str, int]]:
    found = {}
    for name, database in migrate.databases(settings.store.url, create=False).items():
        try:
            if database.exists():
                with database.reading() as connection:
                    found[str(name)] = database.place, tables.size(connection, name)
        finally:
            database.close()
    return found
