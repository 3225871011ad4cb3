"""Slack incoming webhook. It answers with the text ``ok``, or with an error name and status 400, 403, 404 or 410."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import http, settings
from alerts.notify.plain_text import send_card
from alerts.notify.slack.blocks import CARD_ERRORS, content, plain_content
from alerts.notify.text import to_json
from outrider.errors import CardRejectedError
from outrider.model import Message, Receipt

_NAME = "slack"
KEYS = ("url",)


class SlackNotifier:
    """Posts to one incoming webhook; its address is the secret."""

    def __init__(self, url: str, *, timeout: timedelta = settings.TIMEOUT) -> None:
        """``url`` as issued by Slack."""
        self._url = url
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        return send_card(message, lambda card: self._post(content(card)), lambda text: self._post(plain_content(text)))

    def _post(self, document: dict[str, Any]) -> Receipt:
        headers = {"Content-Type": http.JSON}
        response = http.send(_NAME, self._url, to_json(document), headers, self._timeout, returned=(400,))
        if response.status == 400:
            error = response.body[:100].decode(errors="replace").strip()
            if error in CARD_ERRORS:
                text = f"the {_NAME} channel rejected the message: {error}"
                raise CardRejectedError(text, retryable=False, reason="http_400")
            raise http.status_error(_NAME, response)
        return Receipt()


def from_settings(values: Mapping[str, Any]) -> SlackNotifier:
    """``url``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return SlackNotifier(settings.url(_NAME, values), timeout=settings.timeout(_NAME, values))
