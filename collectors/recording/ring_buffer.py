"""Ring buffer on disk of all scrapes of the last half hour, to replay the lead-up to an incident.

A round is one zstd frame: pages of similar targets differ only in numbers, so a thousand of them take little more
than one. Frames are stored in segment files of some minutes; old segments are deleted when the span or the size
limit is exceeded. A frame truncated by a crash is skipped when read. Each page is stored with its target, which may
no longer exist when the recording is requested.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import zstandard

from collectors.mapping.target import Target
from collectors.recording.recorder import FlightRecorder
from collectors.scrape.result import Scrape
from outrider import log
from outrider.clock import from_unix
from outrider.errors import CollectError
from outrider.model import EntityRef, Event

SPAN = timedelta(minutes=30)
SEGMENT = timedelta(minutes=5)
LIMIT_BYTES = 512 * 1024 * 1024
_LEVEL = 3
_SUFFIX = ".rounds.zst"


class FlightRing:
    """Writes in the background, one round at a time. A round that comes too early is dropped and counted."""

    def __init__(self, folder: Path, *, span: timedelta = SPAN, limit_bytes: int = LIMIT_BYTES) -> None:
        """Recent data of an earlier run in ``folder`` is kept."""
        self._folder, self._span, self._limit = folder, span, limit_bytes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flight")
        self._busy: Future[None] | None = None
        self._failed = False
        self._last_scraped: dict[str, tuple[datetime, Target]] = {}  # by name, with the time of the last scrape
        self._guard = threading.Lock()
        self._recalled = False
        self.left_out = 0

    def add(self, scrapes: Sequence[Scrape]) -> None:
        """Adds a round. Never raises: a full disk costs only the recording."""
        if not scrapes:
            return
        if self._busy is not None and not self._busy.done():
            self.left_out += 1
            return
        with self._guard:
            self._last_scraped |= {scrape.target.name: (scrape.at, scrape.target) for scrape in scrapes}
            oldest = max(scrape.at for scrape in scrapes) - self._span - SEGMENT
            for name in [name for name, (at, _) in self._last_scraped.items() if at < oldest]:
                del self._last_scraped[name]
        self._busy = self._pool.submit(self._write, tuple(scrapes))

    def targets(self, since: datetime) -> tuple[Target, ...]:
        """Every target scraped since then in its last state, including those of an earlier run and removed ones."""
        if not self._recalled:
            self.flush()
            read = (pair for path in self._segments() for frame in _frames(path) for pair in _described(frame))
            recent = {target.name: (at, target) for at, target in read}
            with self._guard:
                self._last_scraped = recent | self._last_scraped
            self._recalled = True
        with self._guard:
            return tuple(target for at, target in self._last_scraped.values() if at >= since)

    def export_recording(
        self,
        out: Path,
        cluster: str,
        targets: Sequence[Target],
        since: datetime,
        until: datetime,
        events: Iterable[Event] = (),
    ) -> int:
        """Writes the scrapes of some targets in [since, until] as a recorded fleet; returns their number.

        ``events`` are those of that time; events from pages are omitted. Raises UsageError if the folder cannot be
        written.
        """
        self.flush()
        wanted = {target.name: target for target in targets}
        recorder = FlightRecorder(out, cluster, targets)
        try:
            for scrape in self._read(wanted, since, until):
                recorder.add((scrape,))
            with self._guard:
                names = set(self._last_scraped)
            recorder.add_events(event for event in events if event.source not in names)
        finally:
            recorder.close()
        return recorder.scrapes

    @property
    def size_bytes(self) -> int:
        """Size of the ring on disk."""
        return sum(path.stat().st_size for path in self._segments())

    def flush(self) -> None:
        """Waits for pending writes."""
        if self._busy is not None:
            self._busy.result()

    def close(self) -> None:
        """Completes pending writes."""
        self._pool.shutdown(wait=True)

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, scrapes: tuple[Scrape, ...]) -> None:
        at = max(scrape.at for scrape in scrapes)
        parts = [part for scrape in scrapes for part in _packed(scrape)]
        frame = zstandard.ZstdCompressor(level=_LEVEL).compress(b"".join(parts))
        seconds = SEGMENT.total_seconds()
        segment = self._folder / f"{int(at.timestamp() // seconds * seconds)}{_SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with segment.open("ab") as file:
                file.write(frame)
            self._drop_old(at)
        except OSError as error:
            if not self._failed:
                log.get("flight").warning("flight_recorder_stands_still", folder=str(self._folder), error=str(error))
            self._failed = True
        else:
            self._failed = False

    def _drop_old(self, now: datetime) -> None:
        segments = self._segments()
        taken = sum(path.stat().st_size for path in segments)
        for path in segments[:-1]:  # the newest one is being written
            if _begin(path) + SEGMENT >= now - self._span and taken <= self._limit:
                break
            taken -= path.stat().st_size
            path.unlink()

    def _segments(self) -> list[Path]:
        """Segments, oldest first."""
        return sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda path: int(path.name.removesuffix(_SUFFIX)))

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, targets: Mapping[str, Target], since: datetime, until: datetime) -> Iterator[Scrape]:
        for path in self._segments():
            if _begin(path) + SEGMENT < since or _begin(path) > until:
                continue
            for frame in _frames(path):
                yield from (scrape for scrape in _unpacked(frame, targets) if since <= scrape.at <= until)


def _begin(path: Path) -> datetime:
    return from_unix(float(path.name.removesuffix(_SUFFIX)))


def _packed(scrape: Scrape) -> tuple[bytes, bytes]:
    """Metadata line of a scrape, and its page unchanged."""
    text = scrape.text
    body = text or b""
    head: dict[str, Any] = {
        "target": scrape.target.name,
        "adapter": scrape.target.adapter,
        "entity": scrape.target.entity.key,
        "labels": dict(scrape.target.labels),
        "t": scrape.at.timestamp(),
        "dur": scrape.duration_seconds,
        "bytes": None if text is None else len(body),
    }
    if scrape.error is not None:
        head |= {"reason": scrape.error.reason, "error": scrape.error.message}
    if scrape.samples is not None:
        head["samples"] = scrape.samples
    if scrape.probed:
        head |= {"health": scrape.health, "load": scrape.load}
    return json.dumps(head).encode() + b"\n", body


def _heads(frame: bytes) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Metadata of each scrape of a round, with start and end of its page."""
    position = 0
    while position < len(frame):
        end = frame.index(b"\n", position)
        head = json.loads(frame[position:end])
        position = end + 1 + (head["bytes"] or 0)
        yield head, end + 1, position


