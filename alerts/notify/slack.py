"""Slack incoming webhook: a header, the body and a link as blocks.

Limits of Slack (Block Kit reference): 150 characters a header, 3,000 a section.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import http, settings
from alerts.notify.text import mark_of, one_line, shorten
from outrider.model import Message, NotifyReason, Priority

_NAME = "slack"
_HEADER_LIMIT = 150
_SECTION_LIMIT = 3000
_COLORS = {Priority.P0: "#b91c1c", Priority.P1: "#c2410c", Priority.P2: "#a16207", Priority.P3: "#475569"}
_GOOD = "#15803d"


class SlackNotifier:
    """Posts to one incoming webhook; its address is the secret."""

    def __init__(self, url: str, *, timeout: timedelta = settings.TIMEOUT) -> None:
        """``url`` as issued by Slack."""
        self._url = url
        self._timeout = timeout

    def send(self, message: Message) -> None:
        """Delivers the message, or raises DeliveryError."""
        body = json.dumps(payload(message), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json; charset=utf-8"}
        http.post(_NAME, self._url, body, headers, self._timeout)


def payload(message: Message) -> dict[str, Any]:
    """``text`` is for notifications, the blocks are for the channel."""
    mark = mark_of(message)
    title = one_line(message.title)
    resolved = message.reason is NotifyReason.RESOLVED
    color = _GOOD if resolved else _COLORS.get(message.priority or Priority.P3, _COLORS[Priority.P3])
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": shorten(title, _HEADER_LIMIT, "…")}},
        {"type": "section", "text": {"type": "mrkdwn", "text": shorten(escape(message.body), _SECTION_LIMIT, mark)}},
    ]
    if message.link:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Outrider"}, "url": message.link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": escape(title), "attachments": [{"color": color, "blocks": blocks}]}


def escape(text: str) -> str:
    """Escapes ``&``, ``<`` and ``>``, which Slack interprets."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def from_settings(values: Mapping[str, Any]) -> SlackNotifier:
    """``url``, ``timeout``."""
    settings.accept(_NAME, values, ("url",))
    return SlackNotifier(settings.url(_NAME, values), timeout=settings.timeout(_NAME, values))
