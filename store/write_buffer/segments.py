"""Buffered cycles on disk, one file each: complete, in order, with a size limit.

A file holds a line of JSON and then the arrays, all zstd-compressed. It is written under a temporary name and renamed,
so that a kill leaves a complete file or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, Event, SampleBatch, SignalKey, TrustVerdict
from store.schema import json_codec
from store.schema.metadata import instant, micros
from store.write_buffer.dropped_cycles import (
    DROPPED,
    FAILED,
    REFUSED,
    WAITING,
    DroppedCycles,
    Span,
    instant_of,
    number_of,
    replace,
)

_PART = ".part"
_PUTS_OF_A_PROCESS = 10_000_000  # more than a process writes in years: numbers of two processes never overlap


@dataclass(frozen=True, slots=True)
class BufferedCycle:
    """One cycle as received."""

    at: datetime
    batches: tuple[SampleBatch, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """Buffered cycles, their age, and the cycles dropped since the folder was created.

    ``dropped_cycles`` exceeded the size limit, ``failed_cycles`` could not be written. None: the record is unreadable.
    """

    cycles: int
    bytes: int
    oldest_at: datetime | None
    limit_bytes: int
    dropped_cycles: int | None
    refused_cycles: int
    failed_cycles: int | None


class CycleFiles:
    """The folder. One writer; other processes may read its ``status``."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Creates nothing before the first ``put``."""
        self._folder, self._limit = folder, limit_bytes
        self._dropped, self._failed = DroppedCycles(folder, DROPPED), DroppedCycles(folder, FAILED)
        self._puts, self._unwritten = 0, list[Path]()  # failed puts that are not recorded on disk yet

    def put(self, cycle: BufferedCycle) -> int:
        """Stores a cycle durably; returns how many older ones were dropped to make room. Raises OSError."""
        self._puts += 1
        try:
            dropped = self._put(cycle)
        except OSError:
            self._unwritten.append(self._folder / self._name_of_failed(cycle))
            raise
        self._record_failed()
        return dropped

    def _put(self, cycle: BufferedCycle) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        for part in self._of(_PART):  # left by a killed put, or by a full disk
            part.unlink(missing_ok=True)
        payload = _packed(cycle)
        dropped = self._make_room(len(payload))
        last = max((number_of(path) for path in self._folder.iterdir() if path.suffix in (WAITING, REFUSED)), default=0)
        replace(self._folder / f"{last + 1:012d}-{micros(cycle.at)}{WAITING}", payload)
        return dropped

    def waiting(self) -> list[Path]:
        """The waiting files, oldest first."""
        return self._of(WAITING)

    def instants(self) -> frozenset[int]:
        """Timestamps of the waiting cycles, microseconds since 1970."""
        return frozenset(map(instant_of, self.waiting()))

    def lost(self) -> tuple[Span, ...]:
        """Cycles dropped for lack of space, cycles that could not be written, and cycles that the store rejected."""
        records = (self._dropped.read(), self._failed.read())
        alone = (instant_of(path) for path in (*self._of(REFUSED), *self._unwritten))
        spans = (span for record in records if record for span in record.spans)
        return (*spans, *(Span(at, at, 1) for at in alone))

    def record_error(self) -> str:
        """Reasons why the dropped cycles are unknown, one sentence per file; else empty."""
        return " ".join(filter(None, (self._dropped.record_error(), self._failed.record_error())))

    def read(self, path: Path) -> BufferedCycle:
        """Reads a cycle. Raises StoreError if the file is damaged."""
        try:
            return _unpacked(path.read_bytes())
        except (OSError, ValueError, KeyError, zstandard.ZstdError) as error:
            raise StoreError(
                f"{path} cannot be read: {error}.",
                hint="It is set aside; its values are lost unless the file is repaired.",
            ) from error

    def done(self, path: Path) -> None:
        """Deletes a cycle that the store has accepted."""
        path.unlink(missing_ok=True)

    def set_aside(self, path: Path) -> None:
        """Renames a cycle that the store rejects, so that the following ones can be written."""
        path.rename(path.with_suffix(REFUSED))

    def status(self) -> BufferStatus:
        """Status of the buffer. A missing folder is empty."""
        waiting = self.waiting()
        oldest = instant(instant_of(waiting[0])) if waiting else None
        dropped, failed = self._dropped.read(), self._failed.read()
        return BufferStatus(
            cycles=len(waiting),
            bytes=sum(map(_size, waiting)),
            oldest_at=oldest,
            limit_bytes=self._limit,
            dropped_cycles=None if dropped is None else dropped.cycles,
            refused_cycles=len(self._of(REFUSED)),
            failed_cycles=None if failed is None else failed.cycles + len(self._unwritten),
        )

    def _of(self, suffix: str) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if path.suffix == suffix)

    def _name_of_failed(self, cycle: BufferedCycle) -> str:
        """The file name of a failed put: consecutive failures have consecutive numbers."""
        known = self._failed.read()
        number = ((known.cycles if known else 0) + 1) * _PUTS_OF_A_PROCESS + self._puts
        return f"{number:012d}-{micros(cycle.at)}{WAITING}"

    def _record_failed(self) -> None:
        """Records failed puts on disk, now that the folder is writable again."""
        if self._unwritten:
            self._failed.add(self._unwritten)
            self._unwritten.clear()

    def _make_room(self, needed: int) -> int:
        """Drops the oldest cycles, those set aside first: recent cycles matter most."""
        held = [*self._of(REFUSED), *self.waiting()]
        total = sum(map(_size, held)) + needed
        going = []
        for path in held:
            if total <= self._limit:
                break
            total -= _size(path)
            going.append(path)
        dropped = self._dropped.add(going) if going else 0
        for path in going:
            path.unlink(missing_ok=True)
        return dropped


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # written to the store meanwhile
        return 0


