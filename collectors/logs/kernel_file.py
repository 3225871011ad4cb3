"""A kernel log on this machine: the device, a pipe, or a file that grows. Never waits for more to come."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from outrider.clock import from_unix

MOST_READS = 20_000  # of one round; a device gives one record a read
_CHUNK_BYTES = 64 * 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class KernelLogChunk:
    """New text of a log. ``boot_id`` tells one boot from another; ``boot_at`` None when it is not known."""

    text: str
    boot_id: str = ""
    boot_at: datetime | None = None


class KernelFile:
    """Reads on where it stopped. A file that was replaced or cut is read from its beginning."""

    def __init__(self, path: Path) -> None:
        """Opened at the first reading."""
        self.path = path
        self._handle: int | None = None
        self._inode: tuple[int, int] | None = None
        self._rest = b""

    def read(self) -> KernelLogChunk:
        """Whole lines written since the last reading. Raises OSError when the path cannot be read."""
        now = self.path.stat()
        if self._inode != (now.st_dev, now.st_ino):
            self.close()
            self._inode = (now.st_dev, now.st_ino)
        if self._handle is None:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        regular = stat.S_ISREG(now.st_mode)
        if regular and os.lseek(self._handle, 0, os.SEEK_CUR) > now.st_size:
            os.lseek(self._handle, 0, os.SEEK_SET)
            self._rest = b""
        whole, mark, self._rest = (self._rest + self._new(self._handle)).rpartition(b"\n")
        text = (whole + mark).decode("utf-8", errors="replace")
        if regular:  # an export knows its own times; records without one are dated when they are read
            return KernelLogChunk(text, boot_id=f"{now.st_dev:x}-{now.st_ino:x}")
        return KernelLogChunk(text, boot_id=_first_line(_BOOT_ID), boot_at=_boot_at())

    def _new(self, handle: int) -> bytes:
        parts = []
        for _ in range(MOST_READS):
            try:
                part = os.read(handle, _CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten before we came: go on with the oldest
                    continue
                raise
            if not part:
                break
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close it; the next reading opens it anew."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._rest = None, b""


def _boot_at() -> datetime | None:
    """When this machine booted, by ``btime`` of /proc/stat."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STAT.read_text(encoding="utf-8").splitlines():
            if line.startswith("btime "):
                return from_unix(float(line.split()[1]))
    return None


def _first_line(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8").strip()
    return ""
