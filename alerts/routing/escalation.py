"""Escalation: an unacknowledged incident goes up the ladder of its team, and moves with its cause to another team.

The steps that an incident has taken are recorded in its timeline, in the same commit as their messages. A restart or a
failover therefore neither repeats nor drops one. Of its entries the last one counts, not the latest: clocks step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from alerts.oncall.roster import Roster, StepTarget, Team
from outrider.model import Incident, Priority, TimelineEntry
from outrider.records.response import FollowUp, IncidentNote, NoteKind

NOBODY = "-"  # in a timeline: the message went to channels without naming a person
_CAUSE_ENTRIES = ("incidents.timeline.cause_named", "incidents.timeline.cause_changed")


@dataclass(frozen=True, slots=True)
class Ladder:
    """Steps of an unacknowledged incident; ``after`` is the time on each. ``groups`` are further routes of later ones.

    The first step is the first page.
    """

    after: timedelta
    steps: tuple[StepTarget, ...] = (StepTarget.ON_CALL, StepTarget.SECOND, StepTarget.LEAD, StepTarget.TEAM)
    groups: tuple[str, ...] = ()


LADDERS: Mapping[Priority, Ladder] = {
    Priority.P0: Ladder(timedelta(minutes=5)),
    Priority.P1: Ladder(timedelta(minutes=15)),
    Priority.P2: Ladder(timedelta(hours=1)),
}


@dataclass(frozen=True, slots=True)
class Responders:
    """Who can respond, and what people added: entries by incident, oldest first, and follow-ups of earlier incidents.

    Without teams nothing escalates.
    """

    roster: Roster = field(default_factory=Roster)
    notes: Mapping[str, Sequence[IncidentNote]] = field(default_factory=dict)
    follow_ups: Sequence[FollowUp] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a ladder: its number from 0, and the people whom it notifies."""

    index: int
    people: tuple[str, ...]


def has_passed(wait: timedelta, since: datetime, now: datetime) -> bool:
    """True if a wait is over. A start further ahead than the wait dates from before a step back of the clock."""
    return not -wait <= now - since < wait


def assignee_of(notes: Sequence[IncidentNote]) -> str | None:
    """The person of the newest assignment; None if there is none or it was withdrawn."""
    assigned = [note for note in notes if note.kind is NoteKind.ASSIGNMENT]
    return (assigned[-1].to or None) if assigned else None


@dataclass(frozen=True, slots=True)
class Position:
    """Where an incident stands on the ladder of its team, from its timeline.

    ``at`` is the time of its last step; reminders are no steps. ``layer`` is that of the incident at that time.
    ``notified`` are all people so far, ``of_team`` those since it came to the team. ``handled`` are the entries of
    people that were carried out.
    """

    team: str | None = None
    layer: str = ""
    step: int = 0
    at: datetime | None = None
    notified: tuple[str, ...] = ()
    of_team: frozenset[str] = frozenset()
    teams: tuple[str, ...] = ()
    handled: frozenset[str] = frozenset()

    @staticmethod
    def of(incident: Incident) -> Position:
        """Reads the timeline."""
        handled = frozenset(entry.arguments["note"] for entry in incident.timeline if "note" in entry.arguments)
        entries = [entry for entry in incident.timeline if "step" in entry.arguments]
        if not entries:
            return Position(handled=handled)
        last = entries[-1]
        teams = [entry.arguments["team"] for entry in entries]
        came = max((index for index, team in enumerate(teams) if team != teams[-1]), default=-1) + 1
        return Position(
            team=teams[-1],
            layer=last.arguments.get("layer", ""),
            step=int(last.arguments["step"]),
            at=next((entry.at for entry in reversed(entries) if "reminder" not in entry.arguments), entries[0].at),
            notified=tuple(dict.fromkeys(name for entry in entries for name in _people(entry))),
            of_team=frozenset(name for entry in entries[came:] for name in _people(entry)),
            teams=tuple(teams),
            handled=handled,
        )

    @property
    def moves(self) -> int:
        """How often the incident moved to another team."""
        return sum(one != other for one, other in zip(self.teams, self.teams[1:], strict=False))


def _people(entry: TimelineEntry) -> list[str]:
    return [name for name in entry.arguments.get("people", "").split(", ") if name not in ("", NOBODY)]