def _packed(cycle: BufferedCycle) -> bytes:
    """Tuples shared by batches (all targets of an adapter have the same keys) are written once."""
    shared: dict[int, int] = {}
    lists: list[list[str]] = []

    def number(items: Sequence[SignalKey] | Sequence[EntityRef]) -> int:
        if id(items) not in shared:
            shared[id(items)] = len(lists)
            lists.append([item.key if isinstance(item, EntityRef) else str(item) for item in items])
        return shared[id(items)]

    batches = [
        {
            "source": batch.source,
            "scraped_at": micros(batch.scraped_at),
            "kind": batch.kind.value,
            "keys": number(batch.keys),
            "entities": number(batch.entities),
            "interval_seconds": batch.interval_seconds,
            "trust": batch.trust.value,
        }
        for batch in cycle.batches
    ]
    events = [json_codec.to_plain(event) for event in cycle.events]
    head = json.dumps({"at": micros(cycle.at), "lists": lists, "batches": batches, "events": events})
    arrays: list[bytes] = []
    for batch in cycle.batches:
        arrays += (np.asarray(batch.values, dtype="<f8").tobytes(), np.asarray(batch.status, dtype=np.uint8).tobytes())
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"".join((head.encode(), b"\n", *arrays)))


def _unpacked(payload: bytes) -> BufferedCycle:
    plain = zstandard.ZstdDecompressor().decompress(payload)
    end = plain.index(b"\n")
    head: dict[str, Any] = json.loads(plain[:end])
    keys: dict[int, tuple[SignalKey, ...]] = {}
    entities: dict[int, tuple[EntityRef, ...]] = {}
    for row in head["batches"]:
        keys.setdefault(row["keys"], tuple(map(SignalKey.parse, head["lists"][row["keys"]])))
        entities.setdefault(row["entities"], tuple(map(EntityRef.from_key, head["lists"][row["entities"]])))
    events = tuple(json_codec.from_plain(Event, row) for row in head["events"])
    return BufferedCycle(instant(head["at"]), tuple(_batches(head["batches"], keys, entities, plain, end + 1)), events)


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
