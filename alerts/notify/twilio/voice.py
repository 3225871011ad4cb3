"""Twilio calls: TwiML that reads the short text aloud twice. Only pages of a P0 call.

The TwiML of a request has at most 4,000 characters. Source: Twilio docs, "Call resource" and "TwiML Say".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from xml.sax.saxutils import escape

from alerts.notify import phone, recipients, settings
from alerts.notify.text import short_text
from alerts.notify.twilio import api
from outrider.model import DeliveryNote, Message, Receipt
from outrider.text.i18n import supported

_NAME = "twilio_voice"
KEYS = ("account_sid", "auth_token", "api_key", "api_key_secret", "from", "to", "play_times", "url")
TWIML_LIMIT = 4000
_TEXT_LIMIT = 300  # escaped, each character has at most 5
_VOICES = {"en": "en-US", "zh": "zh-CN"}


class TwilioVoiceNotifier:
    """Calls a list of numbers."""

    def __init__(
        self,
        account: api.Account,
        to: tuple[str, ...],
        *,
        play_times: int = 2,
        timeout: timedelta = settings.TIMEOUT,
    ) -> None:
        """``to`` are numbers with country code."""
        self._account = account
        self._to = to
        self._play_times = play_times
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Calls every number for a page of a P0; raises DeliveryError if no call was accepted."""
        if not phone.is_call(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        form = {"Twiml": twiml(message, self._play_times), "From": self._account.sender}
        return phone.to_each(
            message,
            recipients.phones(message, self._to),
            lambda number: api.create(_NAME, self._account, "Calls", {**form, "To": number}, self._timeout),
        )


def twiml(message: Message, play_times: int = 2) -> str:
    """The instructions of the call."""
    text = escape(short_text(message, _TEXT_LIMIT))
    voice = _VOICES[supported(message.language)]
    return f'<Response><Say language="{voice}" loop="{play_times}">{text}</Say></Response>'


def from_settings(values: Mapping[str, Any]) -> TwilioVoiceNotifier:
    """``account_sid``, ``auth_token``, ``api_key``, ``api_key_secret``, ``from``, ``to``, ``play_times``, ``url``."""
    settings.accept(_NAME, values, KEYS)
    return TwilioVoiceNotifier(
        api.account_of(_NAME, values),
        settings.phones(_NAME, values, international=True),
        play_times=settings.whole(_NAME, values, "play_times", 2, 1, 3),
        timeout=settings.timeout(_NAME, values),
    )
