"""Logs that an agent serves, as records in the format of ``/dev/kmsg``.

A record is ``priority,sequence,microseconds,flags;message``, with microseconds since boot. Readers send the highest
sequence they have. A new ``Boot-Id`` means that sequences restarted.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from collectors.accelerators.snapshot import Xid
from collectors.logs.kernel_file import KernelFile
from outrider.clock import Clock, rfc3339

MOST_RECORDS = 10_000
_HEAD = re.compile(r"(\d{1,6}),(\d{1,19}),\d{1,19}[,;]")
_ERROR = 3  # kernel priority
_LOG_KERNEL = 0  # facility kernel


@dataclass(frozen=True, slots=True)
class LogRecords:
    """A response. ``boot_time`` is RFC 3339, "" if unknown."""

    text: str
    boot_id: str
    boot_time: str


class KernelRecords:
    """Records of the kernel itself, without those that user space wrote to its log."""

    def __init__(self, file: KernelFile) -> None:
        """``file`` is opened at the first read."""
        self._file = file
        self._records: deque[tuple[int, str]] = deque(maxlen=MOST_RECORDS)
        self._boot: tuple[str, str] = ("", "")
        self._lock = threading.Lock()

    def after(self, sequence: int | None) -> LogRecords:
        """Returns records with a higher sequence; all in memory for None. Raises OSError."""
        with self._lock:
            part = self._file.read()
            if part.boot_id != self._boot[0]:
                self._records.clear()
            if part.boot_id != self._boot[0] or not self._boot[1]:
                self._boot = (part.boot_id, "" if part.boot_at is None else rfc3339(part.boot_at))
            self._add(part.text)
            return LogRecords(_joined(self._records, sequence), *self._boot)

    def _add(self, text: str) -> None:
        is_kernel = False
        for line in text.splitlines():
            if line.startswith(" "):  # continues the previous record
                if is_kernel and self._records:
                    number, record = self._records.pop()
                    self._records.append((number, f"{record}{line}\n"))
                continue
            head = _HEAD.match(line)
            is_kernel = head is not None and int(head[1]) >> 3 == _LOG_KERNEL
            if head is not None and is_kernel:
                self._records.append((int(head[2]), f"{line}\n"))

    def close(self) -> None:
        """Closes the log."""
        self._file.close()


class XidRecords:
    """XIDs that the driver reported to this process. Sequences restart with each run of the agent."""

    def __init__(self, clock: Clock) -> None:
        """``clock`` sets the origin of record times: the start of this agent."""
        self._started = clock.now().astimezone(UTC)
        self._run_id = uuid.uuid4().hex
        self._records: deque[tuple[int, str]] = deque(maxlen=MOST_RECORDS)
        self._next = 0
        self._listed: set[str] = set()
        self._lock = threading.Lock()

    def add(self, xid: Xid) -> None:
        """Adds a record; before the first of a device, one with its UUID, as in the log of the driver."""
        address = xid.device.pci.lower().rpartition(".")[0].removeprefix("0000")
        part = "" if xid.instance is None else f" GPU-I:{xid.instance:02d}"
        with self._lock:
            if xid.device.uuid not in self._listed:
                self._listed.add(xid.device.uuid)
                self._write(xid.at, f"NVRM: GPU at PCI:{address}: {xid.device.uuid}")
            self._write(xid.at, f"NVRM: Xid (PCI:{address}{part}): {xid.code}, uuid={xid.device.uuid}")

    def _write(self, at: datetime, message: str) -> None:
        micros = max(0, round((at - self._started).total_seconds() * 1e6))
        self._records.append((self._next, f"{_ERROR},{self._next},{micros},-,source=nvml;{message}\n"))
        self._next += 1

    def after(self, sequence: int | None) -> LogRecords:
        """Returns records with a higher sequence; all in memory for None."""
        with self._lock:
            return LogRecords(_joined(self._records, sequence), self._run_id, rfc3339(self._started))


def _joined(records: deque[tuple[int, str]], after: int | None) -> str:
    return "".join(text for number, text in records if after is None or number > after)
