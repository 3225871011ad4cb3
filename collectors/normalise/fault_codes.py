"""Fault codes on a page to events: a gauge that changes, or a count that grows.

Vendors number their faults each in their own way, and an event's code says whose it is: ``79`` is an XID of
NVIDIA's, ``ascend:40F84E00`` a DCMI fault code (hexadecimal, as Huawei lists it), ``afid:24`` one of AMD's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import numpy as np

from collectors.events.deduplication import SAME_FAULT_WINDOW, SINCE
from collectors.exposition.parser import Page
from collectors.mapping.entity_binding import FaultCodeRow, UnboundEntity
from outrider.clock import rfc3339
from outrider.model import EntityRef, Event, EventKind

_MOST_AT_ONCE = 20
_ASCEND, _AFID = "npu_chip_info_error_code", "gpu_afid_errors"
_Code = tuple[EntityRef, str]


class FaultCodeTracker:
    """Remembers the codes of one target.

    The first sight of a device is a baseline and no event: after a restart of ours, or of the
    exporter, a sticky gauge still shows an old code. The same code twice is invisible in a gauge; a
    count per code shows it, one event an increment. A device may show several codes at once, each in a
    series of its own; one that joins the others is an event, one that leaves them is none.
    """

    def __init__(self) -> None:
        self._codes: dict[EntityRef, frozenset[str]] = {}
        self._counts: dict[_Code, float] = {}
        self._seen: set[EntityRef] = set()
        self._shown: set[EntityRef] = set()

    def new_events(
        self,
        watches: Sequence[FaultCodeRow],
        page: Page,
        bind: Callable[[UnboundEntity], EntityRef],
        at: datetime,
        source: str,
        since: datetime | None = None,
    ) -> tuple[Event, ...]:
        """Events since the last page. A code seen both ways at once is one event.

        ``since`` is when the last page was read, where that is long ago: an event is about some instant since.
        """
        found: dict[str, Event] = {}
        gap = {} if since is None or at - since <= SAME_FAULT_WINDOW else {SINCE: rfc3339(since)}
        shown: dict[EntityRef, dict[str, FaultCodeRow]] = {}
        counts: dict[_Code, float] = {}
        counted: dict[_Code, FaultCodeRow] = {}
        for watch in watches:
            entity, value = bind(watch.place), float(page.values[watch.row])
            if not np.isfinite(value):
                continue
            if watch.code is None:
                known = shown.setdefault(entity, {})
                if value:
                    known[_spelled(page.layout.series[watch.row].name, value)] = watch
            else:
                counts[entity, watch.code] = counts.get((entity, watch.code), 0.0) + value
                counted[entity, watch.code] = watch
        for entity, codes in shown.items():
            before = self._codes.get(entity)
            if before is not None or (entity in self._seen and _lasts_with_its_fault(codes)):
                for code in (one for one in codes if one not in (before or ())):
                    _add(found, entity, code, 0, {**codes[code].attributes, **gap}, at, source)
        for (entity, code), value in counts.items():
            if entity in self._seen:
                grown = round(value - self._counts.get((entity, code), 0.0))
                for number in range(min(max(grown, 0), _MOST_AT_ONCE)):
                    _add(found, entity, code, number, {**counted[entity, code].attributes, **gap}, at, source)
        self._codes.update({entity: frozenset(codes) for entity, codes in shown.items()})
        self._shown = set(shown)
        if counts:  # an exporter that counts prints a 0 for a device without codes
            self._counts = counts
        return tuple(found.values())

    def mark_present(self, entities: Sequence[EntityRef]) -> None:
        """These devices were on the page: from now on a new count of theirs is news.

        One that shows no code any more has none, where codes are on the page only while they last.
        """
        self._seen = set(entities)
        for entity in (self._codes.keys() & self._seen) - self._shown:
            if _lasts_with_its_fault(self._codes[entity]):
                self._codes[entity] = frozenset()


def _spelled(name: str, value: float) -> str:
    if name.startswith(_ASCEND):
        return f"ascend:{int(value):X}" if value.is_integer() and 0 < value < 2**53 else f"ascend:{value:g}"
    return f"afid:{value:g}" if name.endswith(_AFID) else f"{value:g}"


def _lasts_with_its_fault(codes: Iterable[str]) -> bool:
    """True for codes that are on a page only as long as their fault lasts: a healthy device shows none."""
    return any(code.startswith(("ascend:", "afid:")) for code in codes)


def _add(
    found: dict[str, Event],
    entity: EntityRef,
    code: str,
    number: int,
    attributes: dict[str, str],
    at: datetime,
    source: str,
) -> None:
    key = f"{EventKind.XID}/{entity.key}/{code}/{rfc3339(at)}/{number}"
    identity = hashlib.sha256(key.encode()).hexdigest()[:24]
    found.setdefault(key, Event(identity, EventKind.XID, entity, at, source, code, attributes, key))
