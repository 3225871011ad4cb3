"""Serialized form of pushed series in the ingest buffer: labels as JSON, samples as two columns, zstd around both.

The ingest endpoint decodes and rejects; the engine reads only these blocks. So a body is parsed once, and buffered
data has one format for all protocols.
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
    """One block with all series of a request."""
    groups: dict[tuple[Source, str, int | None], list[Stream]] = {}
    for item in assigned:
        groups.setdefault((item.stream.source, item.adapter, item.rule), []).append(item.stream)
    ordered = [stream for streams in groups.values() for stream in streams]
    listed = [
        {
            "source": [source.job, source.instance, source.path],
            "adapter": adapter,
            "rule": rule,
            "about": dict(about.get(source, {})),
            "series": [[item.name, dict(item.labels), len(item.stamps), item.delta] for item in streams],
        }
        for (source, adapter, rule), streams in groups.items()
    ]
    stamps = np.array([stamp for item in ordered for stamp in item.stamps], dtype="<i8")
    # With struct instead of numpy's conversion: the stale NaN must keep its bits.
    values = b"".join(struct.pack(f"<{len(item.values)}d", *item.values) for item in ordered)
    head = json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()
    body = _HEAD.pack(VERSION, len(head)) + head + stamps.tobytes() + values
    return zstandard.ZstdCompressor(level=1).compress(body)


def decode(payload: bytes) -> tuple[SeriesGroup, ...]:
    """Decodes a block. Raises ValueError if it is not of this version."""
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
    groups, at = [], 0
    for group in listed:
        source = Source(*group["source"])
        streams = []
        for name, labels, count, delta in group["series"]:
            end = at + count
            streams.append(Stream(source, name, labels, tuple(stamps[at:end]), tuple(values[at:end]), delta))
            at = end
        groups.append(SeriesGroup(source, group["adapter"], group["rule"], group["about"], tuple(streams)))
    return groups
