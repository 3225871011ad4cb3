"""Microsoft Teams: an Adaptive Card to the webhook of a workflow ("When a Teams webhook request is received").

The workflow answers 202. Limits: 28 KB a message; 4 requests a second. Texts are runs of a RichTextBlock, in which
nothing is markup. Source: Microsoft Learn, "Microsoft Teams connector" (limits) and "create incoming webhooks".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import http, settings
from alerts.notify.plain_text import send_card
from alerts.notify.text import buttons_of, fit_body, inert, one_line, shorten, to_json
from outrider.errors import CardRejectedError
from outrider.model import Message, NotifyReason, Priority, Receipt

_NAME = "teams"
KEYS = ("url",)
BODY_LIMIT_BYTES = 28_000
_TITLE_LIMIT = 300
_MOST_BUTTONS = 6
_COLORS = {Priority.P0: "Attention", Priority.P1: "Attention", Priority.P2: "Warning", Priority.P3: "Default"}


class TeamsNotifier:
    """Posts to the webhook of one workflow; its address is the secret."""

    def __init__(self, url: str, *, timeout: timedelta = settings.TIMEOUT) -> None:
        """``url`` as shown by the workflow."""
        self._url = url
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        return send_card(message, lambda card: self._post(payload(card)), lambda text: self._post(plain_payload(text)))

    def _post(self, document: dict[str, Any]) -> Receipt:
        headers = {"Content-Type": http.JSON}
        response = http.send(_NAME, self._url, to_json(document), headers, self._timeout, returned=(400, 413))
        if response.status in (400, 413):
            text = f"the {_NAME} channel returned HTTP {response.status}"
            raise CardRejectedError(
                text, retryable=False, reason=f"http_{response.status}", hint="check the address of the workflow"
            )
        return Receipt(response.headers.get("x-ms-workflow-run-id", ""))


def payload(message: Message) -> dict[str, Any]:
    """A card with the title, one line per fact, and buttons."""
    return fit_body(message, lambda text: _card(message, text), lambda card: len(to_json(card)) <= BODY_LIMIT_BYTES)


def plain_payload(message: Message) -> dict[str, Any]:
    """A card of one text."""

    def build(text: str) -> dict[str, Any]:
        content = inert(f"{one_line(message.title)}\n{text}")
        return _message([{"type": "TextBlock", "text": content, "wrap": True}], [])

    return fit_body(message, build, lambda card: len(to_json(card)) <= BODY_LIMIT_BYTES)


def _card(message: Message, text: str) -> dict[str, Any]:
    resolved = message.reason is NotifyReason.RESOLVED
    color = "Good" if resolved else _COLORS.get(message.priority or Priority.P3, "Default")
    title = shorten(one_line(message.title), _TITLE_LIMIT, "…")
    heading = {"type": "TextRun", "text": title, "size": "Medium", "weight": "Bolder", "color": color}
    body = [{"type": "RichTextBlock", "inlines": [heading]}]
    body += [
        {"type": "RichTextBlock", "spacing": "Small", "inlines": [{"type": "TextRun", "text": line}]}
        for line in text.splitlines()
        if line.strip()
    ]
    actions = [
        {"type": "Action.OpenUrl", "title": label, "url": url} for label, url in buttons_of(message)[:_MOST_BUTTONS]
    ]
    return _message(body, actions)


def _message(body: list[dict[str, Any]], actions: list[dict[str, Any]]) -> dict[str, Any]:
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
        **({"actions": actions} if actions else {}),
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def from_settings(values: Mapping[str, Any]) -> TeamsNotifier:
    """``url``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return TeamsNotifier(settings.url(_NAME, values), timeout=settings.timeout(_NAME, values))