def _described(frame: bytes) -> Iterator[tuple[datetime, Target]]:
    """Targets of a round. Older versions stored names only: those are skipped."""
    for head, _, _ in _heads(frame):
        if "entity" in head:
            entity = EntityRef.from_key(head["entity"])
            yield from_unix(head["t"]), Target(head["target"], head["adapter"], "", entity, head["labels"])


def _unpacked(frame: bytes, targets: Mapping[str, Target]) -> Iterator[Scrape]:
    for head, begin, end in _heads(frame):
        target = targets.get(head["target"])
        if target is not None:
            error = CollectError(head["error"], reason=head["reason"]) if "error" in head else None
            yield Scrape(
                target=target,
                at=from_unix(head["t"]),
                body=None if head["bytes"] is None else frame[begin:end],
                error=error,
                duration_seconds=head["dur"],
                health=head.get("health"),
                load=head.get("load"),
                probed="health" in head,
                samples=head.get("samples"),
            )


def _frames(path: Path) -> Iterator[bytes]:
    """The complete frames of a segment, in order."""
    try:
        rest = path.read_bytes()
    except FileNotFoundError:  # deleted meanwhile because of its age
        return
    while rest:
        reader = zstandard.ZstdDecompressor().decompressobj()
        try:
            frame = reader.decompress(rest)
        except zstandard.ZstdError:
            return
        if not reader.eof:
            return  # truncated
        yield frame
        rest = reader.unused_data


def select_targets(targets: Sequence[Target], about: Collection[Any], most: int) -> list[Target]:
    """The targets that concern some entities: all if there is room.

    Otherwise the direct ones, then those of their nodes, then those without a node.
    """
    if len(targets) <= most:
        return list(targets)
    near = {target.name: target for target in targets if target.entity in about or target.pod in about}
    nodes = {target.node for target in near.values()} - {None}
    same_node = [
        target for target in targets if target.name not in near and (target.node in about or target.node in nodes)
    ]
    without_node = [
        target for target in targets if target.name not in near and target.node is None
    ]  # of a cluster or a gateway
    return [*near.values(), *same_node, *without_node][:most]
