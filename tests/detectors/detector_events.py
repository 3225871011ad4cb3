"""Events as the collectors deliver them, for tests of detectors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from outrider.model import EntityRef, Event, EventKind

START = datetime.fromtimestamp(1_800_000_000.0, tz=UTC)


def event_at(
    entity: EntityRef, code: str, after: float, text: str = "", kind: EventKind = EventKind.KUBERNETES, **more: str
):
    """An event ``after`` seconds past the start of the windows of ``conftest``."""
    name = f"{entity.key}/{code}/{after}"
    return Event(name, kind, entity, START + timedelta(seconds=after), "test", code, {"text": text, **more}, name)


def log_event(entity: EntityRef, code: str, after: float, text: str = "", **more: str):
    """The same for a log line."""
    return event_at(entity, code, after, text, EventKind.LOG, **more)
