"""Recipients: from the routes of a rule or priority to channel names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from alerts.oncall.roster import Team
from alerts.routing.escalation import LADDERS, Ladder
from outrider.model import Alert, Incident, Priority
from outrider.text.i18n import Language

# Defaults: channel groups per priority.
GROUPS: Mapping[Priority, tuple[str, ...]] = {
    Priority.P0: ("phone", "sms", "im"),
    Priority.P1: ("im",),
    Priority.P2: ("im", "mail"),
    Priority.P3: ("report",),
}
# An unacknowledged page repeats after twice the time on a step of its ladder; P2 once a shift.
REPEAT: Mapping[Priority, timedelta] = {
    Priority.P0: timedelta(minutes=10),
    Priority.P1: timedelta(minutes=30),
    Priority.P2: timedelta(hours=8),
}
STATUS_EVERY: Mapping[Priority, timedelta] = {Priority.P0: timedelta(minutes=15)}
AUDIBLE = ("phone", "sms")  # groups that report nothing but a page: a status by phone wakes a person for nothing


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """Notification settings.

    ``routes`` maps a channel group (phone, sms, im, mail, report) to channel names. ``languages`` overrides the
    language of a channel. A P0 or P1 whose groups name no channel goes to every channel of any group, so that a page is
    never lost to an empty list. ``explain`` returns further lines for messages
    of P0 or P1. ``tracking`` are the channels that show the state of an incident; they receive acknowledgements.
    ``separate`` are those that hold one alert for each incident: their pages are never grouped.

    ``ladders`` are those of unacknowledged incidents with a team; ``settle`` is the time for which a cause must stand
    before the incident moves to another team. An open incident is reported on ``status_every``. Follow-ups closed less
    than ``recurs_within`` before an incident count as recent. ``buttons_valid`` is the time for which a button acts;
    None: messages only link to the incident.
    ``personal`` are the channels that mail the named recipients alone. ``summary_groups`` are the routes of the
    summary of a night.
    """

    routes: Mapping[str, tuple[str, ...]]
    base_url: str = "http://127.0.0.1:8501"
    language: Language = "en"
    languages: Mapping[str, Language] = field(default_factory=dict)
    groups: Mapping[Priority, tuple[str, ...]] = field(default_factory=lambda: GROUPS)
    repeat: Mapping[Priority, timedelta] = field(default_factory=lambda: REPEAT)
    explain: Callable[[Incident, Language], Sequence[str]] | None = None
    tracking: frozenset[str] = frozenset()
    separate: frozenset[str] = frozenset()
    ladders: Mapping[Priority, Ladder] = field(default_factory=lambda: LADDERS)
    settle: timedelta = timedelta(minutes=1)
    status_every: Mapping[Priority, timedelta] = field(default_factory=lambda: STATUS_EVERY)
    recurs_within: timedelta = timedelta(days=14)
    buttons_valid: timedelta | None = None
    personal: frozenset[str] = frozenset()
    summary_groups: tuple[str, ...] = ("im", "mail")

    def language_of(self, channel: str) -> Language:
        """The language of a channel."""
        return self.languages.get(channel, self.language)

    def answer_within(self, priority: Priority) -> timedelta | None:
        """The time to acknowledge an incident, after which the next person is notified; None if it need not be."""
        ladder = self.ladders.get(priority)
        return ladder.after if ladder is not None else None

    def of_team(self, team: Team | None) -> NotificationSettings:
        """The settings with the routes of a team in place of the general ones."""
        if team is None or not team.groups:
            return self
        return replace(self, routes={**self.routes, **team.groups})

    def silent_channels(self, channels: Iterable[str]) -> tuple[str, ...]:
        """Those channels that neither ring nor send an SMS."""
        audible = {name for group in AUDIBLE for name in self.routes.get(group, ())}
        return tuple(name for name in channels if name not in audible)

    def channels_of_groups(self, groups: Iterable[str]) -> tuple[str, ...]:
        """The channels of routes, without duplicates."""
        return _unique(channel for group in groups for channel in self.routes.get(group, ()))

    def channels(self, priority: Priority, alerts: Iterable[Alert] = ()) -> tuple[str, ...]:
        """The channels of a priority.

        Routes that rules set for alerts of this priority come before those of the priority.
        """
        named = [alert.labels.get("routes", "") for alert in alerts if alert.priority is priority]
        own = [group for routes in named for group in routes.split(",") if group]
        inherits = not named or "" in named  # at least one alert has no routes of its own
        groups = [*own, *(self.groups.get(priority, ()) if inherits else ())]
        names = self.channels_of_groups(groups)
        if names or priority.rank > Priority.P1.rank:
            return names
        return _unique(channel for channels in self.routes.values() for channel in channels)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
