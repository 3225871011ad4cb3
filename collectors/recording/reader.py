"""Reads recorded pages and recorded fleets back as scrapes.

A recording is ``<name>.metrics.jsonl.gz`` with one line per scrape: ``t`` (unix seconds), ``text`` or ``error``,
``dur`` (seconds), the engine probe's ``health`` and ``load``, and ``samples`` if the text is only a part of the
target's page. A recorded fleet is a folder with ``targets.yaml``, one recording per target, and optionally
``events.jsonl``.
"""

from __future__ import annotations

import gzip
import heapq
import io
import json
import math
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from collectors.mapping.target import Target, target_of, targets_of
from collectors.recording.lines import NOT_AS_EXPECTED, describe_error, lines
from collectors.recording.recorded_events import read_events
from collectors.scrape.result import Scrape
from outrider.clock import from_unix
from outrider.errors import CollectError, CollectReason, ConfigError, UsageError
from outrider.model import Event
from outrider.text import yaml_file

SUFFIX = ".metrics.jsonl.gz"
MOST_BYTES = 512 * 1024 * 1024  # per page from a gzipped file
_GZIP = b"\x1f\x8b"
_TIME = re.compile(rb'\s*\{\s*"t"\s*:\s*(-?[0-9.eE+-]+)\s*[,}]')  # as written by the flight recorder
_REASONS = (
    ("refused", CollectReason.REFUSED),
    ("timed out", CollectReason.TIMEOUT),
    ("timeout", CollectReason.TIMEOUT),
    ("HTTP", CollectReason.HTTP_STATUS),
    ("reset", CollectReason.RESET),
)
_SPELLED = frozenset(reason for name, reason in vars(CollectReason).items() if name.isupper())


@dataclass(frozen=True, slots=True)
class RecordedFleet:
    """A recorded fleet: its targets, and the folder of their recordings."""

    cluster: str
    folder: Path
    targets: tuple[Target, ...]
    events: tuple[Event, ...] = ()

    def tracks(self) -> list[Track]:
        """The recording of every target, read through once. Raises UsageError as ``track`` does."""
        return [track(self.folder / f"{target.name}{SUFFIX}", target) for target in self.targets]

    def scrapes(self) -> Iterator[Scrape]:
        """All scrapes of all targets in time order. Raises UsageError as ``read_recording`` does."""
        yield from merged(self.tracks())


@dataclass(frozen=True, slots=True)
class Track:
    """The recording of one target. ``times`` are unix seconds in file order.

    ``misplaced`` is the first line that is earlier than the one before it, None if the lines are in order.
    """

    path: Path
    target: Target
    times: array[float]
    misplaced: int | None

    def scrapes(self) -> Iterator[Scrape]:
        """The scrapes in time order. Holds more than one in memory, compressed, only if the lines are out of order."""
        if self.misplaced is None:
            yield from read_recording(self.path, self.target)
            return
        read = zip(self.times, lines(self.path), strict=False)  # a recording in progress keeps growing
        packed = [(at, number, zlib.compress(line, 1)) for at, (number, line) in read]
        for _, number, line in sorted(packed, key=itemgetter(0, 1)):
            yield _scrape(self.path, number, zlib.decompress(line), self.target)


def track(path: Path, target: Target) -> Track:
    """Reads the times of a recording. Raises UsageError as ``read_recording`` does."""
    times, misplaced = array("d"), None
    for number, line in lines(path):
        match = _TIME.match(line)
        try:
            at = float(match[1]) if match else float("nan")
            from_unix(at)
        except (ValueError, OverflowError):  # another order of keys, or not a scrape
            at = _scrape(path, number, line, target).at.timestamp()
        if misplaced is None and times and at < times[-1]:
            misplaced = number
        times.append(at)
    return Track(path, target, times, misplaced)


def merged(tracks: Iterable[Track]) -> Iterator[Scrape]:
    """The scrapes of many recordings in time order, one of each in memory."""
    return heapq.merge(*(recording.scrapes() for recording in tracks), key=attrgetter("at"))


def target_of_file(path: Path, adapter: str = "vllm", cluster: str = "replay") -> Target:
    """Target of a single recording: one service with one replica, both named after the file."""
    name = path.name.removesuffix(SUFFIX).removesuffix(".gz").removesuffix(".jsonl").removesuffix(".txt")
    return target_of(cluster, {"name": name, "adapter": adapter, "labels": {"service": name}})


