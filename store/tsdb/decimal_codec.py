"""Packs numbers as decimals: a column of decimals becomes integers, any other column stays float32.

Most signals are whole numbers (increases, buckets, states, percent) or have a few decimals (watts to the milliwatt,
ratios to a millionth). Such a column is multiplied by the power of ten that makes it whole. Small integers fill one or
two of their four bytes. Noise stays in the lowest bits, which xor would spread over all 23 bits of a mantissa. This
takes a quarter fewer bytes for device gauges, an eighth fewer for engine signals, and unpacks faster
(docs/adr/0009-blob-format.md has the figures).

The packed form, before zstd: one byte per column with its encoding; then, for each set of columns with the same
encoding, in order of their first column, the bytes of their values in planes, lowest first. The byte of a column:

====  =====================================================================
bits  meaning
====  =====================================================================
0-2   decimals: the integer is the value times ten to this power (0-6)
3     each number is the difference to the previous instant: for
      integers by subtraction, for float32 by xor
4     signed: 2n for n >= 0, -2n - 1 for n < 0
5-6   stored planes, less one
7     integers; else float32 with all four planes
====  =====================================================================
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]
Whole = NDArray[np.int32]
Bits = NDArray[np.uint32]

_WHOLE, _DIFFERENCE, _SIGNED = 0x80, 0x08, 0x10
_POWERS: Final = tuple(np.float32(10.0**power) for power in range(7))
_MOST = 2.0**24  # float32 holds every smaller integer exactly, so that division restores the same number
_SAMPLE = 512  # numbers tested before all are
_ROWS = 16  # entities sampled to judge whether differences pay
_PAYS = 0.95  # minimum saving: without differences a column unpacks faster, and zstd finds repetitions


def pack(values: Floats32) -> bytes:
    """Packs values of shape (columns, entities, instants), without NaN, for compression."""
    codes = np.zeros(len(values), dtype=np.uint8)
    stored: list[Bits] = []
    for column, cells in enumerate(values):
        code, bits = _packed(cells)
        codes[column] = code
        stored.append(bits)
    parts = []
    for code in dict.fromkeys(codes.tolist()):
        columns = np.flatnonzero(codes == code)
        cells = np.stack([stored[column] for column in columns.tolist()])
        planes = max(1, -(-int(cells.max()).bit_length() // 8)) if code & _WHOLE else 4
        codes[columns] |= (planes - 1) << 5
        parts.append(cells.view(np.uint8).reshape(-1, 4)[:, :planes].T.tobytes())
    return b"".join([codes.tobytes(), *parts])


def _packed(cells: Floats32) -> tuple[int, Bits]:
    """The encoding of a column, without its planes, and its stored numbers."""
    if not cells.size:
        return 0, np.empty(cells.shape, dtype=np.uint32)
    power = _power_of(cells)
    if power is None:
        bits = np.ascontiguousarray(cells).view(np.uint32)
        near = np.concatenate((bits[..., :1], bits[..., 1:] ^ bits[..., :-1]), axis=-1)
        return (_DIFFERENCE, near) if _weight(near) < _PAYS * _weight(bits) else (0, bits)
    whole = np.rint(cells * _POWERS[power]).astype(np.int32)
    near = np.concatenate((whole[..., :1], np.diff(whole, axis=-1)), axis=-1)
    code, bits = _signed(whole)
    other, difference = _signed(near)
    if _weight(difference) < _PAYS * _weight(bits):
        return _WHOLE | power | _DIFFERENCE | other, difference
    return _WHOLE | power | code, bits


def _signed(cells: Whole) -> tuple[int, Bits]:
    if cells.min() < 0:
        return _SIGNED, ((cells << 1) ^ (cells >> 31)).view(np.uint32)
    return 0, cells.view(np.uint32)


def _weight(bits: Bits) -> float:
    """Estimated bits per packed number: the entropy of its bytes, sampled over entities."""
    sampled = np.ascontiguousarray(bits[:: max(1, len(bits) // _ROWS)]).view(np.uint8).reshape(-1, 4)
    weight = 0.0
    for plane in range(4):
        share = np.bincount(sampled[:, plane], minlength=256) / max(1, len(sampled))
        weight -= float((share[share > 0] * np.log2(share[share > 0])).sum())
    return weight


def _power_of(cells: Floats32) -> int | None:
    """The fewest decimals that represent every number exactly; None if there are too many."""
    flat = cells.ravel()
    sample = flat[:: max(1, flat.size // _SAMPLE)]
    for power, ten in enumerate(_POWERS):
        if not _bounded(sample, ten):
            return None
        if _exact(sample, ten):
            if _bounded(flat, ten) and _exact(flat, ten):
                return power
            sample = flat
    return None


def _bounded(cells: Floats32, ten: np.float32) -> bool:
    return bool(max(float(cells.max()), -float(cells.min())) * float(ten) < _MOST)


def _exact(cells: Floats32, ten: np.float32) -> bool:
    restored = np.rint(cells * ten).astype(np.int32).astype(np.float32) / ten
    return bool(np.array_equal(restored.view(np.uint32), cells.view(np.uint32)))  # compares bits: -0.0 is not 0.0


def unpack(packed: bytes, shape: tuple[int, int, int]) -> Floats32:
    """The values that were packed."""
    columns, entities, instants = shape
    codes = np.frombuffer(packed, dtype=np.uint8, count=columns)
    kinds = dict.fromkeys(codes.tolist())
    at, out = columns, None if len(kinds) == 1 else np.empty(shape, dtype=np.float32)
    for code in kinds:
        indices = np.flatnonzero(codes == code)
        planes = ((code >> 5) & 3) + 1
        count = indices.size * entities * instants
        raw = np.frombuffer(packed, dtype=np.uint8, count=planes * count, offset=at).reshape(planes, count)
        cells = _numbers(raw, code, (indices.size, entities, instants))
        at += planes * count
        if out is None:
            return cells
        out[indices] = cells
    return np.empty(shape, dtype=np.float32) if out is None else out


def _numbers(planes: NDArray[np.uint8], code: int, shape: tuple[int, int, int]) -> Floats32:
    cells = _joined(planes).reshape(shape)
    if not code & _WHOLE:
        bits = np.bitwise_xor.accumulate(cells, axis=-1) if code & _DIFFERENCE else cells
        result: Floats32 = bits.view(np.float32)
        return result
    whole: NDArray[np.integer[Any]] = cells
    if code & _SIGNED:
        folded = cells.astype(np.int32)
        whole = (folded >> 1) ^ -(folded & 1)
    if code & _DIFFERENCE:
        whole = np.add.accumulate(whole, axis=-1, dtype=np.int32)
    numbers = whole.astype(np.float32)
    if code & 7:
        numbers /= _POWERS[code & 7]
    return numbers


def _joined(planes: NDArray[np.uint8]) -> NDArray[np.unsignedinteger[Any]]:
    """Planes, lowest first, as numbers of one, two or four bytes."""
    count, cells = planes.shape
    width = {1: 1, 2: 2}.get(count, 4)
    result = np.zeros((cells, width), dtype=np.uint8) if count == 3 else np.empty((cells, width), dtype=np.uint8)
    for index, plane in enumerate(planes):
        result[:, index] = plane
    numbers: NDArray[np.unsignedinteger[Any]] = result.view(f"<u{width}").ravel()
    return numbers
