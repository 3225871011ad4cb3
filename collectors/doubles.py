"""One XID that two doors tell: the driver's line in the kernel log, and the code on an exporter's page."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from outrider.model import EntityRef, Event, EventKind

# An exporter looks at the driver every 30 s or less, and its page is read every 15 s.
TOGETHER = timedelta(seconds=60)


class Doubles:
    """Keeps the first telling of each XID. Two of one door are two events, however close."""

    def __init__(self) -> None:
        self._alone: dict[tuple[EntityRef, str], list[tuple[datetime, str]]] = {}

    def without(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """The events, without an XID that another source has told within a minute."""
        return tuple(event for event in events if event.kind is not EventKind.XID or self._is_news(event))

    def _is_news(self, event: Event) -> bool:
        key = (event.entity, event.code)
        known = [one for one in self._alone.get(key, []) if abs(one[0] - event.at) <= TOGETHER]
        twin = next((one for one in known if one[1] != event.source), None)
        if twin is not None:
            known.remove(twin)  # each telling stands for one of the other door
        else:
            known.append((event.at, event.source))
        self._alone[key] = known
        if not known:
            del self._alone[key]
        return twin is None
