"""Journal of a fleet: kernel-log and engine-log lines, Kubernetes events, changes.

The fleet's logs and its Kubernetes view are written from the journal. It never contains the ground truth of a fault:
only lines that the driver, the kernel, the engine, the kubelet or a deployment would write.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from outrider.clock import from_unix
from outrider.model import EntityKind, EntityRef, Event, EventKind

MOST_KEPT = 20_000


class JournalSource(StrEnum):
    """Source of a line."""

    KERNEL = "kernel"  # the node's kernel log: XID lines, OOM kills, link changes
    ENGINE = "engine"  # the log of a model server's container
    KUBERNETES = "kubernetes"  # an Event object of the API server
    CHANGE = "change"  # a rollout, a flag change, a new driver, a scale order


_KIND = {
    JournalSource.KERNEL: EventKind.LOG,
    JournalSource.ENGINE: EventKind.LOG,
    JournalSource.KUBERNETES: EventKind.KUBERNETES,
    JournalSource.CHANGE: EventKind.CHANGE,
}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line. ``at`` is unix seconds; ``code`` a short word (``xid``, ``OOMKilling``, ``rollout``)."""

    number: int
    at: float
    source: JournalSource
    entity: EntityRef
    code: str
    text: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def event(self) -> Event:
        """The line as a platform event. An XID has its own event kind, with its number as code.

        A log belongs to a pod; engine lines belong to the replica, which has the same name.
        """
        xid = self.attributes.get("xid")
        kind = EventKind.XID if xid else _KIND[self.source]
        entity = self.entity
        if self.source is JournalSource.ENGINE and entity.kind is EntityKind.POD:
            entity = replace(entity, kind=EntityKind.REPLICA)
        key = f"{self.entity.cluster}:{self.source.value}:{self.number}"
        return Event(
            id=key,
            kind=kind,
            entity=entity,
            at=from_unix(self.at),
            source=self.source.value,
            code=xid or self.code,
            attributes={**self.attributes, "text": self.text},
            dedup_key=key,
        )


class Journal:
    """Entries in time order; the oldest are dropped beyond ``MOST_KEPT``."""

    def __init__(self) -> None:
        self._lines: list[JournalEntry] = []
        self._next = 1

    def write(
        self, at: float, source: JournalSource, entity: EntityRef, code: str, text: str, **attributes: str
    ) -> JournalEntry:
        """Writes a line. Numbers rise by one and are never reused."""
        line = JournalEntry(self._next, at, source, entity, code, text, attributes)
        self._next += 1
        self._lines.append(line)
        if len(self._lines) > MOST_KEPT:
            del self._lines[: MOST_KEPT // 10]
        return line

    def after(self, number: int = 0) -> tuple[JournalEntry, ...]:
        """Returns all entries with a higher number, oldest first."""
        place = bisect_right(self._lines, number, key=lambda line: line.number)
        return tuple(self._lines[place:])

    @property
    def newest(self) -> int:
        """The number of the last line, 0 if there is none."""
        return self._next - 1
