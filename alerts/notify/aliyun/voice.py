"""Alibaba Cloud voice: ``SingleCallByTts`` reads a template aloud. Only pages of a P0 call.

All variables together have fewer than 250 characters, without links. A number is called once a minute, 5 times an
hour and 20 times a day at most. Source: Alibaba Cloud voice service, "SingleCallByTts".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from alerts.notify import phone, settings
from alerts.notify.aliyun.template import TemplateSender, sender_of
from outrider.model import DeliveryNote, Message, Receipt

_NAME = "aliyun_voice"
KEYS = (
    "access_key_id",
    "access_key_secret",
    "tts_code",
    "show_number",
    "play_times",
    "template_parameters",
    "to",
    "url",
)
_ENDPOINT = "https://dyvmsapi.aliyuncs.com"
VARIABLES_LIMIT = 249  # characters of all variables
OUT_ID_LIMIT_BYTES = 15
_PARAMETERS = {"priority": "priority", "what": "what", "where": "where"}


class AliyunVoiceNotifier:
    """Calls a list of numbers."""

    def __init__(self, sender: TemplateSender, *, tts_code: str, show_number: str = "", play_times: int = 2) -> None:
        """``show_number`` empty: a number of the shared pool."""
        self._sender = sender
        self._tts_code = tts_code
        self._show_number = show_number
        self._play_times = play_times

    def send(self, message: Message) -> Receipt:
        """Calls every number for a page of a P0; raises DeliveryError if no call was accepted."""
        if not phone.is_call(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        call = {
            "TtsCode": self._tts_code,
            "TtsParam": self._sender.values(message, VARIABLES_LIMIT, VARIABLES_LIMIT),
            "PlayTimes": str(self._play_times),
            "OutId": hashlib.sha256(message.id.encode()).hexdigest()[:OUT_ID_LIMIT_BYTES],
        }
        if self._show_number:
            call["CalledShowNumber"] = self._show_number

        def dial(number: str) -> str:
            answer = self._sender.call(_NAME, "SingleCallByTts", {**call, "CalledNumber": number})
            return str(answer.get("CallId", ""))

        return phone.to_each(message, self._sender.numbers(message), dial)


def from_settings(values: Mapping[str, Any]) -> AliyunVoiceNotifier:
    """``access_key_id``, ``access_key_secret``, ``tts_code``, ``show_number``, ``play_times``, ``to``."""
    settings.accept(_NAME, values, KEYS)
    return AliyunVoiceNotifier(
        sender_of(_NAME, values, _ENDPOINT, _PARAMETERS),
        tts_code=settings.required(_NAME, values, "tts_code"),
        show_number=settings.number(_NAME, values, "show_number"),
        play_times=settings.whole(_NAME, values, "play_times", 2, 1, 3),
    )
