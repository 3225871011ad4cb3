"""Record of dropped cycles: their number since the folder was created, and their timestamps.

``dropped.json`` (buffer full) is replaced atomically before the files are deleted, so that a kill in between loses
neither. ``failed.json`` lists cycles that could not be written. Consecutive cycles form one span; the newest thousand
spans are kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from outrider import log

WAITING, REFUSED = ".cycle", ".refused"
DROPPED: Final = "dropped.json"
FAILED: Final = "failed.json"
_SPANS_KEPT: Final = 1000
_HINT = "Move the file away; the count of dropped cycles then restarts."
_log = log.get("spool")


@dataclass(frozen=True, slots=True)
class Span:
    """Dropped cycles: timestamps of the first and the last in microseconds since 1970, and their number."""

    first: int
    last: int
    cycles: int

    def holds(self, at: int) -> bool:
        """True for a timestamp inside."""
        return self.first <= at <= self.last


@dataclass(frozen=True, slots=True)
class Record:
    """``going`` are the file names of the last drop; files that still exist are counted already."""

    cycles: int = 0
    spans: tuple[Span, ...] = ()
    going: tuple[str, ...] = ()


class DroppedCycles:
    """The record of a folder. One writer, which continues from memory if the file becomes unreadable."""

    def __init__(self, folder: Path, name: str) -> None:
        """Reads nothing yet."""
        self._path = folder / name
        self._known: Record | None = None
        self._unsaved = self._logged = False

    def read(self) -> Record | None:
        """The record; None if the file is unreadable and was never read."""
        if self._unsaved:
            return self._known
        try:
            self._known = _parsed(self._path.read_text(encoding="utf-8"))
            self._logged = False
        except (FileNotFoundError, NotADirectoryError):
            return Record()
        except (OSError, ValueError, KeyError, TypeError) as error:
            if not self._logged:
                _log.error("spool_record_unreadable", file=str(self._path), error=str(error), hint=_HINT)
            self._logged = True
        return self._known

    def record_error(self) -> str:
        """A sentence while the file is unreadable and its contents unknown; else empty."""
        return f"{self._path} cannot be read. {_HINT}" if self.read() is None else ""

    def add(self, paths: Sequence[Path]) -> int:
        """Records files that are about to be deleted; returns how many are new.

        An unreadable file with unknown contents stays unchanged: its count must not restart at 0.
        """
        known = self.read()
        new = [path for path in paths if known is None or path.name not in known.going]
        if known is None or not new:
            return len(new)
        self._known = _with(known, new)
        try:
            replace(self._path, json.dumps(_plain(self._known)).encode())
            self._unsaved = False
        except OSError as error:  # the disk is full, and the deletions make room
            self._unsaved = True
            _log.error("spool_record_unwritable", file=str(self._path), error=error.strerror)
        return len(new)


def _with(known: Record, new: Sequence[Path]) -> Record:
    spans, before = list(known.spans), known.going[-1] if known.going else ""
    for path in new:
        at = instant_of(path)
        if spans and _follows(before, path.name):
            last = spans.pop()
            spans.append(Span(min(last.first, at), max(last.last, at), last.cycles + 1))
        else:
            spans.append(Span(at, at, 1))
        before = path.name
    return Record(known.cycles + len(new), tuple(spans[-_SPANS_KEPT:]), tuple(path.name for path in new))


def _follows(before: str, name: str) -> bool:
    """True if nothing was written to the store between the two: both were buffered, one after the other."""
    both = before.endswith(WAITING) and name.endswith(WAITING)
    return both and number_of(Path(name)) == number_of(Path(before)) + 1


def number_of(path: Path) -> int:
    """The sequence number of a cycle's file."""
    return int(path.stem.split("-")[0])


def instant_of(path: Path) -> int:
    """The timestamp of a cycle's file, microseconds since 1970."""
    return int(path.stem.split("-")[1])


def _parsed(text: str) -> Record:
    """Raises ValueError, KeyError or TypeError. The previous release recorded no spans."""
    plain = json.loads(text)
    spans = tuple(Span(int(span["first"]), int(span["last"]), int(span["cycles"])) for span in plain.get("spans", ()))
    return Record(int(plain["cycles"]), spans, tuple(map(str, plain.get("going", ()))))


def _plain(record: Record) -> dict[str, object]:
    return {"cycles": record.cycles, "spans": [asdict(span) for span in record.spans], "going": list(record.going)}


def replace(path: Path, payload: bytes) -> None:
    """Replaces a file atomically and durably. Raises OSError."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
