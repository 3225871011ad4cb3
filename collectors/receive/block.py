"""What a door hands to the engine, as bytes: label sets as JSON, samples as two columns, zstd around both.

The door decodes and refuses; the engine reads a block of its own making, so that a body is parsed once and
what waits in the buffer has one shape whatever protocol brought it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from collectors.receive.protocol import Source, Stream
from collectors.receive.routing import RoutedSeries

VERSION = 1
_HEAD = struct.Struct("<II")  # version, bytes of the JSON part
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SeriesGroup:
    """Series of one source that one adapter reads."""

    source: Source
    adapter: str
    rule: int | None
    about: Mapping[str, str]
    streams: tuple[Stream, ...]


def encode(assigned: Sequence[RoutedSeries], about: Mapping[Source, Mapping[str, str]]) -> bytes:
    """One block of all series of a request."""
    groups: dict[tuple[Source, str, int | None], list[Stream]] = {}
    for one in assigned:
        groups.setdefault((one.stream.source, one.adapter, one.rule), []).append(one.stream)
    ordered = [stream for streams in groups.values() for stream in streams]
    listed = [
        {
            "source": [source.job, source.instance, source.path],
            "adapter": adapter,
            "rule": rule,
            "about": dict(about.get(source, {})),
            "series": [[one.name, dict(one.labels), len(one.stamps), one.delta] for one in streams],
        }
        for (source, adapter, rule), streams in groups.items()
    ]
    stamps = np.array([stamp for one in ordered for stamp in one.stamps], dtype="<i8")
    # Through struct, not through numpy's conversion: the stale NaN must keep its bits.
    values = b"".join(struct.pack(f"<{len(one.values)}d", *one.values) for one in ordered)
    head = json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()
    body = _HEAD.pack(VERSION, len(head)) + head + stamps.tobytes() + values
    return zstandard.ZstdCompressor(level=1).compress(body)


def decode(payload: bytes) -> tuple[SeriesGroup, ...]:
    """Read a block back. Raises ValueError when it is none of this version."""
    try:
        body = zstandard.ZstdDecompressor().decompress(payload, max_output_size=_MOST_BYTES)
        version, size = _HEAD.unpack_from(body)
        if version != VERSION:
            raise ValueError(f"a block of version {version}")
        listed = json.loads(body[_HEAD.size : _HEAD.size + size])
        count = sum(entry[2] for group in listed for entry in group["series"])
        start = _HEAD.size + size
        stamps = np.frombuffer(body, dtype="<i8", count=count, offset=start).tolist()
        values = struct.unpack_from(f"<{count}d", body, start + 8 * count)
        return tuple(_groups(listed, stamps, values))
    except (zstandard.ZstdError, struct.error, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a block: {error}") from error


def _groups(listed: Sequence[Mapping[str, Any]], stamps: Sequence[int], values: Sequence[float]) -> list[SeriesGroup]:
    found, at = [], 0
    for group in listed:
        source = Source(*group["source"])
        streams = []
        for name, labels, count, delta in group["series"]:
            end = at + count
            streams.append(Stream(source, name, labels, tuple(stamps[at:end]), tuple(values[at:end]), delta))
            at = end
        found.append(SeriesGroup(source, group["adapter"], group["rule"], group["about"], tuple(streams)))
    return found
