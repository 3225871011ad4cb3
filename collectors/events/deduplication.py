"""One fault that several doors tell: kernel log, NVML, node-problem-detector, the code and the count on a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outrider.clock import parse_rfc3339
from outrider.model import EntityRef, Event, EventKind

# An exporter looks at the driver every 30 s or less, and its page is read every 15 s; kernel clocks drift.
TOGETHER = timedelta(seconds=60)
SOURCES = "sources"
SINCE = "since"  # of a page that came after a gap: when the one before it was read
_KEPT = timedelta(minutes=30)  # a page may come so late: an exporter often hangs with its device
# Who tells most of one fault; pages, which know only the code, come last.
_DETAIL = {"kernel_log": 0, "nvml": 1, "kubernetes": 2}


@dataclass(slots=True)
class _Fault:
    """One happening: its tellings, and the event that was made of them so far (None: it is new)."""

    tellings: list[Event]
    event: Event | None = None

    @property
    def at(self) -> datetime:
        """Its instant by the telling that came first."""
        return self.tellings[0].at

    def may_be(self, event: Event) -> bool:
        """True when this telling may be about it: no door tells one fault twice, and the instants fit."""
        told = {source for telling in self.tellings for source in _sources(telling)}
        first = self.tellings[0]
        in_time = _since(first) - TOGETHER <= event.at and _since(event) - TOGETHER <= first.at
        return in_time and not told & set(_sources(event))

    def take(self, event: Event) -> None:
        """Add a telling, or put it in the place of an earlier version of it."""
        self.tellings = [one for one in self.tellings if one.id != event.id] + [event]

    def joined(self) -> Event:
        """The event of all tellings, which goes on as the first one that was handed on."""
        fullest_first = sorted(self.tellings, key=_detail)
        base = self.event or fullest_first[0]
        sources = list(dict.fromkeys(source for telling in fullest_first for source in _sources(telling)))
        attributes: dict[str, str] = {}
        for telling in reversed(fullest_first):
            attributes |= telling.attributes
        if len(sources) > 1:
            attributes |= {SOURCES: ", ".join(sources)}
            attributes.pop(SINCE, None)
        return replace(base, attributes=attributes)


class Doubles:
    """Tells each fault once.

    Two of one door are two faults, however close; each telling of another door belongs to the nearest
    fault that this door has not told yet, be it of this round or of one before.
    """

    def __init__(self) -> None:
        self._faults: dict[tuple[EntityRef, str], list[_Fault]] = {}

    def without(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """The events, with one for each fault.

        What several doors tell is joined: the fullest telling, the attributes of all, and ``sources`` names
        the doors. A telling of a later round that adds something gives the event once more, behind the others,
        with its id and all that is known by then: it counts once.
        """
        given = list(events)
        fresh: dict[int, _Fault] = {}
        known: dict[int, _Fault] = {}
        # the fullest first, so that a page's telling, dated when it was read, finds the fault it belongs to
        for place in sorted(range(len(given)), key=lambda place: (_detail(given[place]), given[place].at)):
            event = given[place]
            if event.kind is not EventKind.XID:
                continue
            fault = self._known(event)
            if fault is None:
                fault = fresh[place] = _Fault([event])
                self._faults.setdefault((event.entity, event.code), []).append(fault)
            else:
                fault.take(event)
                known[id(fault)] = fault
        told = list(_told(given, fresh))
        for fault in known.values():
            joined = fault.joined()
            if joined != fault.event:
                fault.event = joined
                told.append(joined)
        return tuple(told)

    def _known(self, event: Event) -> _Fault | None:
        key = (event.entity, event.code)
        kept = [one for one in self._faults.get(key, []) if abs(one.at - event.at) <= _KEPT]
        self._faults[key] = kept
        again = next((one for one in kept if any(telling.id == event.id for telling in one.tellings)), None)
        fitting = (one for one in kept if one.may_be(event))
        return again or min(fitting, key=lambda one: abs(one.at - event.at), default=None)


def _told(given: list[Event], fresh: dict[int, _Fault]) -> Iterator[Event]:
    """What is no fault of a device, and the new faults, in the order they came."""
    for place, event in enumerate(given):
        if event.kind is not EventKind.XID:
            yield event
        elif place in fresh:
            fault = fresh[place]
            fault.event = fault.joined()
            yield fault.event


def _detail(event: Event) -> int:
    return _DETAIL.get(event.source, 9)


def _sources(event: Event) -> list[str]:
    """The doors behind a telling, which may have been joined before."""
    return [event.source, *(one for one in event.attributes.get(SOURCES, "").split(", ") if one)]


def _since(event: Event) -> datetime:
    """The earliest instant that a telling may be about."""
    return parse_rfc3339(event.attributes[SINCE]) if SINCE in event.attributes else event.at
