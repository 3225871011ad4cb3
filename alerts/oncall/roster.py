"""People, teams and their schedules: which team owns an incident, and whom each step of a ladder notifies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from alerts.oncall.schedule import Schedule
from outrider.model import Incident, Layer, Recipient
from outrider.vocabulary.time_spans import WeeklySpan

# Faults of these layers belong to the team of the layer, even if they affect a service of another team.
INFRASTRUCTURE = frozenset({Layer.HARDWARE, Layer.PLATFORM, Layer.MONITORING})

_UTC = ZoneInfo("UTC")


class StepTarget(StrEnum):
    """Whom a step of a ladder notifies."""

    ON_CALL = "on_call"
    SECOND = "second"
    LEAD = "lead"
    TEAM = "team"


@dataclass(frozen=True, slots=True)
class Contact:
    """The addresses of a person on one channel. Empty ones are those of the person."""

    mention: str = ""
    phone: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True)
class Person:
    """A person with addresses in general, and ``contacts`` by the name of a channel."""

    name: str
    phone: str = ""
    email: str = ""
    contacts: Mapping[str, Contact] = field(default_factory=dict)

    def recipient(self, channel: str) -> Recipient:
        """The person as a recipient on a channel."""
        contact = self.contacts.get(channel, Contact())
        mentions = (contact.mention,) if contact.mention else ()
        return Recipient(self.name, mentions, contact.phone or self.phone, contact.email or self.email)


@dataclass(frozen=True, slots=True)
class Team:
    """A team. ``layers`` and ``services`` are what it owns; with both, the faults of these layers on these services.

    ``services`` are names, with ``*`` for any characters. ``second`` is the schedule of the second
    person on call; None: the person whose turn is next. ``groups`` replaces the channels of a route. ``night`` are the
    hours in ``zone`` of which a summary is sent at their end; None: no summary.
    """

    name: str
    members: tuple[str, ...]
    lead: str | None = None
    schedule: str | None = None
    second: str | None = None
    layers: frozenset[Layer] = frozenset()
    services: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    night: WeeklySpan | None = None
    zone: ZoneInfo = _UTC

    def owns(self, incident: Incident) -> bool:
        """True if the fault and its services are within the team's layers and services."""
        fits_layer = not self.layers or incident.layer in self.layers
        fits_service = not self.services or any(self._serves(name) for name in incident.services)
        return fits_layer and fits_service

    def _serves(self, service: str) -> bool:
        return any(fnmatchcase(service.rsplit("/", 1)[-1], pattern) for pattern in self.services)


@dataclass(frozen=True, slots=True)
class Roster:
    """All people, teams and schedules at one time. The first team owns what no other team does."""

    people: Mapping[str, Person] = field(default_factory=dict)
    teams: tuple[Team, ...] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    def team(self, name: str | None) -> Team | None:
        """The team of a name; None if there is none."""
        return next((team for team in self.teams if team.name == name), None)

    def owner_of(self, incident: Incident) -> Team | None:
        """The team that owns an incident, by its services and by the layer of its suspected cause.

        A team with both layers and services comes first. For a fault of the infrastructure the team of the layer comes
        before that of the service, for any other fault after it. None without teams.
        """
        owners = [team for team in self.teams if team.owns(incident)]
        layer_first = incident.layer in INFRASTRUCTURE

        def rank(team: Team) -> int:
            if team.layers and team.services:
                return 0
            if team.layers or team.services:
                return 1 if bool(team.layers) is layer_first else 2
            return 3

        return min(owners, key=rank, default=self.teams[0] if self.teams else None)

    def on_step(self, team: Team, target: StepTarget, now: datetime) -> tuple[str, ...]:
        """The names of the people whom a step notifies; empty if there are none at that time."""
        schedule = self.schedules.get(team.schedule or "")
        if target is StepTarget.TEAM:
            return self._known(team.members)
        if target is StepTarget.LEAD:
            return self._known([team.lead or ""])
        if target is StepTarget.ON_CALL:
            return self._known([(schedule.person_at(now) if schedule else None) or ""])
        second = self.schedules.get(team.second or "")
        if second is not None:
            return self._known([second.person_at(now) or ""])
        return self._known([(schedule.second_at(now) if schedule else None) or ""])

    def recipients(self, names: Iterable[str], channel: str) -> tuple[Recipient, ...]:
        """People as recipients on a channel; unknown names are left out."""
        return tuple(self.people[name].recipient(channel) for name in names if name in self.people)

    def _known(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in names if name in self.people))
