"""Log lines of model servers as events: matched, counted, deduplicated per burst, redacted.

The Kubernetes API, Loki and OTLP share the table (``engine_log.yaml``), the bursts and the redaction. Lines about
the start of a server go to ``marks`` instead.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from collectors.events.redact import redacted
from collectors.events.unresolved_event import FIRST_LOOK, MOST_TEXT, UnresolvedEvent
from collectors.kubernetes.startup_log import Mark, mark_of
from collectors.logs.patterns import packaged
from outrider.model import EntityKind, EntityRef, EventKind

TABLE = "engine_log"
# One failure repeats its lines in every worker and for every request in flight.
SAME_BURST = timedelta(seconds=60)
MOST_MARKS = 10_000  # waiting to be fetched
MOST_ORIGINS = 50_000  # with remembered bursts


@dataclass(frozen=True, slots=True)
class Origin:
    """Writer of a line. ``entity`` is the pod, or the service or node if no pod is known; ``uid`` its identity."""

    entity: EntityRef
    uid: str
    container: str = ""


@dataclass(slots=True)
class _Burst:
    """One code of one origin: its newest line, and the number of unreported lines of the burst."""

    newest: datetime
    unreported: int = 0


@runtime_checkable
class LogReader(Protocol):
    """An event source that reads log lines."""

    @property
    def lines(self) -> LogMatcher:
        """The matcher of its lines."""
        ...


@dataclass(slots=True)
class LogMatcher:
    """Matches the lines of one source. ``counts`` are all matching lines by code, reported or not."""

    source: str
    counts: Counter[str] = field(default_factory=Counter)
    marks: deque[tuple[str, str, Mark]] = field(default_factory=lambda: deque(maxlen=MOST_MARKS))
    _bursts: dict[tuple[str, str], _Burst] = field(default_factory=dict)

    def take(self, origin: Origin, when: datetime | None, line: str, at: datetime) -> Iterator[UnresolvedEvent]:
        """Yields the event of a line, if any. ``at`` dates lines without a timestamp."""
        moment = at if when is None else when
        mark = mark_of(line, moment)
        if mark is not None:
            if origin.entity.kind is EntityKind.POD:
                self.marks.append((origin.entity.namespace or "", origin.entity.name, mark))
            return
        match = packaged(TABLE).find(line)
        if match is None:
            return
        code, attributes = match
        self.counts[code] += 1
        burst = self._bursts.get((origin.uid, code))
        is_new = burst is None or abs(moment - burst.newest) >= SAME_BURST
        if moment < at - FIRST_LOOK or not is_new:
            self._note(origin, code, moment, burst, unreported=moment >= at - FIRST_LOOK)
            return
        before = 0 if burst is None else burst.unreported
        self._bursts[origin.uid, code] = _Burst(moment)
        words = {name: redacted(value) for name, value in attributes.items()}
        words |= {"text": redacted(line.strip())[:MOST_TEXT], "container": origin.container}
        words["pod"] = origin.entity.name if origin.entity.kind is EntityKind.POD else ""
        words["lines_before"] = str(before) if before else ""
        identity = hashlib.sha256(f"{moment.isoformat()}{line}".encode(errors="replace")).hexdigest()[:16]
        yield UnresolvedEvent(
            kind=EventKind.LOG,
            code=code,
            at=min(moment, at),
            source=self.source,
            key=f"{TABLE}/{origin.entity.key}/{code}/{identity}",  # one line from two sources is one event
            entity=origin.entity,
            attributes={name: value for name, value in words.items() if value},
            aim=EntityKind.REPLICA if origin.entity.kind is EntityKind.POD else None,
        )

    def _note(self, origin: Origin, code: str, moment: datetime, burst: _Burst | None, *, unreported: bool) -> None:
        if burst is None:
            self._bursts[origin.uid, code] = _Burst(moment)
        else:
            burst.newest, burst.unreported = moment, burst.unreported + unreported
        while len(self._bursts) > MOST_ORIGINS:
            del self._bursts[next(iter(self._bursts))]

    def drain_marks(self) -> list[tuple[str, str, Mark]]:
        """(namespace, pod, mark) of lines about start-ups since the last call."""
        marks = list(self.marks)
        self.marks.clear()
        return marks
