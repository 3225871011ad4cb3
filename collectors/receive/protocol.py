"""Types shared by all ingest protocols, and decompression within limits.

An endpoint decodes one protocol into ``Stream``: a series with its samples and its target. Unusable data is rejected
with an error sentence (``ReceiveError``), or dropped and counted by reason.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import cramjam
import zstandard

from outrider.errors import OutriderError

META = ("up", "scrape_duration_seconds", "scrape_samples_scraped")
"""Series that a Prometheus adds about a target itself; kept for every adapter."""

FUTURE_MS = 5 * 60 * 1000  # clock skew of senders

STALE_NAN_BITS = 0x7FF0000000000002
"""The NaN with which a Prometheus marks the end of a series."""


class IngestProtocol(StrEnum):
    """Protocol by which data arrived."""

    REMOTE_WRITE = "remote_write"
    OTLP = "otlp"
    KPI = "kpi"


class DropReason(StrEnum):
    """Reason for dropping samples: the label of the counter, and the value in the log."""

    NO_ADAPTER = "no_adapter"  # no adapter reads any metric of its target
    NOT_READ = "not_read"  # the adapter of its target does not read this metric
    BY_RULE = "by_rule"  # by a configured rule
    UNNAMED = "unnamed"  # a series without a name
    UNSUPPORTED = "unsupported"  # a summary, or a native histogram of a metric that no adapter reads as one
    TOO_MANY_TARGETS = "too_many_targets"
    TOO_MANY_SERIES = "too_many_series"
    LATE = "late"  # its page was returned already
    TOO_OLD = "too_old"  # its page arrived too late to describe the present
    FUTURE = "future"  # timestamp in the future: a wrong clock, or a wrong unit
    UNREADABLE = "unreadable"  # a block in the buffer that this version cannot read


class RejectionReason(StrEnum):
    """Reason for rejecting a whole request. Senders must not repeat MALFORMED, UNSUPPORTED and TOO_LARGE."""

    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"
    TOO_FAST = "too_fast"
    FULL = "full"


class ReceiveError(OutriderError):
    """The whole request is rejected."""

    def __init__(self, message: str, *, reason: RejectionReason, hint: str = "") -> None:
        """``message`` is one sentence for the sender's log."""
        super().__init__(message, hint=hint)
        self.reason = reason


class Source(NamedTuple):
    """Origin of a series: the target in Prometheus' terms. ``path`` is its metrics_path, if sent."""

    job: str
    instance: str
    path: str = ""

    def __str__(self) -> str:
        """``job/instance``, with the path if it is not /metrics."""
        suffix = self.path if self.path not in {"", "/metrics"} else ""
        return f"{self.job}/{self.instance}{suffix}"


@dataclass(frozen=True, slots=True)
class Stream:
    """One series with its samples, oldest first: ``stamps`` are unix milliseconds.

    ``labels`` lack the name. ``delta`` values are increases since the sender's last ones, to be added up. A stale NaN
    marks the end of the series.
    """

    source: Source
    name: str
    labels: Mapping[str, str]
    stamps: tuple[int, ...]
    values: tuple[float, ...]
    delta: bool = False


@dataclass(slots=True)
class DecodedRequest:
    """Content of one request. ``about`` are facts about a source; ``left_out`` counts samples by reason."""

    protocol: IngestProtocol
    streams: list[Stream] = field(default_factory=list)
    about: dict[Source, dict[str, str]] = field(default_factory=dict)
    samples: int = 0
    histograms: int = 0
    left_out: Counter[DropReason] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)  # dropped samples by metric name

    def leave_out(self, reason: DropReason, name: str, count: int) -> None:
        """Counts dropped samples."""
        self.left_out[reason] += count
        if len(self.unread) < 1000 or name in self.unread:
            self.unread[name] += count


def keep_times(decoded: DecodedRequest, now_ms: int) -> None:
    """Drops samples in the future or before 1970; in OTLP, timestamp 0 means unknown."""
    last = now_ms + FUTURE_MS
    for number, stream in enumerate(decoded.streams):
        if not stream.stamps or (min(stream.stamps) > 0 and max(stream.stamps) <= last):
            continue
        unset = decoded.protocol is IngestProtocol.OTLP
        pairs = [
            (now_ms if unset and stamp == 0 else stamp, value)
            for stamp, value in zip(stream.stamps, stream.values, strict=True)
            if 0 < stamp <= last or (unset and stamp == 0)
        ]
        if len(pairs) < len(stream.stamps):
            decoded.leave_out(DropReason.FUTURE, stream.name, len(stream.stamps) - len(pairs))
        stamps, values = zip(*pairs, strict=True) if pairs else ((), ())
        decoded.streams[number] = replace(stream, stamps=stamps, values=values)
    decoded.streams[:] = [stream for stream in decoded.streams if stream.stamps]


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """Decodes a Content-Encoding to at most ``limit`` bytes. Raises ReceiveError."""
    name = encoding.strip().lower()
    try:
        if name in {"", "identity"}:
            unpacked = body
        elif name == "snappy":
            unpacked = _snappy(body, limit)
        elif name in {"gzip", "x-gzip", "deflate"}:
            unpacked = _zlib(body, limit)
        elif name == "zstd":
            unpacked = _zstd(body, limit)
        else:
            raise ReceiveError(
                f"unsupported Content-Encoding {encoding!r}",
                reason=RejectionReason.UNSUPPORTED,
                hint="send snappy (remote write), gzip, deflate, zstd, or none",
            )
    except (cramjam.DecompressionError, zlib.error, zstandard.ZstdError) as error:
        raise ReceiveError(
            f"the body is not a {name} block: {error}",
            reason=RejectionReason.MALFORMED,
            hint="check the compression setting of the sender",
        ) from error
    if len(unpacked) > limit:
        raise too_large(limit)
    return unpacked


def too_large(limit: int, settings: str = "receive.body_limit_bytes and receive.unpacked_limit_bytes") -> ReceiveError:
    """Error for a body above the limit before or after decompression; ``settings`` set the limit."""
    return ReceiveError(
        f"the request is larger than {limit} bytes",
        reason=RejectionReason.TOO_LARGE,
        hint=f"send smaller batches, or increase {settings}",
    )


def malformed(what: str, error: Exception | None = None) -> ReceiveError:
    """Error for a body that does not match its Content-Type."""
    detail = f": {error}" if error is not None and str(error) else ""
    return ReceiveError(
        f"the body is not a valid {what}{detail}", reason=RejectionReason.MALFORMED, hint="check the sender's version"
    )


def _snappy(body: bytes, limit: int) -> bytes:
    # The block header has the size: it is checked before decompression.
    if cramjam.snappy.decompress_raw_len(body) > limit:
        raise too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(body))


def _zlib(body: bytes, limit: int) -> bytes:
    """Gzip and zlib frames alike, concatenated as gzip allows."""
    parts, size = [], 0
    while body:
        stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
        part = stream.decompress(body, limit - size + 1)
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if not stream.eof:
            raise zlib.error("the data is truncated")
        parts.append(part)
        body = stream.unused_data
    return b"".join(parts)


def _zstd(body: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body, read_across_frames=True) as reader:
        return reader.read(limit + 1)
