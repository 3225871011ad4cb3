"""One engine per store: a lock on a file beside an SQLite store, an advisory lock on PostgreSQL."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Protocol

from outrider import log
from outrider.errors import StoreUnavailableError, UnavailableError
from service.config.settings import Settings
from service.config.tokens import folder_of
from store import factory

CHECK_EVERY = timedelta(seconds=2)
"""Interval at which a standby tries again, and a leader verifies its lock."""
_FREE_CHECKS = 3  # a standby takes over after so many checks without a leader
_HINT = "stop it first, or run this in another folder or with another store.url"
_log = log.get("leader")


class Leader(Protocol):
    """The lock that makes a process the engine of a store."""

    def acquire(self) -> None:
        """Takes the lock. Raises UnavailableError, which names the holder."""
        ...

    def held(self) -> bool:
        """False after the lock was lost."""
        ...

    def release(self) -> None:
        """Releases the lock; no effect if it is not held."""
        ...


def leader_of(settings: Settings) -> Leader:
    """Returns the leader lock of the configured store."""
    if factory.on_server(settings.store.url):
        return ServerLeader(settings.store.url)
    return FileLeader(lock_file(settings))


@contextmanager
def leading(settings: Settings, *, stand_by: bool = False) -> Iterator[Leader]:
    """Holds the lock while the block runs. Raises UnavailableError, or waits for the lock with ``stand_by``."""
    leader = leader_of(settings)
    try:
        leader.acquire()
    except (UnavailableError, StoreUnavailableError) as error:
        if not stand_by or not isinstance(leader, ServerLeader):
            raise
        _log.info("standing_by", because=error.message)
        leader.wait()
        _log.info("leader_elected")
    try:
        yield leader
    finally:
        leader.release()


def check_alone(settings: Settings) -> None:
    """Raises UnavailableError if an engine uses the store already."""
    with leading(settings):
        pass


def lock_file(settings: Settings) -> Path:
    """Returns the lock file of an SQLite store."""
    name = settings.store.url.rsplit("/", 1)[-1].removesuffix(".db") or "store"
    return folder_of(settings) / f"{name}.engine.lock"


class FileLeader:
    """Holds the lock until the process ends or ``release`` is called; the kernel frees it after a kill."""

    def __init__(self, path: Path) -> None:
        """``path`` is the lock file; it remains after release, which is harmless."""
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Takes the lock. Raises UnavailableError, which names the process that holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise UnavailableError(
                f"another engine (process {holder}) works on this store",
                hint=_HINT,
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def held(self) -> bool:
        """True between ``acquire`` and ``release``: the kernel never revokes it."""
        return self._file is not None

    def release(self) -> None:
        """Releases the lock; no effect if it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ServerLeader:
    """Holds an advisory lock on PostgreSQL; lost with its connection."""

    def __init__(self, url: str) -> None:
        """``url`` is ``store.url``."""
        self._lease = factory.open_lease(url)

    def acquire(self) -> None:
        """Takes the lock. Raises UnavailableError, which names the holder, or StoreUnavailableError."""
        if not self._lease.take():
            raise UnavailableError(
                f"another engine ({self._lease.holder() or 'just gone'}) works on this store", hint=_HINT
            )

    def wait(self) -> None:
        """Stands by until the lock is free for some checks, then takes it.

        After a restart of the server the previous leader acquires the lock again within one check: it has the
        newest state, and the values of the outage.
        """
        free = 0
        while True:
            time.sleep(CHECK_EVERY.total_seconds())
            try:
                free = 0 if self._lease.holder() else free + 1
                if free >= _FREE_CHECKS and self._lease.take():
                    return
            except StoreUnavailableError:
                free = 0

    def held(self) -> bool:
        """False after the connection broke: another process may then hold the lock."""
        return self._lease.held()

    def release(self) -> None:
        """Releases the lock; no effect if it is not held."""
        self._lease.release()
