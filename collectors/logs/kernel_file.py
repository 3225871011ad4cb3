"""A kernel log on this node: the device, a pipe, or a growing file. Never waits for new data."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from outrider.clock import from_unix

MOST_READS = 20_000  # per round; a device returns one record per read
_CHUNK_BYTES = 64 * 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class KernelLogChunk:
    """New text of a log. ``boot_id`` identifies the boot; ``boot_at`` is None if unknown."""

    text: str
    boot_id: str = ""
    boot_at: datetime | None = None


class KernelFile:
    """Resumes where the last reading stopped. A replaced or truncated file is read from its beginning."""

    def __init__(self, path: Path) -> None:
        """Opens the file at the first reading."""
        self.path = path
        self._handle: int | None = None
        self._inode: tuple[int, int] | None = None
        self._rest = b""

    def read(self) -> KernelLogChunk:
        """Complete lines written since the last reading. Raises OSError if the path cannot be read."""
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
        complete, mark, self._rest = (self._rest + self._new(self._handle)).rpartition(b"\n")
        text = (complete + mark).decode("utf-8", errors="replace")
        if regular:  # an export has its own timestamps; records without one get the time of the reading
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
                if (
                    error.errno == errno.EPIPE
                ):  # records were overwritten before they were read: continue with the oldest
                    continue
                raise
            if not part:
                break
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Closes the file; the next reading opens it again."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._rest = None, b""


def _boot_at() -> datetime | None:
    """Boot time of this node, from ``btime`` of /proc/stat."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STAT.read_text(encoding="utf-8").splitlines():
            if line.startswith("btime "):
                return from_unix(float(line.split()[1]))
    return None


def _first_line(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8").strip()
    return ""
