"""Puts restored files in the place of a store's: both of them, or, after a kill, the next one to open the store does.

Two files cannot be renamed at once. So what is to be renamed is first written down, durably, in a
journal beside the store; whoever opens the store finds it and finishes the work. Before the journal
there is the old store, from the journal on the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider.errors import StoreError

_WAL = ("-wal", "-shm")  # of SQLite; a file that was left in the middle has them
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # bytes that SQLite's connections lock (sqlite.org/lockingv3.html)


@dataclass(frozen=True, slots=True)
class Move:
    """One file: names in the store's folder. ``aside`` None means that what is at ``place`` need not be kept."""

    new: str
    place: str
    aside: str | None


def journal_of(state: Path) -> Path:
    """The journal of a store, by its file of decisions."""
    return state.with_name(f"{state.name}.restore-journal")


def swap(state: Path, moves: Sequence[Move]) -> None:
    """Put every ``new`` in its place. A kill before the journal is durable leaves the old store, one after it the new.

    Nobody may have the old files open. Raises OSError.
    """
    journal = journal_of(state)
    part = journal.with_name(f"{journal.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump([asdict(move) for move in moves], file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(journal)
    sync_folder(state.parent)
    finish(state)


def finish(state: Path) -> None:
    """Do what the journal of a store says, if there is one. Raises StoreError when it cannot be done."""
    journal = journal_of(state)
    if not journal.exists():
        return
    try:
        with journal.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not journal.exists():  # another process has finished it while this one waited
                return
            for move in json.load(file):
                _move(state.parent, Move(**move))
            sync_folder(state.parent)
            journal.unlink()
            sync_folder(state.parent)
    except FileNotFoundError:  # finished between the look and the opening
        return
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"A restore of {state} was cut off and cannot be finished: {error}.",
            hint=f"Give outrider write access to {state.parent} and try again; nothing of either store is lost.",
        ) from error


def _move(folder: Path, move: Move) -> None:
    new, place = folder / move.new, folder / move.place
    if not new.exists():  # done before a kill
        return
    if move.aside is not None:
        aside = folder / move.aside
        if place.exists() and not aside.exists():
            os.link(place, aside)  # so that the place is never empty: a reader would make a new file there
        for suffix in _WAL:
            old = place.with_name(place.name + suffix)
            if old.exists():
                old.replace(aside.with_name(aside.name + suffix))
    for suffix in _WAL:
        place.with_name(place.name + suffix).unlink(missing_ok=True)
    new.replace(place)


def in_use(path: Path) -> bool:
    """True when another process has an SQLite file open in WAL mode. Nobody of this process may have it open."""
    try:
        with path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
