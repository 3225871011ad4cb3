"""PagerDuty Events API v2: one alert per incident, triggered, acknowledged and resolved by its deduplication key.

Limits: summary 1,024 characters, key 255, event 512 KB. 202 accepts an event, 429 asks for a pause. Status messages
and reports are not sent: a trigger for a resolved alert would open a new one. Source: PagerDuty developer docs,
"Events API v2 overview" and "send an alert event".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import http, settings
from alerts.notify.text import buttons_of, clean, mark_of, one_line, shorten, to_json
from outrider.clock import rfc3339
from outrider.errors import DeliveryError
from outrider.model import DeliveryNote, Message, NotifyReason, Priority, Receipt

_NAME = "pagerduty"
KEYS = ("routing_key", "url")
_API = "https://events.pagerduty.com/v2/enqueue"
SUMMARY_LIMIT = 1024
KEY_LIMIT = 255
_BODY_LIMIT = 20_000
_LABEL_LIMIT = 1000
_MOST_LABELS = 50
_SEVERITIES = {Priority.P0: "critical", Priority.P1: "error", Priority.P2: "warning", Priority.P3: "info"}
_NOT_SENT = frozenset({NotifyReason.STATUS, NotifyReason.MOVED, NotifyReason.SHIFT_SUMMARY, NotifyReason.REPORT})
_ACTIONS = {NotifyReason.RESOLVED: "resolve", NotifyReason.ACKNOWLEDGED: "acknowledge"}


class PagerDutyNotifier:
    """Sends events to one integration."""

    def __init__(self, routing_key: str, *, api: str = _API, timeout: timedelta = settings.TIMEOUT) -> None:
        """``routing_key`` is the integration key of an Events API v2 integration."""
        self._routing_key = routing_key
        self._api = api
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError. A test is triggered and resolved."""
        if message.reason in _NOT_SENT:
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        receipt = self._post(payload(message, self._routing_key))
        if message.reason is NotifyReason.TEST:
            self._post(_event(self._routing_key, "resolve", key_of(message)))
        return receipt

    def _post(self, document: dict[str, Any]) -> Receipt:
        headers = {"Content-Type": http.JSON}
        response = http.send(_NAME, self._api, to_json(document), headers, self._timeout)
        answer = response.json_object()
        if answer.get("status") != "success":
            text = f"{_NAME} returned no confirmation; check the address"
            raise DeliveryError(text, retryable=False, reason="not_pagerduty")
        return Receipt(str(answer.get("dedup_key") or document["dedup_key"])[:KEY_LIMIT])


def key_of(message: Message) -> str:
    """The deduplication key: the incident, or the message itself without one."""
    key = message.incident or message.id
    return key if len(key) <= KEY_LIMIT else hashlib.sha256(key.encode()).hexdigest()


def payload(message: Message, routing_key: str) -> dict[str, Any]:
    """An event."""
    action = _ACTIONS.get(message.reason, "trigger")
    event = _event(routing_key, action, key_of(message))
    if action != "trigger":
        return event
    labels = {key: _bounded(text) for key, text in sorted(message.labels.items())[:_MOST_LABELS]}
    details = {
        "text": shorten(clean(message.body), _BODY_LIMIT, mark_of(message)),
        **{fact.value: _bounded(text) for fact, text in message.facts.items()},
        **{f"label {key}": text for key, text in labels.items()},
    }
    optional = {"component": "entity", "group": "services", "class": "fault"}
    return {
        **event,
        "payload": {
            "summary": shorten(one_line(message.title), SUMMARY_LIMIT, "…"),
            "source": labels.get("entity", "outrider"),
            "severity": _SEVERITIES[message.priority or Priority.P3],
            "timestamp": rfc3339(message.created_at),
            **{field: labels[label] for field, label in optional.items() if labels.get(label)},
            "custom_details": details,
        },
        "links": [{"href": url, "text": label} for label, url in buttons_of(message)],
        "client": "Outrider",
        **({"client_url": message.link} if message.link else {}),
    }


def _event(routing_key: str, action: str, key: str) -> dict[str, Any]:
    return {"routing_key": routing_key, "event_action": action, "dedup_key": key}


def _bounded(text: str) -> str:
    return shorten(one_line(text), _LABEL_LIMIT, "…")


def from_settings(values: Mapping[str, Any]) -> PagerDutyNotifier:
    """``routing_key``, ``url``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return PagerDutyNotifier(
        settings.required(_NAME, values, "routing_key"),
        api=settings.url(_NAME, values, _API),
        timeout=settings.timeout(_NAME, values),
    )
