"""Slack bot: a message per incident, edited in place, with a thread of what happened since.

Methods ``chat.postMessage`` and ``chat.update`` (scope ``chat:write``). Errors arrive with status 200 and ``ok``
false, or with 429 and Retry-After. Slack allows about one message a second in a channel, with short bursts, and 50
updates a minute. Source: Slack Web API reference, "chat.postMessage", "chat.update" and "rate limits".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from alerts.notify import http, settings
from alerts.notify.plain_text import send_card
from alerts.notify.slack.blocks import CARD_ERRORS, content, plain_content
from alerts.notify.text import to_json
from outrider.errors import CardRejectedError, DeliveryError
from outrider.model import Message, NotifyReason, Receipt

_NAME = "slack_bot"
KEYS = ("token", "channel", "url")
_API = "https://slack.com/api"
_RETRYABLE = frozenset(
    {"ratelimited", "rate_limited", "service_unavailable", "internal_error", "fatal_error", "request_timeout",
     "team_added_to_org"}
)  # fmt: skip
_LIMITED = frozenset({"ratelimited", "rate_limited"})
_PAUSE = timedelta(seconds=30)
_GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "is_inactive"})
_NO_THREAD = frozenset({"thread_not_found", "message_not_found", "cannot_reply_to_message"})
# these change the first message; a request for approval only adds to the thread
_NEW_STATE = frozenset(
    {NotifyReason.PRIORITY_RAISED, NotifyReason.REPEAT, NotifyReason.STATUS, NotifyReason.ESCALATED,
     NotifyReason.REROUTED, NotifyReason.ASSIGNED, NotifyReason.ACKNOWLEDGED, NotifyReason.RESOLVED}
)  # fmt: skip
_BROADCAST = frozenset({NotifyReason.PRIORITY_RAISED, NotifyReason.ESCALATED, NotifyReason.REROUTED})


class SlackBotNotifier:
    """Posts to one channel with a bot token."""

    def __init__(self, token: str, channel: str, *, api: str = _API, timeout: timedelta = settings.TIMEOUT) -> None:
        """``token`` starts with xoxb-. ``channel`` is an id, such as C0123456789."""
        self._token = token
        self._channel = channel
        self._api = api.rstrip("/")
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Posts the first message of an incident, or one without an incident."""
        return send_card(message, lambda card: self._post(content(card)), lambda text: self._post(plain_content(text)))

    def follow_up(self, message: Message, first: Receipt) -> Receipt:
        """Shows the new state in the first message, and adds the message to its thread.

        The first message is edited before, because editing it twice does no harm. If somebody deleted it, the message
        begins a new thread.
        """
        channel, _, timestamp = first.id.partition(":")
        if message.reason in _NEW_STATE:
            self._update(content(message), channel, timestamp)
        thread: dict[str, Any] = {"thread_ts": timestamp}
        if message.reason in _BROADCAST:
            thread["reply_broadcast"] = True
        try:
            return send_card(
                message,
                lambda card: self._post({**content(card), **thread}, channel),
                lambda text: self._post({**plain_content(text), **thread}, channel),
            )
        except DeliveryError as error:
            if error.reason not in _NO_THREAD:
                raise
        return replace(self.send(message), new_thread=True)

    def _post(self, document: Mapping[str, Any], channel: str = "") -> Receipt:
        answer = self._call("chat.postMessage", {**document, "channel": channel or self._channel})
        return Receipt(f"{answer.get('channel', self._channel)}:{answer.get('ts', '')}")

    def _update(self, document: Mapping[str, Any], channel: str, timestamp: str) -> None:
        try:
            self._call("chat.update", {**document, "channel": channel, "ts": timestamp})
        except CardRejectedError:
            pass  # the thread has the text
        except DeliveryError as error:
            if error.reason not in _GONE:
                raise

    def _call(self, method: str, document: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": http.JSON, "Authorization": f"Bearer {self._token}"}
        body = to_json({**document, "unfurl_links": False, "unfurl_media": False})
        response = http.send(_NAME, f"{self._api}/{method}", body, headers, self._timeout)
        answer = response.json_object()
        if answer.get("ok") is True:
            return answer
        error = str(answer.get("error") or "not_slack")[:100]
        text = f"the {_NAME} channel rejected the message: {error}"
        if error in CARD_ERRORS:
            raise CardRejectedError(text, retryable=False, reason=error)
        raise DeliveryError(
            text,
            retryable=error in _RETRYABLE,
            reason=error,
            hint="" if error in _RETRYABLE else "check the token, its scopes and the channel",
            retry_after=_PAUSE if error in _LIMITED else None,
        )


def from_settings(values: Mapping[str, Any]) -> SlackBotNotifier:
    """``token``, ``channel``, ``url``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return SlackBotNotifier(
        settings.required(_NAME, values, "token"),
        settings.required(_NAME, values, "channel"),
        api=settings.url(_NAME, values, _API),
        timeout=settings.timeout(_NAME, values),
    )
