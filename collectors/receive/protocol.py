"""What senders push: the words of every door, and bodies unpacked within limits.

A door decodes one protocol into ``Stream``: a series with its samples, and the target that told it.
What cannot be used is refused with a sentence (``ReceiveError``), or left out and counted by reason.
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
"""What a Prometheus says of a target itself; told with the target whatever adapter reads it."""

FUTURE_MS = 5 * 60 * 1000  # clocks of senders differ

STALE_NAN_BITS = 0x7FF0000000000002
"""The NaN by which a Prometheus says that a series has ended."""


class IngestProtocol(StrEnum):
    """By which protocol something came."""

    REMOTE_WRITE = "remote_write"
    OTLP = "otlp"
    KPI = "kpi"


class DropReason(StrEnum):
    """Why samples were left out: the label of the counter, and the word in the log."""

    NO_ADAPTER = "no_adapter"  # nothing here reads any metric of its target
    NOT_READ = "not_read"  # its target is known, and its adapter does not look at this metric
    BY_RULE = "by_rule"  # a rule of the configuration says so
    UNNAMED = "unnamed"  # a series without a name
    UNSUPPORTED = "unsupported"  # a summary, a native histogram of a metric that no adapter reads as one
    TOO_MANY_TARGETS = "too_many_targets"
    TOO_MANY_SERIES = "too_many_series"
    LATE = "late"  # the page it belongs to was handed on already
    TOO_OLD = "too_old"  # its page came so late that it says nothing of now
    FUTURE = "future"  # its instant lies ahead: a wrong clock, or a wrong unit
    UNREADABLE = "unreadable"  # a block in the buffer that this program cannot read


class RejectionReason(StrEnum):
    """Why a whole request is refused. Senders must not repeat MALFORMED, UNSUPPORTED and TOO_LARGE."""

    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too_large"
    TOO_FAST = "too_fast"
    FULL = "full"


class ReceiveError(OutriderError):
    """A request that is refused whole."""

    def __init__(self, message: str, *, reason: RejectionReason, hint: str = "") -> None:
        """``message`` is one sentence for the sender's log."""
        super().__init__(message, hint=hint)
        self.reason = reason


class Source(NamedTuple):
    """Who told a series: the target as Prometheus names one. ``path`` is its metrics_path where it is told."""

    job: str
    instance: str
    path: str = ""

    def __str__(self) -> str:
        """``job/instance``, with the path where it is not the usual one."""
        suffix = self.path if self.path not in {"", "/metrics"} else ""
        return f"{self.job}/{self.instance}{suffix}"


@dataclass(frozen=True, slots=True)
class Stream:
    """One series with its samples, oldest first: ``stamps`` are unix milliseconds.

    ``labels`` lack the name. ``delta`` values are increases since the sender's last ones, to be added
    up. A value that is the stale NaN says that the series has ended.
    """

    source: Source
    name: str
    labels: Mapping[str, str]
    stamps: tuple[int, ...]
    values: tuple[float, ...]
    delta: bool = False


@dataclass(slots=True)
class Decoded:
    """What one request held. ``about`` are facts about a source; ``left_out`` counts samples by reason."""

    protocol: IngestProtocol
    streams: list[Stream] = field(default_factory=list)
    about: dict[Source, dict[str, str]] = field(default_factory=dict)
    samples: int = 0
    histograms: int = 0
    left_out: Counter[DropReason] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)  # samples by the name of a metric that was left out

    def leave_out(self, reason: DropReason, name: str, count: int) -> None:
        """Count what is not used."""
        self.left_out[reason] += count
        if len(self.unread) < 1000 or name in self.unread:
            self.unread[name] += count


def keep_times(decoded: Decoded, now_ms: int) -> None:
    """Leave out samples that lie ahead or before 1970; OTLP's instant 0 means that the sender does not know."""
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
    """Undo a Content-Encoding, never making more than ``limit`` bytes. Raises ReceiveError."""
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
                f"the Content-Encoding {encoding!r} is not known here",
                reason=RejectionReason.UNSUPPORTED,
                hint="send snappy (remote write), gzip, deflate, zstd, or none",
            )
    except (cramjam.DecompressionError, zlib.error, zstandard.ZstdError) as error:
        raise ReceiveError(
            f"the body is no {name} block: {error}",
            reason=RejectionReason.MALFORMED,
            hint="see what the sender compresses with",
        ) from error
    if len(unpacked) > limit:
        raise too_large(limit)
    return unpacked


def too_large(limit: int) -> ReceiveError:
    """A body above the limit on either side of its compression."""
    return ReceiveError(
        f"the request is larger than {limit} bytes",
        reason=RejectionReason.TOO_LARGE,
        hint="send smaller batches, or raise receive.body_limit_bytes and receive.unpacked_limit_bytes",
    )


def malformed(what: str, error: Exception | None = None) -> ReceiveError:
    """A body that is not what its Content-Type says."""
    said = f": {error}" if error is not None and str(error) else ""
    return ReceiveError(
        f"the body is no {what}{said}", reason=RejectionReason.MALFORMED, hint="see the sender's version"
    )


def _snappy(body: bytes, limit: int) -> bytes:
    # A block says its size in its first bytes: it is asked before a byte is unpacked.
    if cramjam.snappy.decompress_raw_len(body) > limit:
        raise too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(body))


def _zlib(body: bytes, limit: int) -> bytes:
    """Gzip and zlib frames alike, one after another as gzip allows."""
    parts, size = [], 0
    while body:
        stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
        part = stream.decompress(body, limit - size + 1)
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if not stream.eof:
            raise zlib.error("it breaks off")
        parts.append(part)
        body = stream.unused_data
    return b"".join(parts)


def _zstd(body: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body, read_across_frames=True) as reader:
        return reader.read(limit + 1)
