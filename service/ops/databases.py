"""Operations on the databases of a store: check, backup, restore, prune. Results are ready for JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from outrider.clock import rfc3339
from service.config import revisions
from service.config.settings import Settings
from service.config.tokens import spool_of
from service.runtime.leader import leading
from service.wiring import stores as wiring_stores
from store import migrate
from store.admin import backup as backups
from store.admin import integrity as checks
from store.admin import introspection
from store.admin import restore as restores
from store.tsdb import retention
from store.write_buffer.segments import CycleFiles

Progress = Callable[[str, float], None]
_VALUES_ELSEWHERE = "values are on the server of store.metrics: back it up separately"


def check(settings: Settings, *, deep: bool, progress: Progress) -> dict[str, Any]:
    """Returns the damage found, one report per database. Raises StoreError."""
    spool = CycleFiles(spool_of(settings), settings.store.spool.limit_bytes)

    def buffered() -> checks.BufferedCycles:
        return checks.BufferedCycles(spool.instants(), spool.lost(), spool.record_error())

    is_local = settings.store.metrics is None
    reports = checks.check(settings.store.url, deep=deep, progress=progress, spooled=buffered if is_local else None)
    return {
        "revision": revisions.text({report.name: report.revision for report in reports}),
        "sound": not any(report.problems for report in reports),
        "deep": deep,
        "databases": checks.as_plain(reports),
    }


def backup(settings: Settings, file: Path, now: datetime, *, force: bool, progress: Progress) -> dict[str, Any]:
    """Writes a backup. Raises UsageError and StoreError."""
    started = time.monotonic()
    written = backups.backup(
        settings.store.url, file, program=metadata.version("outrider"), now=now, force=force, progress=progress
    )
    members = {
        name: {"bytes": member.bytes, "sha256": member.sha256} for name, member in written.manifest.members.items()
    }
    return {
        "revision": revisions.text(written.manifest.revisions),
        "file": str(written.file),
        "bytes": written.bytes,
        "seconds": round(time.monotonic() - started, 3),
        "engine": written.manifest.engine,
        "made_at": rfc3339(written.manifest.made_at),
        "members": [{"name": name, **member} for name, member in members.items()],
        "notes": [] if settings.store.metrics is None else [_VALUES_ELSEWHERE],
    }


def restore(settings: Settings, file: Path, now: datetime, *, force: bool, progress: Progress) -> dict[str, Any]:
    """Replaces the store by a backup; meanwhile no engine can start. Raises UsageError, UnavailableError."""
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


def prune(settings: Settings, now: datetime, *, vacuum: bool, progress: Progress) -> dict[str, Any]:
    """Runs maintenance that is due, and returns what was removed. Safe while an engine runs, except with ``vacuum``.

    Raises StoreError, and UnavailableError if an engine runs and ``vacuum`` is set.
    """
    if vacuum:
        with leading(settings):
            return _pruned(settings, now, vacuum=True, progress=progress)
    return _pruned(settings, now, vacuum=False, progress=progress)


def _pruned(settings: Settings, now: datetime, *, vacuum: bool, progress: Progress) -> dict[str, Any]:
    limits = settings.store.retention
    with wiring_stores.stores(settings) as (state, metrics):
        before = _sizes(settings)
        done = metrics.prune(now, limits.retention, vacuum=vacuum)
        progress("metrics", 1.0)
        decisions = state.prune(now, limits.of_state)
        progress("state", 1.0)
    after = _sizes(settings)
    return {
        "revision": revisions.text(migrate.revision(settings.store.url)),
        "done": {work.value: count for work, count in sorted(done.done.items())},
        "removed": {**retention.summary(done.deletions.rows), **dict(sorted(decisions.items()))},
        "refused": done.refused,
        "put_off": done.postponed,
        "databases": [
            {"name": name, "place": display_name, "bytes_before": before[name][1], "bytes_after": size}
            for name, (display_name, size) in after.items()
        ],
    }


def _sizes(settings: Settings) -> dict[str, tuple[str, int]]:
    sizes: dict[str, tuple[str, int]] = {}
    for name, database in migrate.databases_of(settings.store.url, create=False).items():
        try:
            if database.exists():
                with database.reading() as connection:
                    sizes[str(name)] = database.display_name, introspection.size(connection, name)
        finally:
            database.close()
    return sizes
