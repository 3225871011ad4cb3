"""The logs that an agent hands out, record by record as ``/dev/kmsg`` gives them.

A record is ``priority,sequence,microseconds,flags;message``, the microseconds counted from boot. Readers
come back with the highest sequence they have; another ``Boot-Id`` tells them that sequences began anew.
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
_ERROR = 3  # of the kernel's priorities, facility kernel
_LOG_KERNEL = 0


@dataclass(frozen=True, slots=True)
class Told:
    """An answer. ``boot_time`` is RFC 3339, "" when it is not known."""

    text: str
    boot_id: str
    boot_time: str


class KernelRecords:
    """The kernel's own records; what user space wrote into its log is not handed on."""

    def __init__(self, file: KernelFile) -> None:
        """``file`` is opened at the first reading."""
        self._file = file
        self._records: deque[tuple[int, str]] = deque(maxlen=MOST_RECORDS)
        self._boot: tuple[str, str] = ("", "")
        self._lock = threading.Lock()

    def after(self, sequence: int | None) -> Told:
        """Records with a higher sequence, all that are kept without one. Raises OSError."""
        with self._lock:
            part = self._file.read()
            if part.boot_id != self._boot[0]:
                self._records.clear()
            if part.boot_id != self._boot[0] or not self._boot[1]:
                self._boot = (part.boot_id, "" if part.boot_at is None else rfc3339(part.boot_at))
            self._take(part.text)
            return Told(_joined(self._records, sequence), *self._boot)

    def _take(self, text: str) -> None:
        ours = False
        for line in text.splitlines():
            if line.startswith(" "):  # the record above goes on
                if ours and self._records:
                    number, known = self._records.pop()
                    self._records.append((number, f"{known}{line}\n"))
                continue
            head = _HEAD.match(line)
            ours = head is not None and int(head[1]) >> 3 == _LOG_KERNEL
            if head is not None and ours:
                self._records.append((int(head[2]), f"{line}\n"))

    def close(self) -> None:
        """Close the log."""
        self._file.close()


class XidRecords:
    """XIDs that the driver told this process. Its sequences begin anew with each run of the agent."""

    def __init__(self, clock: Clock) -> None:
        """``clock`` gives the instant that times of records count from: the start of this agent."""
        self._begun = clock.now().astimezone(UTC)
        self._run = uuid.uuid4().hex
        self._records: deque[tuple[int, str]] = deque(maxlen=MOST_RECORDS)
        self._next = 0
        self._named: set[str] = set()
        self._lock = threading.Lock()

    def add(self, xid: Xid) -> None:
        """Write it down, with the device's UUID before its first one, as the driver's own log has it."""
        address = xid.device.pci.lower().rpartition(".")[0].removeprefix("0000")
        part = "" if xid.instance is None else f" GPU-I:{xid.instance:02d}"
        with self._lock:
            if xid.device.uuid not in self._named:
                self._named.add(xid.device.uuid)
                self._write(xid.at, f"NVRM: GPU at PCI:{address}: {xid.device.uuid}")
            self._write(xid.at, f"NVRM: Xid (PCI:{address}{part}): {xid.code}, uuid={xid.device.uuid}")

    def _write(self, at: datetime, message: str) -> None:
        micros = max(0, round((at - self._begun).total_seconds() * 1e6))
        self._records.append((self._next, f"{_ERROR},{self._next},{micros},-,source=nvml;{message}\n"))
        self._next += 1

    def after(self, sequence: int | None) -> Told:
        """Records with a higher sequence, all that are kept without one."""
        with self._lock:
            return Told(_joined(self._records, sequence), self._run, rfc3339(self._begun))


def _joined(records: deque[tuple[int, str]], after: int | None) -> str:
    return "".join(text for number, text in records if after is None or number > after)
