"""Generic webhook: the message as JSON, signed if a secret is set.

Headers: ``Idempotency-Key`` is the message id; ``X-Outrider-Signature`` is ``sha256=`` and the hex HMAC-SHA256 of
``timestamp.body``, with the timestamp of ``X-Outrider-Timestamp``. Labels are shortened, everything else is sent whole.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import http, settings
from alerts.notify.text import button_text, shorten, to_json
from outrider.clock import Clock, SystemClock, rfc3339
from outrider.model import Message, Receipt
from outrider.text.i18n import supported
from outrider.wire.alertmanager import ORIGIN_LABEL

_NAME = "webhook"
KEYS = ("url", "secret", "headers")
_LABEL_LIMIT = 4096  # characters; a label of a metric may have a megabyte
_ID_LIMIT = 200


class WebhookNotifier:
    """Posts to one address."""

    def __init__(
        self,
        url: str,
        *,
        secret: str = "",
        headers: Mapping[str, str] | None = None,
        origin: str = "",
        timeout: timedelta = settings.TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """An empty ``secret`` sends no signature. ``origin`` names this Outrider in what it posts."""
        self._url = url
        self._secret = secret
        self._headers = dict(headers or {})
        self._origin = origin
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError. The ``id`` of a JSON response becomes the receipt."""
        body = to_json(payload(message, self._origin))
        timestamp = str(int(self._clock.now().timestamp()))
        headers = self._headers | {
            "Content-Type": "application/json; charset=utf-8",
            "Idempotency-Key": message.id,
            "X-Outrider-Timestamp": timestamp,
        }
        if self._secret:
            headers["X-Outrider-Signature"] = f"sha256={signature(self._secret, timestamp, body)}"
        response = http.send(_NAME, self._url, body, headers, self._timeout)
        return Receipt(str(response.json_object().get("id") or "")[:_ID_LIMIT])


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Hex HMAC-SHA256 of ``timestamp.body``; the timestamp prevents replay of a captured body."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def payload(message: Message, origin: str = "") -> dict[str, Any]:
    """The JSON: ``text`` and ``title`` for people, the rest for programs."""
    language = supported(message.language)
    return {
        "id": message.id,
        ORIGIN_LABEL: origin,
        "reason": message.reason.value,
        "priority": message.priority.value if message.priority else None,
        "incident": message.incident,
        "also": list(message.also),
        "title": message.title,
        "text": message.body,
        "created_at": rfc3339(message.created_at),
        "language": message.language,
        "link": message.link,
        "page": message.is_page,
        "labels": {key: shorten(text, _LABEL_LIMIT, "…") for key, text in sorted(message.labels.items())},
        "facts": {fact.value: shorten(text, _LABEL_LIMIT, "…") for fact, text in message.facts.items()},
        "buttons": [
            {"action": button.action.value, "text": button_text(button.action, language), "url": button.url}
            for button in message.buttons
        ],
        "failed_channels": list(message.failed_channels),
        "recipients": [
            {
                "name": recipient.name,
                "mentions": list(recipient.mentions),
                "phone": recipient.phone,
                "email": recipient.email,
            }
            for recipient in message.recipients
        ],
    }


def from_settings(values: Mapping[str, Any], origin: str = "") -> WebhookNotifier:
    """``url``, ``secret``, ``headers``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return WebhookNotifier(
        settings.url(_NAME, values),
        secret=settings.optional(_NAME, values, "secret"),
        headers=settings.headers(_NAME, values),
        origin=origin,
        timeout=settings.timeout(_NAME, values),
    )
