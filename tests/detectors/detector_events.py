"""Events as the doors hand them in, for tests of detectors that read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from outrider.model import EntityRef, Event, EventKind

START = datetime.fromtimestamp(1_800_000_000.0, tz=UTC)


def said(
    entity: EntityRef, code: str, after: float, text: str = "", kind: EventKind = EventKind.KUBERNETES, **more: str
):
    """An event so many seconds after the begin of the windows that ``conftest`` makes."""
    name = f"{entity.key}/{code}/{after}"
    return Event(name, kind, entity, START + timedelta(seconds=after), "test", code, {"text": text, **more}, name)


def logged(entity: EntityRef, code: str, after: float, text: str = "", **more: str):
    """The same for a line of a log."""
    return said(entity, code, after, text, EventKind.LOG, **more)
