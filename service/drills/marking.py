"""Messages during a drill say so: nobody shall run for a fault that was ordered.

Only the window and the cluster of a drill are looked at, never what it breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outrider.i18n import LANGUAGES, Language, translate
from outrider.model import Incident, Message
from outrider.ports import StateReader

AFTER = timedelta(minutes=2)  # an incident that opens so soon after the end may still be the drill's


@dataclass(frozen=True, slots=True)
class Window:
    """When and where a drill runs. ``name`` is the game day's, or that of a drill somebody ordered."""

    cluster: str
    start: datetime
    end: datetime
    name: str

    def covers(self, incident: Incident) -> bool:
        """True when the incident may belong to the drill: of its cluster, as far as a cause is known."""
        cause = incident.suspected_cause
        elsewhere = cause is not None and cause.entity.cluster != self.cluster
        return not elsewhere and self.start <= incident.opened_at <= self.end + AFTER


def windows(state: StateReader, since: datetime) -> tuple[Window, ...]:
    """The windows of drills that end after ``since``."""
    return tuple(
        Window(drill.entity.cluster, drill.starts_at, drill.stopped_at or drill.ends_at, drill.game_day or "drill")
        for drill in state.drills(since=since)
    )


def mark(messages: Sequence[Message], incidents: Sequence[Incident], running: Sequence[Window]) -> tuple[Message, ...]:
    """The messages, those about incidents of a drill marked in title, text and labels."""
    if not running:
        return tuple(messages)
    by_id = {incident.id: incident for incident in incidents}
    return tuple(_marked(message, by_id.get(message.incident or ""), running) for message in messages)


def _marked(message: Message, incident: Incident | None, running: Sequence[Window]) -> Message:
    if incident is None:
        return message
    window = next((one for one in running if one.covers(incident)), None)
    if window is None:
        return message
    language: Language = next((one for one in LANGUAGES if one == message.language), "en")
    title = translate("notify.drill_title", language, title=message.title)
    body = translate("notify.drill_body", language, name=window.name, body=message.body)
    return replace(message, title=title, body=body, labels={**message.labels, "drill": window.name})
