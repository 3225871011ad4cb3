"""Who is told: from the routes of a rule or priority to the names of channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from outrider.model import Alert, Incident, Priority
from outrider.text.i18n import Language

# The defaults of the service: which channel groups a priority goes to, and how soon a person answers.
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
# A page that nobody has acknowledged is said again after twice the time to answer; P2 once a shift.
REPEAT: Mapping[Priority, timedelta] = {
    Priority.P0: timedelta(minutes=10),
    Priority.P1: timedelta(minutes=30),
    Priority.P2: timedelta(hours=8),
}


@dataclass(frozen=True, slots=True)
class Messaging:
    """How people are reached.

    ``routes`` maps a channel group (phone, sms, im, mail, report) to channel names. ``languages`` may
    give a channel a language of its own. A P0 or P1 whose groups name no channel goes to ``fallback``,
    empty meaning every channel of any group: a page is never lost to an empty list. ``explain`` gives the
    lines that a message of P0 or P1 says beyond cause and evidence.
    """

    routes: Mapping[str, tuple[str, ...]]
    base_url: str = "http://127.0.0.1:8501"
    language: Language = "en"
    languages: Mapping[str, Language] = field(default_factory=dict)
    groups: Mapping[Priority, tuple[str, ...]] = field(default_factory=lambda: GROUPS)
    repeat: Mapping[Priority, timedelta] = field(default_factory=lambda: REPEAT)
    fallback: tuple[str, ...] = ()
    explain: Callable[[Incident, Language], Sequence[str]] | None = None

    def language_of(self, channel: str) -> Language:
        """What the channel is written in."""
        return self.languages.get(channel, self.language)

    def channels(self, priority: Priority, alerts: Iterable[Alert] = ()) -> tuple[str, ...]:
        """The channels of a priority.

        Routes that rules name for alerts of this very priority come before those of the priority.
        """
        named = [alert.labels.get("routes", "") for alert in alerts if alert.priority is priority]
        own = [group for routes in named for group in routes.split(",") if group]
        inherits = not named or "" in named  # at least one alert has no routes of its own
        groups = [*own, *(self.groups.get(priority, ()) if inherits else ())]
        found = _unique(channel for group in groups for channel in self.routes.get(group, ()))
        if found or priority.rank > Priority.P1.rank:
            return found
        return self.fallback or _unique(channel for channels in self.routes.values() for channel in channels)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
