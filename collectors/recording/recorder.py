"""The flight recorder: writes scrapes unchanged as a recorded fleet, which ``reader`` reads.

Addresses, headers and token files are not written: a target is written with name, adapter, entity and labels, an
error with its reason. Events from pages are on the pages and are not written twice; events of other sources go to
``events.jsonl``.
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

_PENDING_BYTES = 32 * 1024  # compressed, before they are written to the file
_UNSAFE = re.compile(r"[/\\\0]")
_STATUS = re.compile(r"HTTP \d{3}")
# statuses that ``reader`` maps back to the same reason
_WORDS = {
    CollectReason.REFUSED: "connection refused",
    CollectReason.TIMEOUT: "timed out",
    CollectReason.HTTP_STATUS: "HTTP error",
    CollectReason.RESET: "connection reset",
}


class FlightRecorder:
    """Writes one folder. Always call ``close`` at the end: only then the files are compressed and complete."""

    def __init__(self, folder: Path, cluster: str, targets: Sequence[Target]) -> None:
        """Further targets are added with their first scrape. Raises UsageError if the folder is in use or unusable."""
        self.scrapes = self.events = 0
        self._events_file: io.TextIOWrapper | None = None
        self._folder, self._cluster = folder, cluster
        self._files: dict[str, _GzipAppender] = {}
        self._target_record: dict[str, dict[str, Any]] = {}  # by name in the recording
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"{folder} is not empty", hint="set a new folder with --out")
            self._open(targets)
        except OSError as error:
            raise self._unwritten(error) from error

    @property
    def targets(self) -> int:
        """Number of targets in the recording."""
        return len(self._target_record)

    def add(self, scrapes: Sequence[Scrape]) -> None:
        """Writes scrapes; those of one target must be in time order. Raises UsageError if the disk is full."""
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
        """Creates a file for each of these targets, and rewrites the list of targets."""
        for target in targets:
            name = _file_name(target.name, self._target_record)
            self._target_record[name] = _target_record(target, name, self._cluster)
            self._files[target.name] = _GzipAppender(self._folder / f"{name}{SUFFIX}")
        written = {"cluster": self._cluster, "targets": list(self._target_record.values())}
        text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True)
        (self._folder / "targets.yaml").write_text(text, encoding="utf-8")

    def add_events(self, events: Iterable[Event]) -> None:
        """Writes events; the file is created with the first one. Raises UsageError as ``add`` does."""
        try:
            for event in events:
                if self._events_file is None:
                    self._events_file = (self._folder / "events.jsonl").open("w", encoding="utf-8")
                self._events_file.write(json.dumps(_event_record(event), ensure_ascii=False) + "\n")
                self.events += 1
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Completes every file. Raises UsageError if one of them failed; the others are complete."""
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
        return UsageError(f"cannot write {self._folder}: {error.strerror}", hint="set another folder with --out")


class _GzipAppender:
    """A gzip file that is open only while appending: a fleet has more targets than a process may open files."""

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
    """File name of a target: a Prometheus' targets are called ``job/host:port``."""
    plain = _UNSAFE.sub("_", name).lstrip(".") or "target"
    names = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if candidate not in taken)


def _target_record(target: Target, name: str, cluster: str) -> dict[str, Any]:
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
        line["error"] = _error_text(scrape.error)
    if scrape.samples is not None:
        line["samples"] = scrape.samples
    return line | ({"health": scrape.health, "load": scrape.load} if scrape.probed else {})


def _event_record(event: Event) -> dict[str, Any]:
    entity = {"cluster": event.entity.cluster, "kind": event.entity.kind.value, "name": event.entity.name}
    return {
        "at": event.at.timestamp(),
        "kind": event.kind.value,
        "entity": {**entity, "namespace": event.entity.namespace},
        "code": event.code,
        "source": event.source,
        # each source reports again when the recording is replayed
        "attributes": {name: value for name, value in event.attributes.items() if name != SOURCES},
    }


def _error_text(error: CollectError | None) -> str:
    """An error without its address, which may contain a password."""
    if error is None:
        return "no page"
    status = _STATUS.search(error.message) if error.reason == CollectReason.HTTP_STATUS else None
    return status.group() if status else _WORDS.get(error.reason, error.reason)
