"""Recurrence: the same fault on the same entity again while a follow-up of the earlier incident is open or recent."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from outrider.model import Incident
from outrider.records.response import FollowUp


def earlier_follow_ups(incident: Incident, follow_ups: Iterable[FollowUp], within: timedelta) -> tuple[FollowUp, ...]:
    """The follow-ups of other incidents with the same suspected cause, newest first.

    They were open when the incident began, or had been closed at most ``within`` before.
    """
    cause = incident.suspected_cause
    if cause is None:
        return ()
    same = [
        item
        for item in follow_ups
        if item.incident != incident.id
        and (item.fault, item.entity) == (cause.fault, cause.entity)
        and item.at <= incident.opened_at
        and (item.closed_at is None or incident.opened_at - item.closed_at <= within)
    ]
    return tuple(sorted(same, key=lambda item: (item.at, item.id), reverse=True))
