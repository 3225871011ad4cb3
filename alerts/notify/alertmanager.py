"""Prometheus Alertmanager, API v2: messages about an incident as one alert per priority.

``service.alertmanager`` exchanges the state of every alert instead. Both have the format of ``outrider.wire``.
Alertmanager identifies an alert by its labels, so they hold only what does not change: the incident and its priority.
What changes is in the annotations. An alert ends with the incident; it also ends by itself after ``keep``, in case
nobody can end it. Source: Alertmanager, ``api/v2/openapi.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from alerts.notify import http, settings
from alerts.notify.text import clean, mark_of, one_line, shorten, to_json
from alerts.state.alert_labels import SEVERITIES
from outrider.model import DeliveryNote, Message, NotifyReason, Priority, Receipt
from outrider.wire.alertmanager import ALERTS_PATH, ORIGIN_LABEL, PostableAlert, post_body

_NAME = "alertmanager"
KEYS = ("url", "token", "username", "password", "labels", "keep")
_TEXT_LIMIT = 10_000
_LABEL_LIMIT = 500
KEEP = timedelta(days=7)
_KEEP_OTHERS = timedelta(hours=1)  # an alert without an incident has no end
_NOT_SENT = frozenset({NotifyReason.REPORT, NotifyReason.SHIFT_SUMMARY})


class AlertmanagerNotifier:
    """Posts to one Alertmanager."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        login: tuple[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        origin: str = "",
        keep: timedelta = KEEP,
        timeout: timedelta = settings.TIMEOUT,
    ) -> None:
        """``url`` without the path of the API. ``login`` is user and password; ``labels`` are added to every alert.

        ``origin`` names this Outrider in every alert.
        """
        self._url = url.rstrip("/")
        self._token = token
        self._login = login
        self._labels = {**(labels or {}), **({ORIGIN_LABEL: origin} if origin else {})}
        self._keep = keep
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        if message.reason in _NOT_SENT:
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        headers = {"Content-Type": http.JSON}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = to_json(payload(message, self._labels, self._keep))
        http.send(_NAME, self._url + ALERTS_PATH, body, headers, self._timeout, auth=self._login)
        return Receipt()


def payload(message: Message, labels: Mapping[str, str] | None = None, keep: timedelta = KEEP) -> list[dict[str, Any]]:
    """The alert of the message, and the ends of those with another priority."""
    return post_body(_alerts(message, labels, keep))


def _alerts(message: Message, labels: Mapping[str, str] | None, keep: timedelta) -> list[PostableAlert]:
    now, priority = message.created_at, message.priority or Priority.P3
    others = [other for other in Priority if other is not priority]
    if message.reason is NotifyReason.RESOLVED:
        return [_alert(message, labels, other, now) for other in Priority]
    ended = [_alert(message, labels, other, now) for other in others] if _may_have_changed(message) else []
    lasting = keep if message.incident else _KEEP_OTHERS
    end = now + (timedelta(minutes=5) if message.reason is NotifyReason.TEST else lasting)
    return [_alert(message, labels, priority, end), *ended]


def _may_have_changed(message: Message) -> bool:
    return message.reason is NotifyReason.PRIORITY_RAISED


def _alert(message: Message, labels: Mapping[str, str] | None, priority: Priority, ends_at: datetime) -> PostableAlert:
    named = {
        **(labels or {}),
        "alertname": "OutriderIncident" if message.incident else f"Outrider{_camel(message.reason)}",
        "severity": SEVERITIES[priority],
        "priority": priority.value,
        "incident": message.incident or message.id,
    }
    annotations = {
        "summary": shorten(one_line(message.title), _LABEL_LIMIT, "…"),
        "description": shorten(clean(message.body), _TEXT_LIMIT, mark_of(message)),
        "reason": message.reason.value,
        **{key: _bounded(text) for key, text in message.labels.items()},
        **{fact.value: _bounded(text) for fact, text in message.facts.items()},
    }
    return PostableAlert(
        labels={key: _bounded(text) for key, text in named.items()},
        starts_at=min(message.created_at, ends_at),
        ends_at=ends_at,
        annotations=annotations,
        generator_url=message.link or "",
    )


def _camel(reason: NotifyReason) -> str:
    return "".join(part.capitalize() for part in reason.value.split("_"))


def _bounded(text: str) -> str:
    return shorten(one_line(text), _LABEL_LIMIT, "…")


def from_settings(values: Mapping[str, Any], origin: str = "") -> AlertmanagerNotifier:
    """``url``, ``token``, ``username``, ``password``, ``labels``, ``keep``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    user = settings.optional(_NAME, values, "username")
    labels = values.get("labels") or {}
    if not isinstance(labels, Mapping) or not all(str(key).isidentifier() for key in labels):
        raise settings.wrong(_NAME, "labels", "a map from label name to text")
    return AlertmanagerNotifier(
        settings.url(_NAME, values),
        token=settings.optional(_NAME, values, "token"),
        login=(user, settings.optional(_NAME, values, "password")) if user else None,
        labels={str(key): str(text) for key, text in labels.items()},
        origin=origin,
        keep=settings.duration(_NAME, values, "keep", KEEP),
        timeout=settings.timeout(_NAME, values),
    )
