"""The effect that a silence would have on what fires now: for the API, the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from alerts.state.inhibition import Inhibition
from alerts.state.silence import QUIET, silenced
from outrider.clock import SystemClock
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import Alert, AlertState, MuteReason
from outrider.ports import StateReader
from outrider.records.silences import Silence, check_matchers, selects_everything
from outrider.text.i18n import Language
from outrider.topology import Topology
from outrider.vocabulary.time_spans import DAYS
from service.engine import fleet_state

_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class SilencePreview:
    """Firing alerts that a silence would mute, and its effect on incidents.

    ``newly`` of ``alerts`` are not muted by another silence already. ``incidents`` are those that would send nothing
    any more. ``firing`` is the number of all firing alerts. ``in_force`` False: the silence starts later, at ``next``.
    """

    alerts: tuple[Alert, ...]
    newly: int
    incidents: tuple[str, ...]
    firing: int
    in_force: bool
    next: datetime | None


def as_of(state: StateReader) -> datetime:
    """Returns the time of the newest cycle, or of the clock before the first one."""
    newest = state.cycles(limit=1)
    return newest[0].at if newest else SystemClock().now()


def check(silence: Silence) -> None:
    """Raises UsageError for a silence that nothing can meet, or that selects every alert."""
    check_matchers(silence.matchers)
    if silence.rule is None and silence.entity is None and selects_everything(silence.matchers):
        raise UsageError(
            "A silence needs a rule, an entity or a matcher that does not select every alert.",
            hint='silencing everything is not supported; name something, such as rule="gpu-lost"',
        )
    if silence.dependents and silence.rule is not None:
        raise UsageError("A silence of a rule has no dependents.", hint="leave out the rule, or dependents")


def preview(state: StateReader, silence: Silence, topology: Topology, now: datetime) -> SilencePreview:
    """Returns the effect on what fires now, as if the silence were in force. Raises UsageError, StoreError."""
    check(silence)
    active = [alert for alert in fleet_state.active_alerts(state) if alert.state is AlertState.FIRING]
    inhibition = Inhibition.of((), [silence], topology)
    muted = [alert for alert in active if silenced(alert, [silence]) or inhibition.inhibits(alert)]
    prints = {alert.fingerprint for alert in muted}
    after = [replace(alert, muted_by=MuteReason.SILENCED) if alert.fingerprint in prints else alert for alert in active]
    by_print = {alert.fingerprint: alert for alert in after}
    incidents = [
        incident.id
        for incident in fleet_state.open_incidents(state)
        if (own := [by_print[print_] for print_ in incident.alerts if print_ in by_print])
        and all(alert.muted_by in QUIET for alert in own)
        and prints.intersection(incident.alerts)
    ]
    following = silence.window.following(now) if silence.window is not None else None
    starts = silence.starts_at if silence.starts_at is not None and silence.starts_at > now else None
    return SilencePreview(
        alerts=tuple(muted),
        newly=sum(alert.muted_by not in QUIET for alert in muted),
        incidents=tuple(incidents),
        firing=len(active),
        in_force=silence.is_in_force(now),
        next=None if silence.is_in_force(now) else starts or (following[0] if following else None),
    )


def rows(state: StateReader, maintenance: Iterable[Silence], now: datetime) -> list[dict[str, Any]]:
    """Silences that have not ended, with the maintenance windows of the configuration, as JSON."""
    configured = (silence for silence in maintenance if silence.until > now)
    return [row(silence, now) for silence in (*state.silences(now), *configured)]


def row(silence: Silence, now: datetime) -> dict[str, Any]:
    """A silence as JSON."""
    window = silence.window
    return {
        "id": silence.id,
        "rule": silence.rule,
        "entity": serialization.entity(silence.entity) if silence.entity else None,
        "until": serialization.instant(silence.until),
        "by": silence.by,
        "comment": silence.comment,
        "matchers": [str(matcher) for matcher in silence.matchers],
        "starts_at": serialization.instant(silence.starts_at),
        "window": None
        if window is None
        else {
            "start": _clock(window.start_minute),
            "end": _clock(window.end_minute),
            "days": [DAYS[day] for day in window.days],
            "timezone": window.timezone,
        },
        "dependents": silence.dependents,
        "source": silence.source or None,
        "in_force": silence.is_in_force(now),
    }


def preview_row(preview: SilencePreview, silence: Silence, now: datetime, language: Language) -> dict[str, Any]:
    """A preview as JSON: the first alerts in full, and the counts of all."""
    return {
        "silence": row(silence, now),
        "firing": preview.firing,
        "muted": len(preview.alerts),
        "newly_muted": preview.newly,
        "alerts": [serialization.alert(alert, language) for alert in preview.alerts[:_MOST_SHOWN]],
        "incidents": list(preview.incidents),
        "in_force": preview.in_force,
        "next": serialization.instant(preview.next),
    }


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
