"""Fault codes of a page as events: a gauge that changes, or a count that grows.

Fault codes are vendor-specific, and the event's code includes the vendor: ``79`` is an NVIDIA XID,
``ascend:40F84E00`` a DCMI fault code (hexadecimal, as in Huawei's list), ``afid:24`` an AMD code.
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
    """Tracks the codes of one target.

    The first reading of a device is a baseline, not an event: after a restart of the collector or the exporter, a
    sticky gauge still shows an old code. A repeated code is invisible in a gauge; a count per code shows it, with one
    event per increment. A device may show several codes at once, each in its own series. A code that appears is an
    event, a code that disappears is not.
    """

    def __init__(self) -> None:
        self._codes: dict[EntityRef, frozenset[str]] = {}
        self._counts: dict[_Code, float] = {}
        self._present: set[EntityRef] = set()
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
        """Returns the events since the last page. A code shown both as gauge and as count is one event.

        ``since`` is the time of the last page, if that is long ago: an event may have happened at any time since.
        """
        events: dict[str, Event] = {}
        gap = {} if since is None or at - since <= SAME_FAULT_WINDOW else {SINCE: rfc3339(since)}
        shown: dict[EntityRef, dict[str, FaultCodeRow]] = {}
        counts: dict[_Code, float] = {}
        counted: dict[_Code, FaultCodeRow] = {}
        for watch in watches:
            entity, value = bind(watch.place), float(page.values[watch.row])
            if not np.isfinite(value):
                continue
            if watch.code is None:
                codes = shown.setdefault(entity, {})
                if value:
                    codes[_code_of(page.layout.series[watch.row].name, value)] = watch
            else:
                counts[entity, watch.code] = counts.get((entity, watch.code), 0.0) + value
                counted[entity, watch.code] = watch
        for entity, codes in shown.items():
            before = self._codes.get(entity)
            if before is not None or (entity in self._present and _is_transient(codes)):
                for code in (code for code in codes if code not in (before or ())):
                    _add(events, entity, code, 0, {**codes[code].attributes, **gap}, at, source)
        for (entity, code), value in counts.items():
            if entity in self._present:
                grown = round(value - self._counts.get((entity, code), 0.0))
                for number in range(min(max(grown, 0), _MOST_AT_ONCE)):
                    _add(events, entity, code, number, {**counted[entity, code].attributes, **gap}, at, source)
        self._codes.update({entity: frozenset(codes) for entity, codes in shown.items()})
        self._shown = set(shown)
        if counts:  # an exporter with counts prints 0 for a device without codes
            self._counts = counts
        return tuple(events.values())

    def mark_present(self, entities: Sequence[EntityRef]) -> None:
        """Records the devices on the page: a later count of theirs is new.

        A device without a code has none, if codes are on the page only while they last.
        """
        self._present = set(entities)
        for entity in (self._codes.keys() & self._present) - self._shown:
            if _is_transient(self._codes[entity]):
                self._codes[entity] = frozenset()


def _code_of(name: str, value: float) -> str:
    if name.startswith(_ASCEND):
        return f"ascend:{int(value):X}" if value.is_integer() and 0 < value < 2**53 else f"ascend:{value:g}"
    return f"afid:{value:g}" if name.endswith(_AFID) else f"{value:g}"


def _is_transient(codes: Iterable[str]) -> bool:
    """True for codes that are on a page only while their fault lasts: a healthy device shows none."""
    return any(code.startswith(("ascend:", "afid:")) for code in codes)


def _add(
    events: dict[str, Event],
    entity: EntityRef,
    code: str,
    number: int,
    attributes: dict[str, str],
    at: datetime,
    source: str,
) -> None:
    key = f"{EventKind.XID}/{entity.key}/{code}/{rfc3339(at)}/{number}"
    identity = hashlib.sha256(key.encode()).hexdigest()[:24]
    events.setdefault(key, Event(identity, EventKind.XID, entity, at, source, code, attributes, key))
