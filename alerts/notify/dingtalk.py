r"""DingTalk group robot, signed: an action card with buttons, or Markdown where people are mentioned.

The signature is base64(HMAC-SHA256(secret, "timestamp\nsecret")), URL-encoded, next to the timestamp in milliseconds,
which may differ by an hour at most. DingTalk rejects a message with status 200 and a nonzero ``errcode``. A robot
takes 20 messages a minute and is then locked for ten minutes. ``msgUuid`` makes a second attempt recognizable; the
plain text in place of a rejected card has its own. An action card cannot mention anyone, so a page that does is
Markdown with links. People are mentioned by mobile number (``atMobiles``) or user id (``atUserIds``). Source: DingTalk
open platform, "custom robot access", "security settings" and "custom robots send group messages".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from alerts.notify import http, recipients, settings
from alerts.notify.plain_text import send_card
from alerts.notify.text import (
    buttons_of,
    fit_body,
    inert,
    markdown_link,
    one_line,
    shorten,
    to_json,
)
from outrider.clock import Clock, SystemClock
from outrider.errors import CardRejectedError, DeliveryError
from outrider.model import Message, Receipt

_NAME = "dingtalk"
KEYS = ("url", "secret", "at_mobiles")
BODY_LIMIT_BYTES = 20_000
_TITLE_LIMIT = 200
_BUSY = -1
_TOO_MANY = frozenset({130101, 410100})  # the robot is locked for ten minutes
_LOCKED = timedelta(minutes=10)
_INVALID_PARAMETER = 40035
_MOBILE = re.compile(r"(\+?86-?)?1\d{10}|\+\d{5,19}|\d{2,3}-\d{5,14}")  # 11 digits, or with the country code


class DingTalkNotifier:
    """Posts to one robot."""

    def __init__(
        self,
        url: str,
        *,
        secret: str = "",
        at_mobiles: tuple[str, ...] = (),
        timeout: timedelta = settings.TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``url`` holds the access token; ``secret`` starts with SEC. ``at_mobiles`` are mentioned on a page."""
        self._url = url
        self._secret = secret
        self._at_mobiles = at_mobiles
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        return send_card(
            message,
            lambda card: self._post(payload(card, self._at_mobiles)),
            lambda text: self._post(plain_payload(text, self._at_mobiles)),
        )

    def _post(self, document: dict[str, Any]) -> Receipt:
        url = self._url
        if self._secret:
            timestamp = int(self._clock.now().timestamp() * 1000)
            separator = "&" if "?" in url else "?"
            url = f"{url}{separator}timestamp={timestamp}&sign={signature(self._secret, timestamp)}"
        response = http.send(_NAME, url, to_json(document), {"Content-Type": http.JSON}, self._timeout)
        _raise_for_errcode(response)
        return Receipt(document["msgUuid"])


def signature(secret: str, timestamp_ms: int) -> str:
    """The ``sign`` parameter, URL-encoded."""
    digest = hmac.new(secret.encode(), f"{timestamp_ms}\n{secret}".encode(), hashlib.sha256).digest()
    return quote(base64.b64encode(digest).decode(), safe="")


def payload(message: Message, at_mobiles: tuple[str, ...] = ()) -> dict[str, Any]:
    """An action card, or Markdown for a page with mentions and for a message without buttons."""
    buttons = buttons_of(message)
    mentioned = recipients.mentions(message, at_mobiles)
    if mentioned or not buttons:
        return _fitted(message, lambda text: _markdown(message, text, mentioned))
    return _fitted(message, lambda text: _action_card(message, text, buttons))


def plain_payload(message: Message, at_mobiles: tuple[str, ...] = ()) -> dict[str, Any]:
    """A text message."""
    mentioned = recipients.mentions(message, at_mobiles)
    mentions = "".join(f" @{mobile}" for mobile in mentioned)
    title = one_line(message.title)
    return _fitted(
        message,
        lambda text: {
            "msgtype": "text",
            "text": {"content": f"{title}\n{text}{mentions}"},
            "at": _at(mentioned),
            "msgUuid": _uuid(f"{message.id}:plain"),
        },
    )


def _fitted(message: Message, build: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return fit_body(message, build, lambda document: len(to_json(document)) <= BODY_LIMIT_BYTES)


def _title(message: Message) -> str:
    return inert(shorten(one_line(message.title), _TITLE_LIMIT, "…"))


def _markdown_text(message: Message, text: str) -> str:
    """DingTalk joins single line breaks, so each line is a paragraph of its own."""
    return f"### {_title(message)}\n\n" + "\n\n".join(inert(text).splitlines())


def _markdown(message: Message, text: str, mentioned: tuple[str, ...]) -> dict[str, Any]:
    links = " | ".join(markdown_link(label, url) for label, url in buttons_of(message))
    mentions = " ".join(f"@{mobile}" for mobile in mentioned)
    parts = [_markdown_text(message, text), links, mentions]
    return {
        "msgtype": "markdown",
        "markdown": {
            "title": _title(message),
            "text": "\n\n".join(part for part in parts if part),
        },
        "at": _at(mentioned),
        "msgUuid": _uuid(message.id),
    }


def _action_card(message: Message, text: str, buttons: list[tuple[str, str]]) -> dict[str, Any]:
    card: dict[str, Any] = {
        "title": _title(message),
        "text": _markdown_text(message, text),
    }
    if len(buttons) == 1:
        card |= {"singleTitle": buttons[0][0], "singleURL": buttons[0][1]}
    else:
        card["btnOrientation"] = "1" if len(buttons) == 2 else "0"
        card["btns"] = [{"title": label, "actionURL": url} for label, url in buttons]
    return {"msgtype": "actionCard", "actionCard": card, "msgUuid": _uuid(message.id)}


def _at(mentioned: tuple[str, ...]) -> dict[str, Any]:
    mobiles = [one for one in mentioned if _MOBILE.fullmatch(one)]
    return {"atMobiles": mobiles, "atUserIds": [one for one in mentioned if one not in mobiles], "isAtAll": False}


def _uuid(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _raise_for_errcode(response: http.HttpResponse) -> None:
    """Raises DeliveryError if a 200 response reports an error."""
    code = response.json_object().get("errcode")
    if code == 0:
        return
    if code is None:
        raise DeliveryError(f"{_NAME} returned no errcode; check the address", retryable=False, reason="not_dingtalk")
    text, reason = f"{_NAME} rejected the message: errcode {code}", f"errcode_{code}"
    if code == _INVALID_PARAMETER:
        raise CardRejectedError(text, retryable=False, reason=reason)
    raise DeliveryError(
        text,
        retryable=code == _BUSY or code in _TOO_MANY,
        reason=reason,
        hint="check the robot's secret, keywords and address list",
        retry_after=_LOCKED if code in _TOO_MANY else None,
    )


def from_settings(values: Mapping[str, Any]) -> DingTalkNotifier:
    """``url``, ``secret``, ``at_mobiles``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return DingTalkNotifier(
        settings.url(_NAME, values),
        secret=settings.optional(_NAME, values, "secret"),
        at_mobiles=settings.texts(_NAME, values, "at_mobiles"),
        timeout=settings.timeout(_NAME, values),
    )