class Duty:
    """Who responds to one incident now, and which step is due."""

    def __init__(
        self,
        incident: Incident,
        responders: Responders,
        ladders: Mapping[Priority, Ladder],
        settle: timedelta,
        now: datetime,
    ) -> None:
        """``settle`` is the time for which a cause must stand before the incident moves to another team."""
        self._incident = incident
        self._roster = responders.roster
        self._notes = responders.notes.get(incident.id, ())
        self._settle = settle
        self._now = now
        self.ladder = ladders.get(incident.priority)
        self.position = Position.of(incident)
        self.owner = self._roster.owner_of(incident)

    @property
    def team(self) -> Team | None:
        """The team that responds; the owner before the first page. A team that is no longer configured does not."""
        return self._roster.team(self.position.team) or self.owner

    @property
    def moved(self) -> bool:
        """True if the cause moved to a layer of another team, and no person assigned the incident."""
        if self.position.team is None or self.owner is None or self.owner.name == self.position.team:
            return False
        if self._incident.layer.value == self.position.layer:
            return False
        changes = [entry.at for entry in self._incident.timeline if entry.what in _CAUSE_ENTRIES]
        return self.assignee is None and (not changes or has_passed(self._settle, changes[-1], self._now))

    @property
    def assignee(self) -> str | None:
        """The person whom a person assigned the incident to; None if nobody is."""
        return assignee_of(self._notes)

    @property
    def assignment(self) -> IncidentNote | None:
        """The newest assignment, if its person was not notified of it yet."""
        assigned = [note for note in self._notes if note.kind is NoteKind.ASSIGNMENT]
        new = bool(assigned) and assigned[-1].id not in self.position.handled
        return assigned[-1] if new and assigned[-1].to else None

    @property
    def request(self) -> IncidentNote | None:
        """The first request of a person to escalate that was not carried out yet."""
        requests = (note for note in self._notes if note.kind is NoteKind.ESCALATION)
        return next((note for note in requests if note.id not in self.position.handled), None)

    def first_step(self) -> Step:
        """The step of a first page to the team: the first one with people. Without any it names nobody."""
        team = self.team
        if team is None:
            return Step(0, ())
        return next((step for step in self._steps(team) if step.people), Step(0, ()))

    def first_step_of_owner(self) -> Step:
        """The step of the first page to the owner, to which the incident moves."""
        steps = self._steps(self.owner) if self.owner is not None else []
        return next((step for step in steps if step.people), Step(0, ()))

    def current_step(self) -> Step:
        """The step at which the incident stands, with those who are on it now."""
        team, ladder = self.team, self.ladder
        if team is None or ladder is None or self.position.team is None:
            return self.first_step()
        index = min(self.position.step, len(ladder.steps) - 1)
        people = self._roster.on_step(team, ladder.steps[index], self._now)
        return Step(index, people) if people else Step(index, tuple(sorted(self.position.of_team)))

    def due_step(self) -> Step | None:
        """The next step, if a person requested it or if nobody acknowledged in time; None if none is due."""
        if self.position.team is None or self.team is None:
            return None
        if self.request is not None:
            return self._next_step() or self._whole_team()
        waited = self.position.at is not None and self.ladder is not None
        if not waited or self._incident.acknowledged_at is not None:
            return None
        assert self.ladder is not None
        assert self.position.at is not None
        return self._next_step() if has_passed(self.ladder.after, self.position.at, self._now) else None

    def _next_step(self) -> Step | None:
        """The next step that notifies another person."""
        team = self.team
        steps = self._steps(team)[self.position.step + 1 :] if team is not None else []
        return next((step for step in steps if set(step.people) - self.position.of_team), None)

    def _whole_team(self) -> Step | None:
        """The last step again, for a request beyond it; all members if there is no ladder."""
        if self.team is None:
            return None
        people = self._roster.on_step(self.team, StepTarget.TEAM, self._now)
        return Step(self.position.step, people) if people else None

    def _steps(self, team: Team) -> list[Step]:
        targets = self.ladder.steps if self.ladder is not None else (StepTarget.ON_CALL, StepTarget.TEAM)
        return [Step(index, self._roster.on_step(team, target, self._now)) for index, target in enumerate(targets)]


def addressees(
    incident: Incident | None, responders: Responders, ladders: Mapping[Priority, Ladder], now: datetime
) -> tuple[Team | None, tuple[str, ...]]:
    """The team that responds, and the people on its current step; without an incident those of the first team."""
    if incident is not None:
        duty = Duty(incident, responders, ladders, timedelta(0), now)
        return duty.team, duty.current_step().people
    team = next(iter(responders.roster.teams), None)
    if team is None:
        return None, ()
    steps = (responders.roster.on_step(team, target, now) for target in (StepTarget.ON_CALL, StepTarget.TEAM))
    return team, next((people for people in steps if people), ())
