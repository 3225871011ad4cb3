"""One engine per store. On SQLite a lock on a file beside the database says who it is."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from outrider.errors import UnavailableError


class FileLeader:
    """Holds the lock until the process ends or ``release`` is called; the kernel frees it after a kill."""

    def __init__(self, path: Path) -> None:
        """``path`` is the lock file; it stays behind, which is harmless."""
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock. Raises UnavailableError naming the process that holds it."""
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
                hint="stop it first, or run this in another folder or with another store.url",
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let go of the lock; harmless when it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None
