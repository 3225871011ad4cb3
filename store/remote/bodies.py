"""Encodes the samples of one timestamp as bodies of remote write 1.0. Pure.

The labels of a series never change: they are serialized once, by protobuf, and cached. A body consists of those bytes
and the samples between them, which numpy packs all at once, without code per sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import Any, Final

import cramjam
import numpy as np
from numpy.typing import NDArray

from outrider.errors import StoreError
from outrider.model import EntityRef, Floats
from outrider.wire.remote_write import WriteRequest
from store.remote.names import OWNER, SeriesName

Stamps = NDArray[np.int64]
"""Unix milliseconds."""

_EARLIEST, _LATEST = 1 << 35, 1 << 42  # 1971 to 2109: stamps in this range take six bytes
_SAMPLE_BYTES: Final = 18
_VALUE, _STAMP = slice(3, 11), slice(12, 18)
_ENTITY_FIRST = ("cluster", "kind")  # labels are sent sorted by name
_ENTITY_LAST = ("name", "namespace", OWNER)


def _request(labels: Sequence[tuple[str, str]], samples: Sequence[tuple[float, int]] = ()) -> Any:
    request = WriteRequest()
    series = request.timeseries.add()
    for name, value in labels:
        series.labels.add(name=name, value=value)
    for number, stamp in samples:
        series.samples.add(value=number, timestamp=stamp)
    return request


def _serialised(labels: Sequence[tuple[str, str]]) -> bytes:
    """Labels as inside a series; concatenating two such pieces is a protobuf merge."""
    result: bytes = _request(labels).timeseries[0].SerializeToString()
    return result


_SERIES_TAG: Final = _request((("a", "b"),)).SerializeToString()[:1]
_SAMPLE: Final = np.frombuffer(_request((), ((1.0, _EARLIEST),)).timeseries[0].SerializeToString(), dtype=np.uint8)


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    return bytes((*result, number))


class SeriesBytes:
    """Cached serialized labels of every written series, by entity."""

    def __init__(self, owner: str) -> None:
        """``owner`` is the value of the label ``outrider``."""
        self._owner = owner
        self._numbers: dict[SeriesName, int] = {}
        self._pieces: list[tuple[bytes, bytes, bytes]] = []
        self._rows: dict[EntityRef, list[bytes | None]] = {}

    def of(self, names: Sequence[SeriesName], entities: Sequence[EntityRef]) -> list[bytes]:
        """The labels of all these series, by entity, without the length prefix."""
        numbers = [self._number(name) for name in names]
        result: list[bytes] = []
        for entity in entities:
            result += self._row(entity, numbers)
        return result

    def trim(self, most: int) -> None:
        """Clears the cache if it holds more than ``most`` entities: most of them have left by then."""
        if len(self._rows) > most:
            self._rows.clear()

    def _number(self, name: SeriesName) -> int:
        known = self._numbers.get(name)
        if known is None:
            known = self._numbers[name] = len(self._pieces)
            labels = sorted((("__name__", name.metric), *name.labels))
            first = [label for label in labels if label[0] < _ENTITY_FIRST[0]]
            middle = [label for label in labels if _ENTITY_FIRST[-1] < label[0] < _ENTITY_LAST[0]]
            last = [label for label in labels if label[0] > _ENTITY_LAST[-1]]
            self._pieces.append((_serialised(first), _serialised(middle), _serialised(last)))
        return known

    def _row(self, entity: EntityRef, numbers: Sequence[int]) -> list[bytes]:
        row = self._rows.setdefault(entity, [])
        if len(row) < len(self._pieces):
            row += [None] * (len(self._pieces) - len(row))
        missing = [number for number in numbers if row[number] is None]
        if missing:
            labels = {"cluster": entity.cluster, "kind": entity.kind.value, "name": entity.name, OWNER: self._owner}
            if entity.namespace:
                labels["namespace"] = entity.namespace
            leading = _serialised([(name, labels[name]) for name in _ENTITY_FIRST])
            trailing = _serialised([(name, labels[name]) for name in _ENTITY_LAST if name in labels])
            for number in missing:
                first, middle, last = self._pieces[number]
                row[number] = b"".join((first, leading, middle, trailing, last))
        return [row[number] or b"" for number in numbers]


def single(labels: Sequence[tuple[str, str]]) -> bytes:
    """The labels of one series without an entity, sorted."""
    return _serialised(sorted(labels))


def with_length(labels: Sequence[bytes]) -> list[bytes]:
    """Labels with the prefix of a series of one sample."""
    heads = {size: _SERIES_TAG + _varint(size + _SAMPLE_BYTES) for size in set(map(len, labels))}
    return [heads[len(label)] + label for label in labels]


def samples(values: Floats, stamps: Stamps | int) -> list[bytes]:
    """Each value as a sample inside a series. Raises StoreError for a timestamp out of range."""
    packed = np.empty((values.size, _SAMPLE_BYTES), dtype=np.uint8)
    packed[:] = _SAMPLE
    packed[:, _VALUE] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
    packed[:, _STAMP] = _stamp_bytes(np.atleast_1d(np.asarray(stamps, dtype=np.int64)))
    return packed.view(f"V{_SAMPLE_BYTES}").ravel().tolist()


def _stamp_bytes(stamps: Stamps) -> NDArray[np.uint8]:
    """Stamps as varints of six bytes, of shape (stamps, 6)."""
    if stamps.size and not (int(stamps.min()) >= _EARLIEST and int(stamps.max()) < _LATEST):
        raise StoreError(
            "Values before 1971 or after 2109 cannot be written to a remote store.",
            hint="Check the clock of this host.",
        )
    sevens = stamps[:, None] >> np.arange(0, 42, 7) & 127
    sevens[:, :-1] |= 128
    return sevens.astype(np.uint8)


def bodies(labels: Sequence[bytes], values: Floats, stamp: int, most: int) -> Iterator[tuple[bytes, int]]:
    """Compressed bodies of at most ``most`` series, each with its number of series. NaN is not sent.

    ``labels`` are those of ``with_length``.
    """
    present = ~np.isnan(values)
    chosen = labels if present.all() else list(compress(labels, present.tolist()))
    packed = samples(values[present], stamp)
    for first in range(0, len(chosen), most):
        part = slice(first, first + most)
        yield _compressed(chain.from_iterable(zip(chosen[part], packed[part], strict=True))), len(chosen[part])


def history(labels: Sequence[bytes], values: Floats, stamps: Stamps, most: int) -> Iterator[tuple[bytes, int]]:
    """Compressed bodies of about ``most`` samples from values of shape (series, stamps). NaN is not sent.

    ``labels`` are those of ``SeriesBytes.of``.
    """
    parts: list[bytes] = []
    size = 0
    for label, row in zip(labels, values, strict=True):
        present = ~np.isnan(row)
        count = int(np.count_nonzero(present))
        if not count:
            continue
        parts += (
            _SERIES_TAG,
            _varint(len(label) + count * _SAMPLE_BYTES),
            label,
            *samples(row[present], stamps[present]),
        )
        size += count
        if size >= most:
            yield _compressed(parts), size
            parts, size = [], 0
    if parts:
        yield _compressed(parts), size


def _compressed(parts: Any) -> bytes:
    return bytes(cramjam.snappy.compress_raw(b"".join(parts)))
