"""Marks messages during a drill, so that nobody responds to an injected fault.

Only the window and the cluster of a drill are known here, never what it breaks; so a genuine incident of
that cluster in that time is marked, too. Questions about the capacity plan bear no mark: the plan rests on
days of load, and its answer is wanted all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from outrider.model import Alert, Incident, Message
from outrider.records.drill import DrillWindow
from outrider.text.i18n import LANGUAGES, Language, translate

BY_HAND = "drill"  # the name of a window that is no game day's
AFTER = timedelta(minutes=2)  # an incident that opens so soon after the end may still be the drill's


def mark(
    messages: Sequence[Message], incidents: Sequence[Incident], alerts: Sequence[Alert], running: Sequence[DrillWindow]
) -> tuple[Message, ...]:
    """Returns the messages; those about incidents of a drill are marked in title, text and labels."""
    if not running:
        return tuple(messages)
    cluster_of = {alert.fingerprint: alert.entity.cluster for alert in alerts}
    of_drill = {incident.id: _of(incident, cluster_of, running) for incident in incidents}
    return tuple(_marked(message, of_drill.get(message.incident or "")) for message in messages)


def name_of(incident: Incident, known: Sequence[DrillWindow]) -> str | None:
    """The name of the drill that an incident with a cause may belong to, None for none."""
    window = _of(incident, {}, known)
    return None if window is None else window.name


def _of(incident: Incident, cluster_of: Mapping[str, str], running: Sequence[DrillWindow]) -> DrillWindow | None:
    """The drill that an incident may belong to: of the cluster of its cause, or of its alerts while it has none."""
    cause = incident.suspected_cause
    clusters = {cluster_of[print_] for print_ in incident.alerts if print_ in cluster_of}
    if cause is not None:
        clusters = {cause.entity.cluster}
    return next(
        (
            one
            for one in running
            if one.cluster in clusters and one.starts_at <= incident.opened_at <= one.ends_at + AFTER
        ),
        None,
    )


def _marked(message: Message, window: DrillWindow | None) -> Message:
    if window is None:
        return message
    language: Language = next((one for one in LANGUAGES if one == message.language), "en")
    name = translate("notify.drill_by_hand", language) if window.name == BY_HAND else window.name
    title = translate("notify.drill_title", language, title=message.title)
    body = translate("notify.drill_body", language, name=name, body=message.body)
    return replace(message, title=title, body=body, labels={**message.labels, "drill": window.name})
