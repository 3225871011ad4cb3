"""WeCom (企业微信) group robot: Markdown with links as buttons and ``<@userid>`` mentions.

Errors arrive with status 200 and a nonzero ``errcode``. Limits: 20 messages a minute, 4,096 bytes of Markdown, 2,048
of text. Source: WeCom developer center, document 99110 "message push configuration".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import http, recipients, settings
from alerts.notify.plain_text import send_card
from alerts.notify.text import (
    buttons_of,
    fit_body,
    inert,
    mark_of,
    markdown_link,
    one_line,
    shorten,
    shorten_bytes,
    to_json,
)
from outrider.errors import CardRejectedError, DeliveryError
from outrider.model import Message, NotifyReason, Priority, Receipt

_NAME = "wecom"
KEYS = ("url", "at_users")
MARKDOWN_LIMIT_BYTES = 4096
TEXT_LIMIT_BYTES = 2048
_TITLE_LIMIT = 150
_FREQUENCY_LIMITED = 45009
_BUSY = -1
_INVALID_ADDRESS = 93000
_PAUSE = timedelta(minutes=1)
_USER_ID = re.compile(r"[\w.-]+")


class WeComNotifier:
    """Posts to one robot; its address is the secret."""

    def __init__(self, url: str, *, at_users: tuple[str, ...] = (), timeout: timedelta = settings.TIMEOUT) -> None:
        """``url`` holds the key. ``at_users`` are user ids, mentioned on a page."""
        self._url = url
        self._at_users = at_users
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        return send_card(
            message,
            lambda card: self._post(payload(card, self._at_users)),
            lambda text: self._post(plain_payload(text, self._at_users)),
        )

    def _post(self, document: dict[str, Any]) -> Receipt:
        headers = {"Content-Type": http.JSON}
        _raise_for_errcode(http.send(_NAME, self._url, to_json(document), headers, self._timeout))
        return Receipt()


def payload(message: Message, at_users: tuple[str, ...] = ()) -> dict[str, Any]:
    """Markdown: the colored title, the body, links and mentions."""
    urgent = message.rank <= Priority.P1.rank and message.reason is not NotifyReason.RESOLVED
    color = "warning" if urgent else "info"
    title = inert(shorten(one_line(message.title), _TITLE_LIMIT, "…"))
    links = " | ".join(markdown_link(label, url) for label, url in buttons_of(message))
    mentions = " ".join(f"<@{user}>" for user in recipients.mentions(message, at_users))

    def content(text: str) -> str:
        parts = [f'### <font color="{color}">{title}</font>', inert(text), links, mentions]
        return "\n".join(part for part in parts if part)

    fitted = fit_body(message, content, lambda built: len(built.encode()) <= MARKDOWN_LIMIT_BYTES)
    return {"msgtype": "markdown", "markdown": {"content": fitted}}


def plain_payload(message: Message, at_users: tuple[str, ...] = ()) -> dict[str, Any]:
    """A text message."""
    text = inert(f"{one_line(message.title)}\n{message.body}")
    mentioned = list(recipients.mentions(message, at_users))
    content = shorten_bytes(text, TEXT_LIMIT_BYTES, mark_of(message))
    return {"msgtype": "text", "text": {"content": content, "mentioned_list": mentioned}}


def _raise_for_errcode(response: http.HttpResponse) -> None:
    """Raises DeliveryError if a 200 response reports an error."""
    code = response.json_object().get("errcode")
    if code == 0:
        return
    if code is None:
        raise DeliveryError(f"{_NAME} returned no errcode; check the address", retryable=False, reason="not_wecom")
    text, reason = f"{_NAME} rejected the message: errcode {code}", f"errcode_{code}"
    if code in (_FREQUENCY_LIMITED, _BUSY):
        pause = _PAUSE if code == _FREQUENCY_LIMITED else None
        raise DeliveryError(text, retryable=True, reason=reason, retry_after=pause)
    if code == _INVALID_ADDRESS:
        raise DeliveryError(text, retryable=False, reason=reason, hint="check the key in the address of the robot")
    raise CardRejectedError(text, retryable=False, reason=reason)


def from_settings(values: Mapping[str, Any]) -> WeComNotifier:
    """``url``, ``at_users``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    users = settings.texts(_NAME, values, "at_users")
    if not all(_USER_ID.fullmatch(user) for user in users):
        raise settings.wrong(_NAME, "at_users", "user ids")
    return WeComNotifier(settings.url(_NAME, values), at_users=users, timeout=settings.timeout(_NAME, values))
