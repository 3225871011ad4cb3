"""Recorded pages and recorded fleets, read back as scrapes.

A recording is ``<name>.metrics.jsonl.gz``: a line a scrape with ``t`` (unix seconds), ``text`` or
``error``, ``dur`` (seconds), the engine probe's ``health`` and ``load``, and ``samples`` where the text is
only a part of the target's page. A recorded fleet is a
folder with ``targets.yaml``, one recording a target, and optionally ``events.jsonl``.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from collectors.doubles import SOURCES
from collectors.scraped import Scrape
from collectors.targets import Target, target_of, targets_of
from outrider import yamlfile
from outrider.clock import from_unix, parse_rfc3339
from outrider.errors import CollectError, CollectReason, UsageError
from outrider.model import EntityKind, EntityRef, Event, EventKind

SUFFIX = ".metrics.jsonl.gz"
MOST_BYTES = 512 * 1024 * 1024  # of a page from a gzipped file
_GZIP = b"\x1f\x8b"
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
    """A recorded fleet: its targets, and where their recordings lie."""

    cluster: str
    folder: Path
    targets: tuple[Target, ...]
    events: tuple[Event, ...] = ()

    def scrapes(self) -> Iterator[Scrape]:
        """Every scrape of every target in order of time. Raises UsageError as ``read_recording`` does."""
        readers = (read_recording(self.folder / f"{target.name}{SUFFIX}", target) for target in self.targets)
        yield from heapq.merge(*readers, key=lambda scrape: scrape.at)


def target_of_file(path: Path, adapter: str = "vllm", cluster: str = "replay") -> Target:
    """The target of a single recording: one service with one replica, both named after the file."""
    name = path.name.removesuffix(SUFFIX).removesuffix(".gz").removesuffix(".jsonl").removesuffix(".txt")
    return target_of(cluster, {"name": name, "adapter": adapter, "labels": {"service": name}})


def read_recording(path: Path, target: Target | None = None, *, adapter: str = "vllm") -> Iterator[Scrape]:
    """The scrapes of one recording, in the order they stand in.

    Raises UsageError naming file and line when the file cannot be read or a line is no scrape.
    """
    found = target or target_of_file(path, adapter)
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _scrape(path, number, line, found)
    except FileNotFoundError as error:
        raise UsageError(f"there is no recording {path}", hint="check the path") from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UsageError(
            f"{path}:{number + 1}: the recording breaks off: {error}", hint="record again, or cut the file there"
        ) from error


def read_fleet(folder: Path) -> RecordedFleet:
    """A recorded fleet. Raises UsageError or ConfigError naming file and line."""
    file = folder / "targets.yaml"
    if not file.is_file():
        raise UsageError(f"{folder} is no recorded fleet: it has no {file.name}", hint="check the path")
    parsed = yamlfile.read(file)
    document = parsed.value if isinstance(parsed.value, dict) else {}
    if not isinstance(document.get("targets"), list) or not document.get("cluster"):
        raise yamlfile.refuse([parsed.problem((), "expected the keys cluster and targets (a list)")])
    cluster = str(document["cluster"])
    targets = targets_of(cluster, document["targets"], str(file))
    for target in targets:
        if not (folder / f"{target.name}{SUFFIX}").is_file():
            raise UsageError(
                f"{file}: there is no recording of target {target.name!r}", hint=f"expected {target.name}{SUFFIX}"
            )
    return RecordedFleet(cluster, folder, targets, tuple(read_events(folder / "events.jsonl", cluster)))


def read_events(path: Path, cluster: str) -> Iterator[Event]:
    """The events of a fleet, none when there is no such file. Raises UsageError naming file and line."""
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _event(json.loads(line), cluster, str(path), number)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UsageError(
                f"{path}:{number}: no event: {error}", hint="expected at, kind, entity, code and text"
            ) from error


def page_scrape(target: Target, body: bytes, at: datetime) -> Scrape:
    """A page from a file as a scrape. An editor may have taken the final newline: it is put back."""
    whole = body if not body or body.endswith(b"\n") else body + b"\n"
    return Scrape(target, at, whole, None, 0.0, saved=True)


def plain(body: bytes, name: str) -> bytes:
    """The bytes of a page that may be gzipped. Raises UsageError naming it when the archive is broken or too large."""
    if not body.startswith(_GZIP):
        return body
    try:
        with gzip.open(io.BytesIO(body)) as archive:
            found = archive.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{name} is a broken gzip file: {error}", hint="save it again, or unpack what is left"
        ) from error
    if len(found) > MOST_BYTES:
        raise UsageError(f"{name} unpacks to more than {MOST_BYTES >> 20} MiB", hint="is this one page of metrics?")
    return found


def _scrape(path: Path, number: int, line: str, target: Target) -> Scrape:
    try:
        said: dict[str, Any] = json.loads(line)
        at, text, error = from_unix(float(said["t"])), said.get("text"), said.get("error")
        duration, load, health = float(said.get("dur") or 0.0), _load(said.get("load")), said.get("health")
        if health is not None and (isinstance(health, bool) or not isinstance(health, int)):
            raise TypeError(f"health is {health!r}, expected an HTTP status as a whole number, or null")  # noqa: TRY301
        if (text is None) is (error is None):
            raise ValueError("expected either text or error")  # noqa: TRY301 (one message for every fault of a line)
        found = Scrape(
            target=target,
            at=at,
            body=None if text is None else str(text).encode(),
            error=None if error is None else _error(target, str(error)),
            duration_seconds=duration,
            probed="health" in said,
            samples=None if said.get("samples") is None else int(said["samples"]),
        )
        return replace(found, health=health, load=load)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
        raise UsageError(
            f"{path}:{number}: no scrape: {fault}", hint="expected JSON with t, text or error, dur, health, load"
        ) from fault


def _load(said: Any) -> float | None:
    """Requests in flight. Raises TypeError or ValueError for what is no number of them."""
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= float(said) < math.inf:
        raise ValueError(f"load is {said!r}, expected a number of requests, or null")
    return float(said)


def _error(target: Target, text: str) -> CollectError:
    if text in _SPELLED:
        return CollectError(f"{target.name}: {text}", reason=text)
    reason = next((reason for words, reason in _REASONS if words in text), CollectReason.OTHER)
    return CollectError(f"{target.name}: {text}", reason=reason)


def _event(said: Mapping[str, Any], cluster: str, file: str, number: int) -> Event:
    entity = said["entity"]
    ref = EntityRef(
        str(entity.get("cluster") or cluster),
        EntityKind(entity["kind"]),
        entity.get("namespace") or None,
        str(entity["name"]),
    )
    at = from_unix(float(said["at"])) if isinstance(said["at"], int | float) else parse_rfc3339(str(said["at"]))
    code = str(said.get("code", ""))
    key = f"{said['kind']}/{ref.key}/{code}/{at.timestamp():.3f}/{number}"
    identity = hashlib.sha256(key.encode()).hexdigest()[:24]
    text = str(said.get("text", ""))
    attributes = {"message": text} if text else {}
    attributes |= {str(name): str(value) for name, value in dict(said.get("attributes") or {}).items()}
    attributes.pop(SOURCES, None)  # each door tells anew
    return Event(identity, EventKind(said["kind"]), ref, at, str(said.get("source") or file), code, attributes, key)
