"""Packs matrices as remote-write requests without a Python object per series, so that the client is never the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import cramjam
import numpy as np
from numpy.typing import NDArray

_SAMPLE = 18  # tag, length, then 9 bytes of value and 7 of a timestamp in milliseconds (41 bits)
_STALE = np.array([0x7FF0000000000002], dtype="<u8").view("<f8")[0]  # Prometheus's stale marker
_REQUEST_BYTES = 16 << 20


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def _field(tag: int, payload: bytes) -> bytes:
    return bytes([tag]) + _varint(len(payload)) + payload


def _labels(labels: Mapping[str, str]) -> bytes:
    pairs = (_field(0x0A, name.encode()) + _field(0x12, text.encode()) for name, text in labels.items())
    return b"".join(_field(0x0A, pair) for pair in pairs)


def _stamps(times: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Returns milliseconds as varints, shape (times, 6)."""
    left = np.round(times * 1000).astype(np.uint64)
    assert ((left >> np.uint64(35)) > 0).all(), "a timestamp in milliseconds needs six bytes: 1971 or later"
    assert ((left >> np.uint64(42)) == 0).all()
    result = np.empty((times.size, 6), dtype=np.uint8)
    for byte in range(6):
        result[:, byte] = (left & np.uint64(0x7F)).astype(np.uint8) | (0x80 if byte < 5 else 0)
        left >>= np.uint64(7)
    return result


class Series:
    """Series with the same number of samples. Labels are packed once, values for every request."""

    def __init__(self, labels: Sequence[Mapping[str, str]], samples: int) -> None:
        """``labels`` of each series include ``__name__``; ``samples`` is the number per series and request."""
        self._samples = samples
        packed = [_labels(label) for label in labels]
        heads = [b"\x0a" + _varint(len(one) + samples * _SAMPLE) + one for one in packed]
        sizes = np.array([len(head) for head in heads]) + samples * _SAMPLE
        series_per_request = max(1, int(_REQUEST_BYTES / sizes.mean()))
        self._parts: list[tuple[slice, NDArray[np.uint8], NDArray[np.intp]]] = []
        hollow = bytes(samples * _SAMPLE)
        for first in range(0, len(heads), series_per_request):
            part = slice(first, min(first + series_per_request, len(heads)))
            body = np.frombuffer(b"".join(head + hollow for head in heads[part]), dtype=np.uint8).copy()
            self._parts.append((part, body, np.cumsum(sizes[part]) - samples * _SAMPLE))

    def requests(self, times: NDArray[np.float64], values: NDArray[np.float64]) -> Iterator[bytes]:
        """Yields request bodies: ``values`` of shape (series, samples), NaN as the stale marker."""
        cells = np.zeros((*values.shape, _SAMPLE), dtype=np.uint8)
        cells[..., 0], cells[..., 1], cells[..., 2], cells[..., 11] = 0x12, _SAMPLE - 2, 0x09, 0x10
        filled = np.where(np.isnan(values), _STALE, values).astype("<f8")
        cells[..., 3:11] = filled.view(np.uint8).reshape(*values.shape, 8)
        cells[..., 12:18] = _stamps(times)
        flat = cells.reshape(len(cells), -1)
        for part, body, starts in self._parts:
            body[starts[:, None] + np.arange(self._samples * _SAMPLE)] = flat[part]
            yield bytes(cramjam.snappy.compress_raw(body.tobytes()))
