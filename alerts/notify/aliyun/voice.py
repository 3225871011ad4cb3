"""Alibaba Cloud voice: ``SingleCallByTts`` reads a template aloud. Only pages of a P0 call.

All variables together have fewer than 250 characters, without links. A number is called once a minute, 5 times an
hour and 20 times a day at most. Source: Alibaba Cloud voice service, "SingleCallByTts".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import phone, recipients, settings
from alerts.notify.aliyun import api
from alerts.notify.aliyun.sms import account_of
from outrider.clock import Clock, SystemClock
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

    def __init__(
        self,
        account: api.Account,
        to: tuple[str, ...],
        *,
        tts_code: str,
        show_number: str = "",
        play_times: int = 2,
        parameters: Mapping[str, str] | None = None,
        timeout: timedelta = settings.TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``show_number`` empty: a number of the shared pool. ``parameters`` as for SMS."""
        self._account = account
        self._to = to
        self._tts_code = tts_code
        self._show_number = show_number
        self._play_times = play_times
        self._parameters = dict(_PARAMETERS if parameters is None else parameters)
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> Receipt:
        """Calls every number for a page of a P0; raises DeliveryError if no call was accepted."""
        if not phone.is_call(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        call = {
            "TtsCode": self._tts_code,
            "TtsParam": tts_param(message, self._parameters),
            "PlayTimes": str(self._play_times),
            "OutId": hashlib.sha256(message.id.encode()).hexdigest()[:OUT_ID_LIMIT_BYTES],
        }
        if self._show_number:
            call["CalledShowNumber"] = self._show_number

        def dial(number: str) -> str:
            parameters = {**call, "CalledNumber": number}
            answer = api.call(_NAME, self._account, "SingleCallByTts", parameters, self._timeout, self._clock)
            return str(answer.get("CallId", ""))

        return phone.to_each(message, recipients.phones(message, self._to, china=True), dial)


def tts_param(message: Message, parameters: Mapping[str, str]) -> str:
    """The values of the template, as JSON."""
    values = phone.template_values(message, parameters.values(), VARIABLES_LIMIT, VARIABLES_LIMIT)
    return json.dumps(dict(zip(parameters, values, strict=True)), ensure_ascii=False)


def from_settings(values: Mapping[str, Any]) -> AliyunVoiceNotifier:
    """``access_key_id``, ``access_key_secret``, ``tts_code``, ``show_number``, ``play_times``, ``to``."""
    settings.accept(_NAME, values, KEYS)
    return AliyunVoiceNotifier(
        account_of(_NAME, values, _ENDPOINT),
        settings.phones(_NAME, values),
        tts_code=settings.required(_NAME, values, "tts_code"),
        show_number=settings.number(_NAME, values, "show_number"),
        play_times=settings.whole(_NAME, values, "play_times", 2, 1, 3),
        parameters=phone.parameters(_NAME, values, _PARAMETERS),
        timeout=settings.timeout(_NAME, values),
    )
