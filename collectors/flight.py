"""The flight recorder: scrapes as they came, written as the recorded fleet that ``recording`` reads.

Addresses, headers and token files stay out: a target is written with its name, adapter, entity and
labels, a fault with its reason. Happenings that pages tell are on the pages and are not written twice;
those of other sources go to ``events.jsonl``.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from collectors.doubles import SOURCES
from collectors.recording import SUFFIX
from collectors.scraped import Scrape
from collectors.targets import Target
from outrider.errors import CollectError, CollectReason, UsageError
from outrider.model import Event

_SAFE_NAME = re.compile(r"[^/\\\0]+")
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
        """Raises UsageError when the folder holds something, cannot be written, or a name is no file name."""
        self.scrapes = self.events = 0
        self._events_file: io.TextIOWrapper | None = None
        self._folder = folder
        self._files: dict[str, io.TextIOWrapper] = {}
        for target in targets:
            if not _SAFE_NAME.fullmatch(target.name) or target.name in {".", ".."}:
                raise UsageError(
                    f"the target name {target.name!r} cannot be a file name", hint="rename it in collect.targets"
                )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"{folder} is not empty", hint="name a new folder with --out")
            written = {"cluster": cluster, "targets": [_described(target) for target in targets]}
            text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True)
            (folder / "targets.yaml").write_text(text, encoding="utf-8")
            for target in targets:
                self._files[target.name] = _opened(folder / f"{target.name}{SUFFIX}")
        except OSError as error:
            self.close()
            raise UsageError(
                f"{folder} cannot be written: {error.strerror}", hint="name another folder with --out"
            ) from error

    def add(self, scrapes: Iterable[Scrape]) -> None:
        """Write scrapes down; those of one target in the order of time."""
        for scrape in scrapes:
            self._files[scrape.target.name].write(json.dumps(_line(scrape), ensure_ascii=False) + "\n")
            self.scrapes += 1

    def add_events(self, events: Iterable[Event]) -> None:
        """Write events down; the file comes with the first one."""
        for event in events:
            if self._events_file is None:
                self._events_file = (self._folder / "events.jsonl").open("w", encoding="utf-8")
            self._events_file.write(json.dumps(_told(event), ensure_ascii=False) + "\n")
            self.events += 1

    def close(self) -> None:
        """Finish every file."""
        if self._events_file is not None:
            self._events_file.close()
            self._events_file = None
        for file in self._files.values():
            file.close()
        self._files.clear()


def _opened(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(gzip.open(path, "wb", compresslevel=6), encoding="utf-8")


def _described(target: Target) -> dict[str, Any]:
    entity = {"kind": target.entity.kind.value, "namespace": target.entity.namespace, "name": target.entity.name}
    return {
        "name": target.name,
        "adapter": target.adapter,
        "entity": {key: value for key, value in entity.items() if value is not None},
        "labels": dict(target.labels),
    }


def _line(scrape: Scrape) -> dict[str, Any]:
    line: dict[str, Any] = {"t": scrape.at.timestamp(), "dur": round(scrape.duration_seconds, 6)}
    if scrape.body is not None:
        line["text"] = scrape.body.decode("utf-8", errors="replace")
    else:
        line["error"] = _fault(scrape.error)
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
