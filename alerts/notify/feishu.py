r"""Feishu and Lark custom bot, signed: an interactive card.

The signature is base64(HMAC-SHA256(key="timestamp\nsecret", message="")) in the body, next to the timestamp in
seconds, which may differ by an hour at most. Errors arrive with status 200 and a nonzero ``code``. Limits: 100
messages a minute, 5 a second, 20 KB a request. The text of the card is ``plain_text``, in which nothing is markup.
Source: Feishu open platform, "custom bot usage guide" and "card JSON 1.0".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import http, recipients, settings
from alerts.notify.plain_text import send_card
from alerts.notify.text import buttons_of, fit_body, inert, one_line, shorten, to_json
from outrider.clock import Clock, SystemClock
from outrider.errors import CardRejectedError, DeliveryError
from outrider.model import Message, NotifyReason, Priority, Receipt

_NAME = "feishu"
KEYS = ("url", "secret", "at_users")
BODY_LIMIT_BYTES = 20_000
_TITLE_LIMIT = 200
_COLORS = {Priority.P0: "red", Priority.P1: "orange", Priority.P2: "yellow", Priority.P3: "grey"}
_FREQUENCY_LIMITED = 11232
_SECURITY = {19021: "signature", 19022: "address list", 19024: "keywords"}
_PAUSE = timedelta(minutes=1)
_USER_ID = re.compile(r"[\w-]+")


class FeishuNotifier:
    """Posts to one bot."""

    def __init__(
        self,
        url: str,
        *,
        secret: str = "",
        at_users: tuple[str, ...] = (),
        timeout: timedelta = settings.TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``url`` holds the token. ``at_users`` are open ids or user ids, mentioned on a page."""
        self._url = url
        self._secret = secret
        self._at_users = at_users
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        return send_card(
            message,
            lambda card: self._post(payload(card, self._at_users, self._signed())),
            lambda text: self._post(plain_payload(text, self._at_users, self._signed())),
        )

    def _signed(self) -> dict[str, str]:
        if not self._secret:
            return {}
        timestamp = int(self._clock.now().timestamp())
        return {"timestamp": str(timestamp), "sign": signature(self._secret, timestamp)}

    def _post(self, document: dict[str, Any]) -> Receipt:
        headers = {"Content-Type": http.JSON}
        _raise_for_code(http.send(_NAME, self._url, to_json(document), headers, self._timeout, returned=(400,)))
        return Receipt()


def signature(secret: str, timestamp: int) -> str:
    """The ``sign`` of a request. The secret is part of the key; the signed message is empty."""
    return base64.b64encode(hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()


def payload(
    message: Message, at_users: tuple[str, ...] = (), signed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A card with the title as its colored header, the body, mentions and buttons."""
    return _fitted(message, lambda text: {**(signed or {}), **_card(message, text, at_users)})


def plain_payload(
    message: Message, at_users: tuple[str, ...] = (), signed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A text message. Its markup is the mention tag, which the texts must not contain."""
    mentions = "".join(f'\n<at user_id="{user}"></at>' for user in recipients.mentions(message, at_users))
    title = inert(one_line(message.title))
    return _fitted(
        message,
        lambda text: {
            **(signed or {}),
            "msg_type": "text",
            "content": {"text": f"{title}\n{inert(text)}{mentions}"},
        },
    )


def _fitted(message: Message, build: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return fit_body(message, build, lambda document: len(to_json(document)) <= BODY_LIMIT_BYTES)


def _card(message: Message, text: str, at_users: tuple[str, ...]) -> dict[str, Any]:
    resolved = message.reason is NotifyReason.RESOLVED
    elements: list[dict[str, Any]] = [{"tag": "div", "text": {"tag": "plain_text", "content": text}}]
    mentioned = recipients.mentions(message, at_users)
    if mentioned:
        mentions = " ".join(f"<at id={user}></at>" for user in mentioned)
        elements.append({"tag": "div", "text": {"tag": "lark_md", "content": mentions}})
    buttons = buttons_of(message)
    if buttons:
        actions = [
            {
                "tag": "button",
                "text": {"tag": "plain_text", "content": label},
                "type": "default" if number else "primary",
                "url": url,
            }
            for number, (label, url) in enumerate(buttons)
        ]
        elements.append({"tag": "action", "actions": actions})
    title = shorten(one_line(message.title), _TITLE_LIMIT, "…")
    return {
        "msg_type": "interactive",
        "card": {
            "config": {"wide_screen_mode": True},
            "header": {
                "template": "green" if resolved else _COLORS.get(message.priority or Priority.P3, "grey"),
                "title": {"tag": "plain_text", "content": title},
            },
            "elements": elements,
        },
    }


def _raise_for_code(response: http.HttpResponse) -> None:
    """Raises DeliveryError if the response reports an error. Older bots name the code ``StatusCode``."""
    body = response.json_object()
    code = body.get("code", body.get("StatusCode"))
    if code == 0:
        return
    if code is None:
        raise DeliveryError(f"{_NAME} returned no code; check the address", retryable=False, reason="not_feishu")
    text, reason = f"{_NAME} rejected the message: code {code}", f"code_{code}"
    if code == _FREQUENCY_LIMITED:
        raise DeliveryError(text, retryable=True, reason=reason, retry_after=_PAUSE)
    if code in _SECURITY:
        raise DeliveryError(text, retryable=False, reason=reason, hint=f"check the bot's {_SECURITY[code]}")
    raise CardRejectedError(text, retryable=False, reason=reason)


def from_settings(values: Mapping[str, Any]) -> FeishuNotifier:
    """``url``, ``secret``, ``at_users``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    users = settings.texts(_NAME, values, "at_users")
    if not all(_USER_ID.fullmatch(user) for user in users):
        raise settings.wrong(_NAME, "at_users", "open ids or user ids", hint="or all")
    return FeishuNotifier(
        settings.url(_NAME, values),
        secret=settings.optional(_NAME, values, "secret"),
        at_users=users,
        timeout=settings.timeout(_NAME, values),
    )
