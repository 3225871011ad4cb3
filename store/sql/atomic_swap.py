"""Replaces both files of a store by restored ones; after a kill, the next process that opens the store finishes.

Two files cannot be renamed atomically. The renames are therefore first written to a durable journal next to the
store, and every process that opens the store completes them. Without a journal the old store is valid, with one
the new store.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider.errors import StoreError

_WAL = ("-wal", "-shm")  # SQLite side files, present if the process was killed
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # bytes that SQLite's connections lock (sqlite.org/lockingv3.html)


@dataclass(frozen=True, slots=True)
class Move:
    """One file by its names in the store's folder. ``aside`` None: the previous file is not kept."""

    new: str
    place: str
    aside: str | None


def journal_of(state: Path) -> Path:
    """The journal of a store, by its state file."""
    return state.with_name(f"{state.name}.restore-journal")


def swap(state: Path, moves: Sequence[Move]) -> None:
    """Moves every ``new`` to its ``place``.

    A kill before the journal is durable leaves the old store, after it the new one. No process may have the old files
    open. Raises OSError.
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
    """Completes the journal of a store, if there is one. Raises StoreError if it cannot."""
    journal = journal_of(state)
    if not journal.exists():
        return
    try:
        with journal.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not journal.exists():  # another process finished it meanwhile
                return
            for move in json.load(file):
                _move(state.parent, Move(**move))
            sync_folder(state.parent)
            journal.unlink()
            sync_folder(state.parent)
    except FileNotFoundError:  # finished by another process before it was opened
        return
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"An interrupted restore of {state} cannot be completed: {error}.",
            hint=f"Give outrider write access to {state.parent} and try again; neither store has lost data.",
        ) from error


def _move(folder: Path, move: Move) -> None:
    new, target = folder / move.new, folder / move.place
    if not new.exists():  # done before a kill
        return
    if move.aside is not None:
        aside = folder / move.aside
        if target.exists() and not aside.exists():
            os.link(target, aside)  # keeps the name in use: a reader would create a new file there
        for suffix in _WAL:
            old = target.with_name(target.name + suffix)
            if old.exists():
                old.replace(aside.with_name(aside.name + suffix))
    for suffix in _WAL:
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    new.replace(target)


def in_use(path: Path) -> bool:
    """True if another process has an SQLite file open in WAL mode. This process must not have it open."""
    try:
        with path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
