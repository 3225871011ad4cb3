"""Twilio SMS: one message per number, at most 1,600 characters; the short text stays within two segments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import phone, recipients, settings
from alerts.notify.text import is_link, short_text
from alerts.notify.twilio import api
from outrider.model import DeliveryNote, Message, Receipt

_NAME = "twilio_sms"
KEYS = ("account_sid", "auth_token", "api_key", "api_key_secret", "from", "to", "url")
BODY_LIMIT = 1600
_TEXT_LIMIT = 300  # two segments of GSM-7; a link follows


class TwilioSmsNotifier:
    """Sends to a list of numbers."""

    def __init__(self, account: api.Account, to: tuple[str, ...], *, timeout: timedelta = settings.TIMEOUT) -> None:
        """``to`` are numbers with country code."""
        self._account = account
        self._to = to
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers to at least one number, or raises DeliveryError."""
        if not phone.is_sms(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        form = {"Body": body_of(message), **_sender(self._account.sender)}
        return phone.to_each(
            message,
            recipients.phones(message, self._to),
            lambda number: api.create(_NAME, self._account, "Messages", {**form, "To": number}, self._timeout),
        )


def body_of(message: Message) -> str:
    """The short text, and the link if it fits."""
    text = short_text(message, _TEXT_LIMIT)
    with_link = f"{text} {message.link}" if message.link and is_link(message.link) else text
    return with_link if len(with_link) <= BODY_LIMIT else text


def _sender(sender: str) -> dict[str, str]:
    return {"MessagingServiceSid": sender} if sender.startswith("MG") else {"From": sender}


def from_settings(values: Mapping[str, Any]) -> TwilioSmsNotifier:
    """``account_sid``, ``auth_token``, ``api_key``, ``api_key_secret``, ``from``, ``to``, ``url``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    return TwilioSmsNotifier(
        api.account_of(_NAME, values),
        settings.phones(_NAME, values, international=True),
        timeout=settings.timeout(_NAME, values),
    )
