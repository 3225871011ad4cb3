r"""DingTalk group robot, signed: a Markdown card.

The signature is base64(HMAC-SHA256(secret, "timestamp\nsecret")), URL-encoded, next to the timestamp in milliseconds,
which may differ by an hour at most. DingTalk rejects a message with status 200 and a nonzero ``errcode``. A robot
takes 20 messages a minute and is then locked for ten minutes, so the 21st waits here. Source: DingTalk open platform,
"custom robot access" and "security settings".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from alerts.notify import http, settings
from alerts.notify.text import mark_of, one_line, shorten, shorten_bytes
from outrider.clock import Clock, SystemClock
from outrider.errors import DeliveryError
from outrider.model import Message

_NAME = "dingtalk"
_BODY_LIMIT_BYTES = 20_000
_ROOM_BYTES = 2_000  # of the body, for the JSON around the text
_TITLE_LIMIT = 200
_PER_MINUTE = 20
_MINUTE_SECONDS = 60.0
_BUSY = frozenset({-1, 130101, 410100})  # system busy; too many messages; sending too fast


class DingTalkNotifier:
    """Posts to one robot. Counts its own messages of the last minute."""

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
        self._sent: deque[float] = deque()

    def send(self, message: Message) -> None:
        """Delivers the message, or raises DeliveryError."""
        self._check_rate()
        url = self._url
        if self._secret:
            timestamp = int(self._clock.now().timestamp() * 1000)
            separator = "&" if "?" in url else "?"
            url = f"{url}{separator}timestamp={timestamp}&sign={signature(self._secret, timestamp)}"
        body = json.dumps(payload(message, self._at_mobiles), ensure_ascii=False).encode()
        self._sent.append(self._clock.monotonic())
        response = http.post(_NAME, url, body, {"Content-Type": "application/json; charset=utf-8"}, self._timeout)
        _raise_for_errcode(response)

    def _check_rate(self) -> None:
        now = self._clock.monotonic()
        while self._sent and now - self._sent[0] >= _MINUTE_SECONDS:
            self._sent.popleft()
        if len(self._sent) >= _PER_MINUTE:
            text = f"the {_NAME} robot is limited to {_PER_MINUTE} messages a minute; this one is delayed"
            raise DeliveryError(text, retryable=True, reason="rate_limited")


def signature(secret: str, timestamp_ms: int) -> str:
    """The ``sign`` parameter, URL-encoded."""
    digest = hmac.new(secret.encode(), f"{timestamp_ms}\n{secret}".encode(), hashlib.sha256).digest()
    return quote(base64.b64encode(digest).decode(), safe="")


def payload(message: Message, at_mobiles: tuple[str, ...] = ()) -> dict[str, Any]:
    """A Markdown card. DingTalk joins single line breaks, so each line is a paragraph of its own."""
    mark = mark_of(message)
    title = shorten(one_line(message.title), _TITLE_LIMIT, "…")
    mentioned = at_mobiles if message.is_page else ()
    mentions = "".join(f" @{mobile}" for mobile in mentioned)
    text = f"### {title}\n\n" + "\n\n".join(message.body.splitlines())
    room = _BODY_LIMIT_BYTES - _ROOM_BYTES - len(mentions.encode())
    while (
        len(json.dumps(shorten_bytes(text, room, mark), ensure_ascii=False).encode()) > _BODY_LIMIT_BYTES - _ROOM_BYTES
    ):
        room -= _ROOM_BYTES  # quotes and line breaks grow in JSON
    return {
        "msgtype": "markdown",
        "markdown": {"title": title, "text": shorten_bytes(text, room, mark) + mentions},
        "at": {"atMobiles": list(mentioned), "isAtAll": False},
    }


def _raise_for_errcode(response: http.HttpResponse) -> None:
    """Raises DeliveryError if a 200 response reports an error."""
    body = response.json()
    code = body.get("errcode") if isinstance(body, dict) else None
    if code == 0:
        return
    if code is None:
        raise DeliveryError(f"{_NAME} returned no errcode; check the address", retryable=False, reason="not_dingtalk")
    raise DeliveryError(
        f"{_NAME} rejected the message: errcode {code}",
        retryable=code in _BUSY,
        reason=f"errcode_{code}",
        hint="check the robot's secret, keywords and address list",
    )


def from_settings(values: Mapping[str, Any]) -> DingTalkNotifier:
    """``url``, ``secret``, ``at_mobiles``, ``timeout``."""
    settings.accept(_NAME, values, ("url", "secret", "at_mobiles"))
    return DingTalkNotifier(
        settings.url(_NAME, values),
        secret=settings.optional(_NAME, values, "secret"),
        at_mobiles=tuple(str(mobile) for mobile in values.get("at_mobiles") or ()),
        timeout=settings.timeout(_NAME, values),
    )
