"""Cycles on disk, one file each, until the store takes them: whole, in order, bounded.

A file holds a line of JSON and the arrays one after the other, all zstd. It is written beside its
name and renamed, so that a kill leaves a whole file or none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, Event, SampleBatch, SignalKey, TrustVerdict
from store import codec
from store.schema import instant, micros

_WAITING, _REFUSED, _PART = ".cycle", ".refused", ".part"
_DROPPED, _FAILED = "dropped.json", "failed.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """One cycle as it was handed in."""

    at: datetime
    batches: tuple[SampleBatch, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """What waits, since when, and what was given up since the folder was made.

    ``dropped_cycles`` went for want of room under the limit; ``failed_cycles`` could not be written at all.
    """

    cycles: int
    bytes: int
    oldest_at: datetime | None
    limit_bytes: int
    dropped_cycles: int
    refused_cycles: int
    failed_cycles: int


class CycleFiles:
    """The folder. One writer; others may ask for its ``status``."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Makes nothing before the first ``put``."""
        self._folder, self._limit = folder, limit_bytes
        self._failed = 0  # of which the folder does not know: it could not be written

    def put(self, cycle: Kept) -> int:
        """Keep a cycle durably; returns how many older ones it took to make room. Raises OSError."""
        try:
            dropped = self._put(cycle)
        except OSError:
            self._failed += 1
            raise
        self._tell_failed()
        return dropped

    def _put(self, cycle: Kept) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        for part in self._of(_PART):  # of a put that was killed, or for which the disk had no room
            part.unlink(missing_ok=True)
        payload = _packed(cycle)
        dropped = self._make_room(len(payload))
        last = max((_number(path) for path in self._folder.iterdir() if path.suffix in (_WAITING, _REFUSED)), default=0)
        path = self._folder / f"{last + 1:012d}-{micros(cycle.at)}{_WAITING}"
        part = path.with_suffix(_PART)
        with part.open("wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        _sync(self._folder)
        return dropped

    def waiting(self) -> list[Path]:
        """The files that wait, oldest first."""
        return self._of(_WAITING)

    def instants(self) -> frozenset[int]:
        """The instants of the cycles that wait, microseconds since 1970."""
        return frozenset(int(path.stem.split("-")[1]) for path in self.waiting())

    def read(self, path: Path) -> Kept:
        """A cycle back. Raises StoreError when the file is damaged."""
        try:
            return _unpacked(path.read_bytes())
        except (OSError, ValueError, KeyError, zstandard.ZstdError) as error:
            raise StoreError(
                f"{path} cannot be read: {error}.", hint="It is set aside; what it held is lost unless you mend it."
            ) from error

    def done(self, path: Path) -> None:
        """The store has it."""
        path.unlink(missing_ok=True)

    def set_aside(self, path: Path) -> None:
        """Keep what the store refuses under another name, out of the way of those behind it."""
        path.rename(path.with_suffix(_REFUSED))

    def status(self) -> SpoolStatus:
        """What waits. An absent folder is empty."""
        waiting = self.waiting()
        oldest = instant(int(waiting[0].stem.split("-")[1])) if waiting else None
        return SpoolStatus(
            cycles=len(waiting),
            bytes=sum(map(_size, waiting)),
            oldest_at=oldest,
            limit_bytes=self._limit,
            dropped_cycles=self._given_up(_DROPPED),
            refused_cycles=len(self._of(_REFUSED)),
            failed_cycles=self._given_up(_FAILED) + self._failed,
        )

    def _of(self, suffix: str) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if path.suffix == suffix)

    def _tell_failed(self) -> None:
        """Let the folder know, for others and for the next start, once it can be written again."""
        if self._failed:
            with suppress(OSError):
                self._write_given_up(_FAILED, self._failed)
                self._failed = 0

    def _write_given_up(self, name: str, more: int) -> None:
        text = json.dumps({"cycles": self._given_up(name) + more})
        (self._folder / name).write_text(text, encoding="utf-8")

    def _given_up(self, name: str) -> int:
        try:
            return int(json.loads((self._folder / name).read_text(encoding="utf-8"))["cycles"])
        except (OSError, ValueError, KeyError):
            return 0

    def _make_room(self, needed: int) -> int:
        """Give up the oldest, those set aside first: the newest tell what is going on now."""
        held = [*self._of(_REFUSED), *self.waiting()]
        total = sum(map(_size, held)) + needed
        gone = 0
        for path in held:
            if total <= self._limit:
                break
            total -= _size(path)
            path.unlink(missing_ok=True)
            gone += 1
        if gone:
            self._write_given_up(_DROPPED, gone)
        return gone


def _number(path: Path) -> int:
    return int(path.stem.split("-")[0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the engine took it meanwhile
        return 0


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _packed(cycle: Kept) -> bytes:
    """Tuples that batches share (all targets of an adapter have the same keys) are written once."""
    shared: dict[int, int] = {}
    lists: list[list[str]] = []

    def number(items: Sequence[SignalKey] | Sequence[EntityRef]) -> int:
        if id(items) not in shared:
            shared[id(items)] = len(lists)
            lists.append([item.key if isinstance(item, EntityRef) else str(item) for item in items])
        return shared[id(items)]

    batches = [
        {
            "source": one.source,
            "scraped_at": micros(one.scraped_at),
            "kind": one.kind.value,
            "keys": number(one.keys),
            "entities": number(one.entities),
            "interval_seconds": one.interval_seconds,
            "trust": one.trust.value,
        }
        for one in cycle.batches
    ]
    events = [codec.to_plain(event) for event in cycle.events]
    head = json.dumps({"at": micros(cycle.at), "lists": lists, "batches": batches, "events": events})
    arrays: list[bytes] = []
    for one in cycle.batches:
        arrays += (np.asarray(one.values, dtype="<f8").tobytes(), np.asarray(one.status, dtype=np.uint8).tobytes())
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"".join((head.encode(), b"\n", *arrays)))


def _unpacked(payload: bytes) -> Kept:
    plain = zstandard.ZstdDecompressor().decompress(payload)
    end = plain.index(b"\n")
    head: dict[str, Any] = json.loads(plain[:end])
    keys: dict[int, tuple[SignalKey, ...]] = {}
    entities: dict[int, tuple[EntityRef, ...]] = {}
    for one in head["batches"]:
        keys.setdefault(one["keys"], tuple(map(SignalKey.parse, head["lists"][one["keys"]])))
        entities.setdefault(one["entities"], tuple(map(EntityRef.from_key, head["lists"][one["entities"]])))
    events = tuple(codec.from_plain(Event, one) for one in head["events"])
    return Kept(instant(head["at"]), tuple(_batches(head["batches"], keys, entities, plain, end + 1)), events)


def _batches(
    rows: Sequence[dict[str, Any]],
    keys: dict[int, tuple[SignalKey, ...]],
    entities: dict[int, tuple[EntityRef, ...]],
    plain: bytes,
    at: int,
) -> Iterator[SampleBatch]:
    for row in rows:
        shape = (len(entities[row["entities"]]), len(keys[row["keys"]]))
        cells = shape[0] * shape[1]
        values = np.frombuffer(plain, dtype="<f8", count=cells, offset=at).reshape(shape)
        status = np.frombuffer(plain, dtype=np.uint8, count=cells, offset=at + 8 * cells).reshape(shape)
        at += 9 * cells
        yield SampleBatch(
            row["source"], instant(row["scraped_at"]), EntityKind(row["kind"]), keys[row["keys"]],
            entities[row["entities"]], values, status, row["interval_seconds"], TrustVerdict(row["trust"]),
        )  # fmt: skip
