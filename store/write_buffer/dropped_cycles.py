"""Which cycles the spool gave up: how many since the folder was made, and of which instants.

``dropped.json`` (no room left) is replaced whole before the files go, so that a kill in between loses neither;
``failed.json`` tells of cycles that could not be written. Cycles that followed each other are one span; the newest
thousand spans are kept.
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
_HINT = "Move the file away; cycles given up are then counted anew."
_log = log.get("spool")


@dataclass(frozen=True, slots=True)
class Span:
    """Cycles that were given up: instants of the first and the last in microseconds since 1970, and how many."""

    first: int
    last: int
    cycles: int

    def holds(self, at: int) -> bool:
        """True for an instant inside."""
        return self.first <= at <= self.last


@dataclass(frozen=True, slots=True)
class Record:
    """``going`` are the names of the files that the last drop took: should they still be there, they are counted."""

    cycles: int = 0
    spans: tuple[Span, ...] = ()
    going: tuple[str, ...] = ()


class DroppedCycles:
    """The record of a folder. One writer, which goes on from what it knows when the file cannot be read any more."""

    def __init__(self, folder: Path, name: str) -> None:
        """Reads nothing yet."""
        self._path = folder / name
        self._known: Record | None = None
        self._unsaved = self._told = False

    def read(self) -> Record | None:
        """What is known, None when the file cannot be read and was never read."""
        if self._unsaved:
            return self._known
        try:
            self._known = _parsed(self._path.read_text(encoding="utf-8"))
            self._told = False
        except (FileNotFoundError, NotADirectoryError):
            return Record()
        except (OSError, ValueError, KeyError, TypeError) as error:
            if not self._told:
                _log.error("spool_record_unreadable", file=str(self._path), error=str(error), hint=_HINT)
            self._told = True
        return self._known

    def trouble(self) -> str:
        """One sentence while the file cannot be read and what was in it is not known, else nothing."""
        return f"{self._path} cannot be read. {_HINT}" if self.read() is None else ""

    def add(self, paths: Sequence[Path]) -> int:
        """Note files that are about to go; how many of them were not noted before.

        An unreadable file of which nothing is known is left as it is: its count must not start at 0 again.
        """
        known = self.read()
        new = [path for path in paths if known is None or path.name not in known.going]
        if known is None or not new:
            return len(new)
        self._known = _with(known, new)
        try:
            replace(self._path, json.dumps(_plain(self._known)).encode())
            self._unsaved = False
        except OSError as error:  # a full disk: it is what goes now that makes room
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
    """True when nothing was written to the store between the two: both waited, one right behind the other."""
    both = before.endswith(WAITING) and name.endswith(WAITING)
    return both and number_of(Path(name)) == number_of(Path(before)) + 1


def number_of(path: Path) -> int:
    """The place of a cycle's file in the order."""
    return int(path.stem.split("-")[0])


def instant_of(path: Path) -> int:
    """The instant of a cycle's file, microseconds since 1970."""
    return int(path.stem.split("-")[1])


def _parsed(text: str) -> Record:
    """Raises ValueError, KeyError or TypeError. The release before noted no spans."""
    plain = json.loads(text)
    spans = tuple(Span(int(one["first"]), int(one["last"]), int(one["cycles"])) for one in plain.get("spans", ()))
    return Record(int(plain["cycles"]), spans, tuple(map(str, plain.get("going", ()))))


def _plain(record: Record) -> dict[str, object]:
    return {"cycles": record.cycles, "spans": [asdict(span) for span in record.spans], "going": list(record.going)}


def replace(path: Path, payload: bytes) -> None:
    """Put a file in its place whole and durably. Raises OSError."""
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
