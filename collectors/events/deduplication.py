"""Deduplication of events: one reading per key, one event per device fault.

Several sources report one fault: kernel log, NVML, node-problem-detector, the code and the count on a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from outrider.clock import parse_rfc3339
from outrider.model import EntityRef, Event, EventKind

# An exporter polls the driver at least every 30 s, and its page is scraped every 15 s; kernel clocks drift.
SAME_FAULT_WINDOW = timedelta(seconds=60)
KEYS_REMEMBERED = timedelta(hours=2)
SOURCES = "sources"
SINCE = "since"  # of a page that was read after a gap: time of the previous page
_FAULT_RETENTION = timedelta(minutes=30)  # a page may come that late: an exporter often hangs with its device
# Rank of detail in a report; pages, which know only the code, come last.
_DETAIL = {"kernel_log": 0, "nvml": 1, "kubernetes": 2}


class KeyedReading(Protocol):
    """A reading that its source identifies by a key."""

    @property
    def key(self) -> str:
        """Equal for two readings of the same event."""
        ...


_KeyedReadingT = TypeVar("_KeyedReadingT", bound=KeyedReading)


@dataclass(slots=True)
class _Fault:
    """One fault: its reports, and the event that was last emitted for it (None: new)."""

    reports: list[Event]
    event: Event | None = None

    @property
    def at(self) -> datetime:
        """Time of the first report."""
        return self.reports[0].at

    def matches(self, event: Event) -> bool:
        """True if a report may be about this fault: its source has not reported it yet, and the times fit."""
        reported = {source for report in self.reports for source in _sources(report)}
        first = self.reports[0]
        in_time = _since(first) - SAME_FAULT_WINDOW <= event.at and _since(event) - SAME_FAULT_WINDOW <= first.at
        return in_time and not reported & set(_sources(event))

    def add(self, event: Event) -> None:
        """Adds a report, or replaces an earlier version of it."""
        self.reports = [report for report in self.reports if report.id != event.id] + [event]

    def merged(self) -> Event:
        """The event of all reports, with the identity of the event emitted first."""
        most_detailed_first = sorted(self.reports, key=_detail)
        base = self.event or most_detailed_first[0]
        sources = list(dict.fromkeys(source for report in most_detailed_first for source in _sources(report)))
        attributes: dict[str, str] = {}
        for report in reversed(most_detailed_first):
            attributes |= report.attributes
        if len(sources) > 1:
            attributes |= {SOURCES: ", ".join(sources)}
            attributes.pop(SINCE, None)
        return replace(base, attributes=attributes)


class EventDeduplicator:
    """Deduplicates readings by key, and reports of one device fault by several sources.

    Two reports of one source are two faults, however close. A report of another source belongs to the nearest
    fault that this source has not reported yet, of this round or an earlier one.
    """

    def __init__(self) -> None:
        self._faults: dict[tuple[EntityRef, str], list[_Fault]] = {}
        self._keys: dict[str, datetime] = {}

    def copy(self) -> EventDeduplicator:
        """Returns a copy that can be used without effect on this one."""
        other = EventDeduplicator()
        other._keys = dict(self._keys)
        other._faults = {
            key: [_Fault(list(fault.reports), fault.event) for fault in faults] for key, faults in self._faults.items()
        }
        return other

    def new_readings(self, readings: Sequence[_KeyedReadingT], at: datetime) -> list[_KeyedReadingT]:
        """Returns the readings whose key was not returned before; of several with one key the last."""
        fresh = {reading.key: reading for reading in readings if reading.key not in self._keys}
        if fresh:
            self._keys = {key: when for key, when in self._keys.items() if when > at - KEYS_REMEMBERED}
            self._keys.update(dict.fromkeys(fresh, at))
        return list(fresh.values())

    def deduplicate(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Returns the events, with one for each fault.

        Reports of several sources are merged: the most detailed one, the attributes of all, and the attribute
        ``sources``. If a report of a later round adds something, the event is returned again behind the others,
        with the same id and all attributes known by then: it counts once.
        """
        reports = list(events)
        fresh: dict[int, _Fault] = {}
        known: dict[int, _Fault] = {}
        # most detailed first, so that a page's report, dated when it was read, finds the fault it belongs to
        for index in sorted(range(len(reports)), key=lambda index: (_detail(reports[index]), reports[index].at)):
            event = reports[index]
            if event.kind is not EventKind.XID:
                continue
            fault = self._known_fault(event)
            if fault is None:
                fault = fresh[index] = _Fault([event])
                self._faults.setdefault((event.entity, event.code), []).append(fault)
            else:
                fault.add(event)
                known[id(fault)] = fault
        emitted = list(_new_events(reports, fresh))
        for fault in known.values():
            merged = fault.merged()
            if merged != fault.event:
                fault.event = merged
                emitted.append(merged)
        return tuple(emitted)

    def _known_fault(self, event: Event) -> _Fault | None:
        key = (event.entity, event.code)
        recent = [fault for fault in self._faults.get(key, []) if abs(fault.at - event.at) <= _FAULT_RETENTION]
        self._faults[key] = recent
        same = next((fault for fault in recent if any(report.id == event.id for report in fault.reports)), None)
        matching = (fault for fault in recent if fault.matches(event))
        return same or min(matching, key=lambda fault: abs(fault.at - event.at), default=None)


def _new_events(reports: list[Event], fresh: dict[int, _Fault]) -> Iterator[Event]:
    """Events other than device faults, and the new faults, in the order of the reports."""
    for index, event in enumerate(reports):
        if event.kind is not EventKind.XID:
            yield event
        elif index in fresh:
            fault = fresh[index]
            fault.event = fault.merged()
            yield fault.event


def _detail(event: Event) -> int:
    return _DETAIL.get(event.source, 9)


def _sources(event: Event) -> list[str]:
    """The sources of a report, which may itself have been merged before."""
    return [event.source, *(source for source in event.attributes.get(SOURCES, "").split(", ") if source)]


def _since(event: Event) -> datetime:
    """The earliest time that a report may be about."""
    return parse_rfc3339(event.attributes[SINCE]) if SINCE in event.attributes else event.at
