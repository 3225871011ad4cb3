"""Codec of a block: many values in few bytes, with each signal readable on its own.

A block holds, for one kind of entity, ``instants`` x ``entities`` x ``columns``. The columns of one
signal (the buckets of a histogram, else one column) form a *section*. All numbers are
little-endian::

    magic    4 bytes, b"ORB2"; b"ORB1" for a block with one instant, and for blocks of earlier releases
    counts   3 x uint32: instants, entities, sections
    times    instants x int64, microseconds since 1970, ascending
    index    sections x 3 x uint32: columns, bytes of values, bytes of status
    sections one after the other: values, then status

*Values* are float32, ordered (column, entity, instant). In ``ORB2`` each column is packed by
``store.tsdb.decimal_codec``, then all of them by zstd. In ``ORB1`` each value is xor-ed with the value of the
previous instant, then split into four planes (all lowest bytes first), then zstd. *Status* is one byte per cell
in the same order, zstd; it takes 0 bytes if every cell is PRESENT. Bit 7 of a status byte marks
a cell without a number: its value repeats the previous number, so that a gap costs nothing, and reads back as NaN.

float32 keeps seven digits: store increases here, not unix times or byte counters.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import local
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from outrider.errors import StoreError
from outrider.model import CellStatus, Statuses
from store.tsdb import decimal_codec

Floats32 = NDArray[np.float32]
Numeric = NDArray[np.floating[Any]]
Micros = NDArray[np.int64]

MAGIC, MAGIC_XOR = b"ORB2", b"ORB1"
TAIL_LEVEL = 1  # a cycle is written once and compacted within hours: speed first
BULK_LEVEL = 3  # 1.2 bytes per value on slowly moving gauges; higher levels gain under 3 %
KEPT_LEVEL = 19  # a day of hours, written once and kept for a year: 5 % less than level 3, equally fast to read
_NO_NUMBER = 0x80
_HEADER = struct.Struct("<4s3I")
_threads = local()


@dataclass(frozen=True, slots=True)
class Section:
    """Values and status of one signal, both of shape (columns, entities, instants).

    ``status`` None: every cell is PRESENT. Values are stored as float32; sums of a roll-up are read back as float64.
    """

    values: Numeric
    status: Statuses | None = None

    def taken(self, columns: Sequence[int]) -> Section:
        """Some of the columns, in that order."""
        if list(columns) == list(range(self.values.shape[0])):
            return self
        indices = list(columns)
        return Section(self.values[indices], None if self.status is None else self.status[indices])


def _compressor(level: int) -> zstandard.ZstdCompressor:
    cached: dict[int, zstandard.ZstdCompressor] = _threads.__dict__.setdefault("compressors", {})
    if level not in cached:
        cached[level] = zstandard.ZstdCompressor(level=level, write_checksum=False)
    return cached[level]


def _decompressor() -> zstandard.ZstdDecompressor:
    cached: zstandard.ZstdDecompressor | None = getattr(_threads, "decompressor", None)
    if cached is None:
        cached = _threads.decompressor = zstandard.ZstdDecompressor()
    return cached


def _fill_gaps(values: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    """Repeats the previous number in each gap along time; 0 before the first number."""
    indices = np.where(missing, 0, np.arange(values.shape[-1], dtype=np.int32))
    repeated = np.take_along_axis(values, np.maximum.accumulate(indices, axis=-1), axis=-1)
    without: NDArray[Any] = np.nan_to_num(repeated, copy=False, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return without


def filled(values: Floats32) -> Floats32:
    """Values with filled gaps, for a section whose missing cells another section records."""
    missing = np.isnan(values)
    return _fill_gaps(values, missing) if missing.any() else values


def _pack(section: Section, level: int) -> tuple[bytes, bytes]:
    values, status = section.values, section.status
    packed_status = b""
    if status is not None and status.any():
        missing = np.isnan(values)
        packed_status = _compressor(level).compress(np.where(missing, status | _NO_NUMBER, status).tobytes())
        values = _fill_gaps(values, missing)
    cells = np.ascontiguousarray(values, dtype="<f4")
    if cells.shape[-1] > 1:
        return _compressor(level).compress(decimal_codec.pack(cells)), packed_status
    planes = cells.view(np.uint8).reshape(-1, 4).T  # one instant: nothing to xor with
    return _compressor(level).compress(planes.tobytes()), packed_status


def encode(times: Micros, sections: Sequence[Section], *, level: int = TAIL_LEVEL) -> bytes:
    """Encodes one block. Every section has the same entities and ``len(times)`` instants.

    A PRESENT cell without a number must not occur (``without_hollows`` turns it into ABSENT).
    """
    packed = [_pack(section, level) for section in sections]
    entities = sections[0].values.shape[1] if sections else 0
    index = np.array(
        [
            (section.values.shape[0], len(values), len(status))
            for section, (values, status) in zip(sections, packed, strict=True)
        ],
        dtype="<u4",
    )
    head = _HEADER.pack(MAGIC if len(times) > 1 else MAGIC_XOR, len(times), entities, len(sections))
    parts = [head, times.astype("<i8").tobytes(), index.tobytes()]
    for values, status in packed:
        parts += (values, status)
    return b"".join(parts)


class Block:
    """A decoded block; sections are unpacked one at a time, on demand."""

    def __init__(self, payload: bytes) -> None:
        """Raises StoreError if the payload is not a block of this format."""
        self._payload = payload
        if payload[:4] not in (MAGIC, MAGIC_XOR):
            raise StoreError(
                "A stored block of values has an unknown format.",
                hint="`outrider db check` lists it; restore a backup: outrider db restore FILE --force",
            )
        magic, self.instants, self.entities, self.sections = _HEADER.unpack_from(payload)
        self._xored = magic == MAGIC_XOR
        self._index_at = _HEADER.size + 8 * self.instants

    @property
    def times(self) -> Micros:
        """Timestamps in microseconds since 1970, ascending."""
        return np.frombuffer(self._payload, dtype="<i8", count=self.instants, offset=_HEADER.size)

    @cached_property
    def _offsets(self) -> list[tuple[int, int, int, int]]:
        """For each section: columns, start of values, start of status, end."""
        index = np.frombuffer(self._payload, dtype="<u4", count=3 * self.sections, offset=self._index_at)
        at = self._index_at + 12 * self.sections
        result = []
        for columns, values, status in index.reshape(-1, 3).tolist():
            result.append((columns, at, at + values, at + values + status))
            at += values + status
        return result

    def planes(self, section: int) -> bytes:
        """A section before zstd; of one instant: the byte planes of its values."""
        _, start, middle, _ = self._offsets[section]
        return _decompressor().decompress(self._payload[start:middle])

    def values(self, section: int) -> Floats32:
        """Values of a section, of shape (columns, entities, instants); gaps repeat the previous number."""
        shape = (self.columns(section), self.entities, self.instants)
        if not self._xored:
            return decimal_codec.unpack(self.planes(section), shape)
        planes = np.frombuffer(self.planes(section), dtype=np.uint8).reshape(4, -1)
        bits = np.ascontiguousarray(planes.T).view("<u4").reshape(shape)
        return np.bitwise_xor.accumulate(bits, axis=-1).view(np.float32)

    def statuses(self, section: int) -> bytes | None:
        """Unpacked status bytes of a section; None if every cell is PRESENT."""
        _, _, middle, end = self._offsets[section]
        return _decompressor().decompress(self._payload[middle:end]) if end > middle else None

    @property
    def length(self) -> int:
        """Length of the payload according to its index."""
        return self._offsets[-1][3] if self.sections else self._index_at

    def columns(self, section: int) -> int:
        """Number of columns of a section."""
        return self._offsets[section][0]


def decode(blocks: Sequence[Block], section: int) -> Section:
    """One section of several blocks of the same entities and columns, joined along time.

    Single instants are unpacked together: the tail of a cycle is too small for a call of its own.
    """
    if all(block.instants == 1 for block in blocks):
        return _decode_tails(blocks, section)
    parts = [_decode_block(block, section) for block in blocks]
    if len(parts) == 1:
        return parts[0]
    statuses = [part.status for part in parts]
    joined = None
    if any(status is not None for status in statuses):
        joined = np.concatenate([_full_status(part) for part in parts], axis=-1)
    return Section(np.concatenate([part.values for part in parts], axis=-1), joined)


def _full_status(section: Section) -> Statuses:
    if section.status is not None:
        return section.status
    return np.zeros(section.values.shape, dtype=np.uint8)


def _decode_block(block: Block, section: int) -> Section:
    values = block.values(section)
    raw = block.statuses(section)
    status = None if raw is None else np.frombuffer(raw, dtype=np.uint8).reshape(values.shape)
    return _restore(values, status)


def _decode_tails(blocks: Sequence[Block], section: int) -> Section:
    entities, columns = blocks[0].entities, blocks[0].columns(section)
    planes = np.frombuffer(b"".join([block.planes(section) for block in blocks]), dtype=np.uint8)
    bits = np.empty((columns * entities, len(blocks), 4), dtype=np.uint8)
    bits[:] = planes.reshape(len(blocks), 4, -1).transpose(2, 0, 1)
    raw = [block.statuses(section) for block in blocks]
    status = None
    if any(result is not None for result in raw):
        empty = bytes(columns * entities)
        joined = np.frombuffer(b"".join(result or empty for result in raw), dtype=np.uint8)
        status = joined.reshape(len(blocks), columns, entities).transpose(1, 2, 0)
    return _restore(bits.view("<f4").reshape(columns, entities, len(blocks)), status)


def _restore(values: Floats32, status: Statuses | None) -> Section:
    if status is None:
        return Section(values)
    missing = (status & _NO_NUMBER) != 0
    values = np.where(missing, np.float32(np.nan), values)
    return Section(values, status & np.uint8(_NO_NUMBER - 1))


def without_hollows(values: Numeric, status: Statuses) -> Statuses:
    """The status with PRESENT cells without a number turned into ABSENT, because such cells must not be stored."""
    hollow = np.isnan(values) & (status == CellStatus.PRESENT)
    return np.where(hollow, np.uint8(CellStatus.ABSENT), status) if hollow.any() else status
