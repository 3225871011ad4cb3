"""One fault that several doors tell: kernel log, NVML, node-problem-detector, the code and the count on a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from outrider.model import EntityRef, Event, EventKind

# An exporter looks at the driver every 30 s or less, and its page is read every 15 s; kernel clocks drift.
TOGETHER = timedelta(seconds=60)
SOURCES = "sources"
# Who tells most of one fault; pages, which know only the code, come last.
_DETAIL = {"kernel_log": 0, "nvml": 1, "kubernetes": 2}


@dataclass(slots=True)
class _Fault:
    """One happening. ``event`` and ``others`` are its tellings of this round, the first one the fullest."""

    at: datetime
    sources: list[str]
    event: Event | None = None
    others: list[Event] = field(default_factory=list)


class Doubles:
    """Tells each fault once.

    Two of one door are two faults, however close; each telling of another door belongs to the nearest
    fault that this door has not told yet.
    """

    def __init__(self) -> None:
        self._faults: dict[tuple[EntityRef, str], list[_Fault]] = {}

    def without(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """The events, with one for each fault.

        What several doors tell in the same round is joined: the fullest telling, the attributes of all, and
        ``sources`` names the doors. A telling that comes in a later round adds nothing: the fault is known.
        """
        given = list(events)
        fresh: dict[int, _Fault] = {}
        # the fullest first, so that a page's telling, dated when it was read, finds the fault it belongs to
        order = sorted(range(len(given)), key=lambda place: (_DETAIL.get(given[place].source, 9), given[place].at))
        for place in order:
            event = given[place]
            if event.kind is not EventKind.XID:
                continue
            fault = self._known(event)
            if fault is None:
                fault = fresh[place] = _Fault(event.at, [event.source], event)
                self._faults.setdefault((event.entity, event.code), []).append(fault)
            else:
                fault.sources.append(event.source)
                fault.others.append(event)
        told = tuple(
            event if event.kind is not EventKind.XID else _joined(fresh[place])
            for place, event in enumerate(given)
            if event.kind is not EventKind.XID or place in fresh
        )
        for fault in fresh.values():
            fault.event, fault.others = None, []
        return told

    def _known(self, event: Event) -> _Fault | None:
        key = (event.entity, event.code)
        near = [one for one in self._faults.get(key, []) if abs(one.at - event.at) <= TOGETHER]
        if near:
            self._faults[key] = near
        else:
            self._faults.pop(key, None)
        open_ones = [one for one in near if event.source not in one.sources]
        return min(open_ones, key=lambda one: abs(one.at - event.at), default=None)


def _joined(fault: _Fault) -> Event:
    event = fault.event
    assert event is not None
    if not fault.others:
        return event
    attributes: dict[str, str] = {}
    for other in reversed(fault.others):
        attributes |= other.attributes
    attributes |= {**event.attributes, SOURCES: ", ".join(dict.fromkeys(fault.sources))}
    return replace(event, attributes=attributes)