def read_recording(path: Path, target: Target | None = None, *, adapter: str = "vllm") -> Iterator[Scrape]:
    """Scrapes of one recording, in file order.

    Raises UsageError naming file and line if the file cannot be read or a line is not a scrape.
    """
    own_target = target or target_of_file(path, adapter)
    return (_scrape(path, number, line, own_target) for number, line in lines(path))


def read_fleet(folder: Path) -> RecordedFleet:
    """Reads a recorded fleet. Raises UsageError or ConfigError naming file and line."""
    file = folder / "targets.yaml"
    if not file.is_file():
        raise UsageError(f"{folder} is not a recorded fleet: {file.name} is missing", hint="check the path")
    cluster, targets = _targets(file)
    for target in targets:
        if not (folder / f"{target.name}{SUFFIX}").is_file():
            raise UsageError(
                f"{file}: the recording of target {target.name!r} is missing", hint=f"expected {target.name}{SUFFIX}"
            )
    return RecordedFleet(cluster, folder, targets, tuple(read_events(folder / "events.jsonl", cluster)))


def _targets(file: Path) -> tuple[str, tuple[Target, ...]]:
    try:
        parsed = yaml_file.read(file)
        document = parsed.value if isinstance(parsed.value, dict) else {}
        if not isinstance(document.get("targets"), list) or not document.get("cluster"):
            raise yaml_file.refuse([parsed.problem((), "expected the keys cluster and targets (a list)")])
        cluster = str(document["cluster"])
        return cluster, targets_of(cluster, document["targets"], str(file), parsed)
    except ConfigError as error:  # ``config check`` does not cover these files
        raise ConfigError(error.message, error.problems, hint="fix that line, or record again") from error


def page_scrape(target: Target, body: bytes, at: datetime) -> Scrape:
    """A page from a file as a scrape. Restores a final newline that an editor removed."""
    page = body if not body or body.endswith(b"\n") else body + b"\n"
    return Scrape(target, at, page, None, 0.0, saved=True)


def decompressed(body: bytes, name: str) -> bytes:
    """The bytes of a page that may be gzipped. Raises UsageError naming a broken or too large archive."""
    if not body.startswith(_GZIP):
        return body
    try:
        with gzip.open(io.BytesIO(body)) as archive:
            content = archive.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{name} is a broken gzip file: {error}", hint="save it again, or recover it with gunzip"
        ) from error
    if len(content) > MOST_BYTES:
        raise UsageError(
            f"{name} expands to more than {MOST_BYTES >> 20} MiB", hint="check that it is a single metrics page"
        )
    return content


def _scrape(path: Path, number: int, line: bytes, target: Target) -> Scrape:
    try:
        record: dict[str, Any] = json.loads(line.decode())
        at, text, error = from_unix(float(record["t"])), record.get("text"), record.get("error")
        duration, load, health = float(record.get("dur") or 0.0), _load(record.get("load")), record.get("health")
        if (text is None) is (error is None):
            raise ValueError("expected either text or error")
        if health is not None and (isinstance(health, bool) or not isinstance(health, int)):
            raise ValueError(f"health is {health!r}, expected an integer HTTP status or null")
        scrape = Scrape(
            target=target,
            at=at,
            body=None if text is None else str(text).encode(),
            error=None if error is None else _error(target, str(error)),
            duration_seconds=duration,
            probed="health" in record,
            samples=None if record.get("samples") is None else int(record["samples"]),
        )
        return replace(scrape, health=health, load=load)
    except NOT_AS_EXPECTED as cause:
        raise UsageError(
            f"{path}:{number}: not a scrape: {describe_error(cause)}",
            hint="expected JSON with t, text or error, dur, health, load",
        ) from cause


def _load(value: Any) -> float | None:
    """Requests in flight. Raises TypeError or ValueError if the value is not a number of requests."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= float(value) < math.inf:
        raise ValueError(f"load is {value!r}, expected a number of requests, or null")
    return float(value)


def _error(target: Target, text: str) -> CollectError:
    if text in _SPELLED:
        return CollectError(f"{target.name}: {text}", reason=text)
    reason = next((reason for words, reason in _REASONS if words in text), CollectReason.OTHER)
    return CollectError(f"{target.name}: {text}", reason=reason)
