"""Kernel log records from text: ``/dev/kmsg`` records, or lines of ``journalctl -k -o json`` or ``short-iso``.

Pure: bytes in, records out. A line of another format is dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from outrider.clock import from_unix

_RECORD = re.compile(r"(\d{1,6}),(\d{1,19}),(\d{1,19}),([^;]*);(.*)", re.DOTALL)
_REPORTER = re.compile(r"(?:^|,)source=([a-z_]{1,20})(?:,|$)")  # among the flags: not written by the kernel
_JOURNAL = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) (\S+) kernel: (.*)", re.DOTALL)
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_LOG_KERNEL = 0  # facility; other writers to /dev/kmsg get another one


@dataclass(frozen=True, slots=True)
class Record:
    """One message of a kernel.

    From kmsg: ``sequence`` and ``since_boot_seconds``. From a journal: ``at``, ``host``, and in JSON the ``cursor``,
    a permanent id of the entry. ``reporter`` is the writer if it was not the kernel.
    """

    message: str
    sequence: int | None = None
    since_boot_seconds: float | None = None
    at: datetime | None = None
    host: str = ""
    cursor: str = ""
    reporter: str = ""


def records(text: str) -> Iterator[Record]:
    """The kernel's own records in order; those written by user space are dropped."""
    for line in text.split("\n"):
        line = line.rstrip("\r")  # noqa: PLW2901
        if not line or line[0] == " ":  # continuation of a record: SUBSYSTEM=, DEVICE=
            continue
        record = _journal_entry(line) if line[0] == "{" else _record(line) or _journal_line(line)
        if record is not None:
            yield record


def newest(text: str) -> int | None:
    """The highest sequence in a text of kmsg records by any writer; None if there is none."""
    numbers = (int(match[2]) for line in text.split("\n") if (match := _RECORD.fullmatch(line.rstrip("\r"))))
    return max(numbers, default=None)


def _record(line: str) -> Record | None:
    match = _RECORD.fullmatch(line)
    if match is None or int(match[1]) >> 3 != _LOG_KERNEL:
        return None
    reporter_match = _REPORTER.search(match[4])
    return Record(
        unescaped(match[5]),
        sequence=int(match[2]),
        since_boot_seconds=int(match[3]) / 1e6,
        reporter=reporter_match[1] if reporter_match else "",
    )


def _journal_entry(line: str) -> Record | None:
    """An entry of ``journalctl -o json``. Only journald writes fields that begin with ``_``."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("_TRANSPORT", "kernel") != "kernel":
        return None
    message, micros = entry.get("MESSAGE"), entry.get("__REALTIME_TIMESTAMP")
    if isinstance(message, list):  # bytes, if they are not UTF-8
        if not all(isinstance(byte, int) and 0 <= byte < 256 for byte in message):
            return None
        message = bytes(message).decode("utf-8", errors="replace")
    if not isinstance(message, str) or not isinstance(micros, str) or not micros.isdecimal():
        return None
    try:
        at = from_unix(int(micros) / 1e6)
    except (ValueError, OverflowError, OSError):
        return None
    host, cursor = entry.get("_HOSTNAME"), entry.get("__CURSOR")
    return Record(
        message,
        at=at,
        host=host if isinstance(host, str) else "",
        cursor=cursor if isinstance(cursor, str) else "",
    )


def _journal_line(line: str) -> Record | None:
    match = _JOURNAL.fullmatch(line)
    if match is None:
        return None
    try:
        at = datetime.fromisoformat(match[1]).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return Record(match[3], at=at, host=match[2])


def unescaped(text: str) -> str:
    r"""Unescapes the kernel's ``\x5c``."""
    if "\\x" not in text:
        return text
    plain = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), text.encode("utf-8", errors="surrogatepass"))
    return plain.decode("utf-8", errors="replace")
