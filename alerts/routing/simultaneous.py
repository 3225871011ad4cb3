"""Groups simultaneous pages: one message for the same fault on several entities of a cluster in one cycle.

Every incident keeps its own page, acknowledgement, reminders and end. Only the first message, which pages, is shared,
and later its escalations. It is sent under the first incident and describes all of them in full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alerts.routing.wording import localize
from outrider.documents.summaries import entity_name, fault_name
from outrider.model import ButtonAction, EntityKind, Fact, Incident, Message, NotifyReason, Priority
from outrider.text.i18n import supported

MOST_IN_FULL = 5  # incidents described in full; the others only have title and link
_GroupKey = tuple[str, NotifyReason, Priority | None, str, EntityKind, str, tuple[str, ...]]


def group_simultaneous(
    planned: Sequence[Message], incidents: Mapping[str, Incident], separate: Collection[str] = ()
) -> tuple[Message, ...]:
    """The messages, with first pages of the same people, channel, priority, cluster, kind and suspected fault merged.

    ``incidents`` are those of the messages, by id. An incident without a known cause is never merged, and neither are
    the messages of the channels ``separate``, which hold one alert for each incident.
    """
    groups: dict[_GroupKey, list[Message]] = {}
    for message in planned:
        key = None if message.channel in separate else _group_key(message, incidents)
        if key is not None:
            groups.setdefault(key, []).append(message)
    shared = {group[0].id: _merged(group, incidents) for group in groups.values() if len(group) > 1}
    covered = {message.id for group in groups.values() for message in group[1:]}
    return tuple(shared.get(message.id, message) for message in planned if message.id not in covered)


def _group_key(message: Message, incidents: Mapping[str, Incident]) -> _GroupKey | None:
    incident = incidents.get(message.incident or "")
    cause = None if incident is None else incident.suspected_cause
    page = message.is_page and message.reason is NotifyReason.OPENED
    if cause is None or not (page or message.reason is NotifyReason.ESCALATED):
        return None
    people = tuple(recipient.name for recipient in message.recipients)
    place = (cause.entity.cluster, cause.entity.kind)
    return (message.channel, message.reason, message.priority, *place, cause.fault, people)


def _merged(group: Sequence[Message], incidents: Mapping[str, Incident]) -> Message:
    """One message with the content of all messages of the group."""
    first = group[0]
    language = supported(first.language)
    causes = [cause for message in group if (cause := incidents[message.incident or ""].suspected_cause) is not None]
    arguments: dict[str, Any] = {
        "count": len(group),
        "fault": fault_name(causes[0].fault, language),
        "entities": ", ".join(entity_name(cause.entity, language) for cause in causes[:MOST_IN_FULL])
        + (", ..." if len(causes) > MOST_IN_FULL else ""),
    }
    parts = [f"{message.title}\n{message.body}" for message in group[:MOST_IN_FULL]]
    parts += [
        f"{message.title}\n{localize('line.link', language, link=message.link or '')}"
        for message in group[MOST_IN_FULL:]
    ]
    acts = any(button.action is ButtonAction.ACKNOWLEDGE for button in first.buttons)
    heading = "line.together_with_button" if acts else "line.together"
    title = "title.together" if first.reason is NotifyReason.OPENED else "title.together_escalated"
    services = {name: None for message in group for name in message.labels.get("services", "").split(", ") if name}
    return replace(
        first,
        title=localize(title, language, priority=first.priority, **arguments),
        body="\n\n".join([localize(heading, language, **arguments), *parts]),
        labels={**first.labels, "services": ", ".join(services)},
        facts={**first.facts, Fact.WHERE: arguments["entities"]} if first.facts else {},
        also=tuple(message.incident for message in group[1:] if message.incident is not None),
    )
