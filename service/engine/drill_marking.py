"""Marks messages during a drill, so that nobody responds to an injected fault.

Only the window and the cluster of a drill are known here, not its fault. A genuine incident of that cluster in that
time is therefore marked too. Approval requests of the capacity plan are not marked: the plan rests on days of load, and
they need an answer in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from outrider.model import Alert, Fact, Incident, Message
from outrider.records.drill import DrillWindow
from outrider.text.i18n import supported, translate

BY_HAND = "drill"  # name of a window that does not belong to a game day
AFTER = timedelta(minutes=2)  # an incident that opens this soon after the end may belong to the drill


def mark(
    messages: Sequence[Message], incidents: Sequence[Incident], alerts: Sequence[Alert], running: Sequence[DrillWindow]
) -> tuple[Message, ...]:
    """Returns the messages; those about incidents of a drill are marked in title, text and labels."""
    if not running:
        return tuple(messages)
    cluster_of = {alert.fingerprint: alert.entity.cluster for alert in alerts}
    of_drill = {incident.id: _window_of(incident, cluster_of, running) for incident in incidents}
    return tuple(_marked(message, of_drill.get(message.incident or "")) for message in messages)


def name_of(incident: Incident, windows: Sequence[DrillWindow]) -> str | None:
    """Returns the name of the drill that an incident with a cause may belong to, None if there is none."""
    window = _window_of(incident, {}, windows)
    return None if window is None else window.name


def _window_of(incident: Incident, cluster_of: Mapping[str, str], running: Sequence[DrillWindow]) -> DrillWindow | None:
    """Returns the drill in the cluster of the incident's cause, or of its alerts if the cause is unknown."""
    cause = incident.suspected_cause
    clusters = {cluster_of[print_] for print_ in incident.alerts if print_ in cluster_of}
    if cause is not None:
        clusters = {cause.entity.cluster}
    return next(
        (
            window
            for window in running
            if window.cluster in clusters and window.starts_at <= incident.opened_at <= window.ends_at + AFTER
        ),
        None,
    )


def _marked(message: Message, window: DrillWindow | None) -> Message:
    if window is None:
        return message
    language = supported(message.language)
    name = translate("notify.drill_by_hand", language) if window.name == BY_HAND else window.name
    title = translate("notify.drill_title", language, title=message.title)
    body = translate("notify.drill_body", language, name=name, body=message.body)
    facts = dict(message.facts)
    if Fact.WHAT in facts:  # all that an SMS or a call has
        facts[Fact.WHAT] = translate("notify.drill_title", language, title=facts[Fact.WHAT])
    return replace(message, title=title, body=body, labels={**message.labels, "drill": window.name}, facts=facts)
