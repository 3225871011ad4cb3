"""The flight recorder: scrapes as they came, written as the recorded fleet that ``recording`` reads.

Addresses, headers and token files stay out: a target is written with its name, adapter, entity and
labels, a fault with its reason. Happenings that pages tell are on the pages and are not written twice;
those of other sources go to ``events.jsonl``.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import zlib
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from collectors.events.deduplication import SOURCES
from collectors.mapping.target import Target
from collectors.recording.reader import SUFFIX
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason, UsageError
from outrider.model import Event

_PENDING_BYTES = 32 * 1024  # packed, before they go to the file
_UNSAFE = re.compile(r"[/\\\0]")
_STATUS = re.compile(r"HTTP \d{3}")
# what ``recording`` reads back as the same reason
_WORDS = {
    CollectReason.REFUSED: "connection refused",
    CollectReason.TIMEOUT: "timed out",
    CollectReason.HTTP_STATUS: "HTTP error",
    CollectReason.RESET: "connection reset",
}


class FlightRecorder:
    """Writes one folder. ``close`` it at the end, whatever happens: files are packed and whole only then."""

    def __init__(self, folder: Path, cluster: str, targets: Sequence[Target]) -> None:
        """Further targets come with their first scrape. Raises UsageError when the folder is used or unusable."""
        self.scrapes = self.events = 0
        self._events_file: io.TextIOWrapper | None = None
        self._folder, self._cluster = folder, cluster
        self._files: dict[str, _GzipAppender] = {}
        self._described: dict[str, dict[str, Any]] = {}  # by the name in the recording
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"{folder} is not empty", hint="name a new folder with --out")
            self._open(targets)
        except OSError as error:
            raise self._unwritten(error) from error

    @property
    def targets(self) -> int:
        """How many targets the recording has."""
        return len(self._described)

    def add(self, scrapes: Sequence[Scrape]) -> None:
        """Write scrapes down; those of one target in the order of time. Raises UsageError when the disk is full."""
        try:
            new = {scrape.target.name: scrape.target for scrape in scrapes if scrape.target.name not in self._files}
            if new:
                self._open(new.values())
            for scrape in scrapes:
                self._files[scrape.target.name].write(json.dumps(_line(scrape), ensure_ascii=False) + "\n")
                self.scrapes += 1
        except OSError as error:
            raise self._unwritten(error) from error

    def _open(self, targets: Iterable[Target]) -> None:
        """A file for each of these targets, and the list of targets anew."""
        for target in targets:
            name = _file_name(target.name, self._described)
            self._described[name] = _described(target, name, self._cluster)
            self._files[target.name] = _GzipAppender(self._folder / f"{name}{SUFFIX}")
        written = {"cluster": self._cluster, "targets": list(self._described.values())}
        text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True)
        (self._folder / "targets.yaml").write_text(text, encoding="utf-8")

    def add_events(self, events: Iterable[Event]) -> None:
        """Write events down; the file comes with the first one. Raises UsageError as ``add`` does."""
        try:
            for event in events:
                if self._events_file is None:
                    self._events_file = (self._folder / "events.jsonl").open("w", encoding="utf-8")
                self._events_file.write(json.dumps(_told(event), ensure_ascii=False) + "\n")
                self.events += 1
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Finish every file. Raises UsageError when one of them could not be finished; the others are."""
        failed: OSError | None = None
        for file in (self._events_file, *self._files.values()):
            try:
                if file is not None:
                    file.close()
            except OSError as error:
                failed = error
        self._events_file = None
        self._files.clear()
        if failed is not None:
            raise self._unwritten(failed) from failed

    def _unwritten(self, error: OSError) -> UsageError:
        return UsageError(f"{self._folder} cannot be written: {error.strerror}", hint="name another folder with --out")


class _GzipAppender:
    """A gzip file that is open only while something is put at its end: a fleet has more targets than files may be."""

    def __init__(self, path: Path) -> None:
        self._path, self._waiting = path, bytearray()
        self._pack = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        path.touch()

    def write(self, text: str) -> None:
        self._waiting += self._pack.compress(text.encode())
        if len(self._waiting) >= _PENDING_BYTES:
            self._append()

    def close(self) -> None:
        self._waiting += self._pack.flush()
        self._append()

    def _append(self) -> None:
        with self._path.open("ab") as file:
            file.write(self._waiting)
        self._waiting.clear()


def _file_name(name: str, taken: Container[str]) -> str:
    """A target's name as that of a file: a Prometheus' targets are called ``job/host:port``."""
    plain = _UNSAFE.sub("_", name).lstrip(".") or "target"
    names = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
    return next(one for one in names if one not in taken)


def _described(target: Target, name: str, cluster: str) -> dict[str, Any]:
    entity = {"kind": target.entity.kind.value, "namespace": target.entity.namespace, "name": target.entity.name}
    if target.entity.cluster != cluster:
        entity["cluster"] = target.entity.cluster
    return {
        "name": name,
        "adapter": target.adapter,
        "entity": {key: value for key, value in entity.items() if value is not None},
        "labels": dict(target.labels),
    }


def _line(scrape: Scrape) -> dict[str, Any]:
    line: dict[str, Any] = {"t": scrape.at.timestamp(), "dur": round(scrape.duration_seconds, 6)}
    text = scrape.text
    if text is not None:
        line["text"] = text.decode("utf-8", errors="replace")
    else:
        line["error"] = _fault(scrape.error)
    if scrape.samples is not None:
        line["samples"] = scrape.samples
    return line | ({"health": scrape.health, "load": scrape.load} if scrape.probed else {})


def _told(event: Event) -> dict[str, Any]:
    entity = {"cluster": event.entity.cluster, "kind": event.entity.kind.value, "name": event.entity.name}
    return {
        "at": event.at.timestamp(),
        "kind": event.kind.value,
        "entity": {**entity, "namespace": event.entity.namespace},
        "code": event.code,
        "source": event.source,
        # each door tells anew when the recording is replayed
        "attributes": {name: said for name, said in event.attributes.items() if name != SOURCES},
    }


def _fault(error: CollectError | None) -> str:
    """A fault without the address it names, which may hold a password."""
    if error is None:
        return "no page"
    status = _STATUS.search(error.message) if error.reason == CollectReason.HTTP_STATUS else None
    return status.group() if status else _WORDS.get(error.reason, error.reason)
