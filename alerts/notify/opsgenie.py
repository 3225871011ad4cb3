"""Opsgenie Alert API: one alert per incident, by its alias.

Created, acknowledged and closed with the incident; a raised priority is updated, a status message becomes a note. The
API answers 202 and a request id. Limits: message 130 characters, alias 512, description 15,000, 20 tags of 50, details
8,000 in all. Atlassian ends Opsgenie on 5 April 2027. Source: Opsgenie docs, "alert API" and "alerts and alert fields".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from alerts.notify import http, settings
from alerts.notify.text import buttons_of, clean, mark_of, one_line, shorten, to_json
from outrider.errors import DeliveryError
from outrider.model import DeliveryNote, Message, NotifyReason, Priority, Receipt

_NAME = "opsgenie"
KEYS = ("api_key", "url", "teams")
_API = "https://api.opsgenie.com"
MESSAGE_LIMIT = 130
ALIAS_LIMIT = 512
DESCRIPTION_LIMIT = 15_000
TAG_LIMIT, MOST_TAGS = 50, 20
DETAILS_LIMIT = 8000
_DETAIL_LIMIT = 500
_NOTE_LIMIT = 25_000
_PRIORITIES = {Priority.P0: "P1", Priority.P1: "P2", Priority.P2: "P3", Priority.P3: "P4"}


class OpsgenieNotifier:
    """Works with the alerts of one API integration."""

    def __init__(
        self,
        api_key: str,
        *,
        api: str = _API,
        teams: tuple[str, ...] = (),
        timeout: timedelta = settings.TIMEOUT,
    ) -> None:
        """``api`` has another address in the EU. ``teams`` are notified; without any, those of the integration."""
        self._api_key = api_key
        self._api = api.rstrip("/")
        self._teams = teams
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError. A test is created and closed."""
        alias = alias_of(message)
        if message.reason in (NotifyReason.REPORT, NotifyReason.SHIFT_SUMMARY, NotifyReason.MOVED):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        if message.reason is NotifyReason.RESOLVED:
            return self._request("POST", _path(alias, "close"), {"source": "Outrider"})
        if message.reason is NotifyReason.ACKNOWLEDGED:
            return self._request("POST", _path(alias, "acknowledge"), {"source": "Outrider"})
        if message.reason is NotifyReason.STATUS:
            return self._request("POST", _path(alias, "notes"), {"note": clean(message.body)[:_NOTE_LIMIT]})
        receipt = self._request("POST", "/v2/alerts", payload(message, self._teams))
        if message.reason is NotifyReason.PRIORITY_RAISED:
            self._request("PUT", _path(alias, "priority"), {"priority": _priority(message)})
        if message.reason is NotifyReason.TEST:
            self._request("POST", _path(alias, "close"), {"source": "Outrider"})
        return receipt

    def _request(self, method: str, path: str, document: dict[str, Any]) -> Receipt:
        headers = {"Content-Type": http.JSON, "Authorization": f"GenieKey {self._api_key}"}
        response = http.send(_NAME, self._api + path, to_json(document), headers, self._timeout, method=method)
        request = response.json_object().get("requestId")
        if not isinstance(request, str):
            text = f"{_NAME} returned no request id; check the address"
            raise DeliveryError(text, retryable=False, reason="not_opsgenie")
        return Receipt(request)


def alias_of(message: Message) -> str:
    """The alias: the incident, or the message itself without one."""
    alias = message.incident or message.id
    return alias if len(alias) <= ALIAS_LIMIT else hashlib.sha256(alias.encode()).hexdigest()


def payload(message: Message, teams: tuple[str, ...] = ()) -> dict[str, Any]:
    """The request that creates an alert, or counts it again."""
    links = "\n".join(f"{label}: {url}" for label, url in buttons_of(message))
    room = DESCRIPTION_LIMIT - len(links) - 2
    tags = [message.priority.value] if message.priority else []
    tags += [one_line(message.labels[key]) for key in ("layer", "fault") if message.labels.get(key)]
    result: dict[str, Any] = {
        "message": shorten(one_line(message.title), MESSAGE_LIMIT, "…"),
        "alias": alias_of(message),
        "description": f"{shorten(clean(message.body), room, mark_of(message))}\n\n{links}".strip(),
        "priority": _priority(message),
        "source": "Outrider",
        "tags": [shorten(tag, TAG_LIMIT, "…") for tag in tags][:MOST_TAGS],
        "details": _details(message),
    }
    entity = one_line(message.labels.get("entity", ""))
    if entity:
        result["entity"] = shorten(entity, ALIAS_LIMIT, "…")
    if teams:
        result["responders"] = [{"name": team, "type": "team"} for team in teams]
    return result


def _details(message: Message) -> dict[str, str]:
    """Facts and labels, as many as Opsgenie accepts."""
    result: dict[str, str] = {}
    room = DETAILS_LIMIT
    named = [*((fact.value, text) for fact, text in message.facts.items()), *sorted(message.labels.items())]
    for key, text in named:
        value = shorten(one_line(text), _DETAIL_LIMIT, "…")
        room -= len(key) + len(value)
        if room < 0:
            break
        result[key] = value
    return result


def _priority(message: Message) -> str:
    return _PRIORITIES[message.priority or Priority.P3]


def _path(alias: str, action: str) -> str:
    return f"/v2/alerts/{quote(alias, safe='')}/{action}?identifierType=alias"


def from_settings(values: Mapping[str, Any]) -> OpsgenieNotifier:
    """``api_key``, ``url``, ``teams``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return OpsgenieNotifier(
        settings.required(_NAME, values, "api_key"),
        api=settings.url(_NAME, values, _API),
        teams=settings.texts(_NAME, values, "teams"),
        timeout=settings.timeout(_NAME, values),
    )
