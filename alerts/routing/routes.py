"""Recipients: from the routes of a rule or priority to channel names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from outrider.model import Alert, Incident, Priority
from outrider.text.i18n import Language

# Defaults: channel groups per priority, and the time to acknowledge.
GROUPS: Mapping[Priority, tuple[str, ...]] = {
    Priority.P0: ("phone", "sms", "im"),
    Priority.P1: ("im",),
    Priority.P2: ("im", "mail"),
    Priority.P3: ("report",),
}
ANSWER_WITHIN: Mapping[Priority, timedelta] = {
    Priority.P0: timedelta(minutes=5),
    Priority.P1: timedelta(minutes=15),
    Priority.P2: timedelta(hours=1),
}
# An unacknowledged page repeats after twice the time to acknowledge; P2 once a shift.
REPEAT: Mapping[Priority, timedelta] = {
    Priority.P0: timedelta(minutes=10),
    Priority.P1: timedelta(minutes=30),
    Priority.P2: timedelta(hours=8),
}


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """Notification settings.

    ``routes`` maps a channel group (phone, sms, im, mail, report) to channel names. ``languages`` overrides the
    language of a channel. A P0 or P1 whose groups name no channel goes to ``fallback``; an empty one means every
    channel of any group, so that a page is never lost to an empty list. ``explain`` returns further lines for messages
    of P0 or P1. ``tracking`` are the channels that show the state of an incident; they receive acknowledgements.
    """

    routes: Mapping[str, tuple[str, ...]]
    base_url: str = "http://127.0.0.1:8501"
    language: Language = "en"
    languages: Mapping[str, Language] = field(default_factory=dict)
    groups: Mapping[Priority, tuple[str, ...]] = field(default_factory=lambda: GROUPS)
    repeat: Mapping[Priority, timedelta] = field(default_factory=lambda: REPEAT)
    fallback: tuple[str, ...] = ()
    explain: Callable[[Incident, Language], Sequence[str]] | None = None
    tracking: frozenset[str] = frozenset()

    def language_of(self, channel: str) -> Language:
        """The language of a channel."""
        return self.languages.get(channel, self.language)

    def channels(self, priority: Priority, alerts: Iterable[Alert] = ()) -> tuple[str, ...]:
        """The channels of a priority.

        Routes that rules set for alerts of this priority come before those of the priority.
        """
        named = [alert.labels.get("routes", "") for alert in alerts if alert.priority is priority]
        own = [group for routes in named for group in routes.split(",") if group]
        inherits = not named or "" in named  # at least one alert has no routes of its own
        groups = [*own, *(self.groups.get(priority, ()) if inherits else ())]
        names = _unique(channel for group in groups for channel in self.routes.get(group, ()))
        if names or priority.rank > Priority.P1.rank:
            return names
        return self.fallback or _unique(channel for channels in self.routes.values() for channel in channels)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
