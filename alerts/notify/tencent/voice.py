"""Tencent Cloud voice: ``SendTtsVoice`` reads a template aloud. Only pages of a P0 call.

A voice message has at most 350 characters, and is played up to 3 times. Source: Tencent Cloud voice message service,
"SendTtsVoice" (2020-09-02).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import phone, recipients, settings
from alerts.notify.tencent import api
from alerts.notify.tencent.sms import account_of
from outrider.clock import Clock, SystemClock
from outrider.model import DeliveryNote, Message, Receipt

_NAME = "tencent_voice"
KEYS = ("secret_id", "secret_key", "region", "app_id", "template_id", "template_parameters", "play_times", "to", "url")
_ENDPOINT = "https://vms.tencentcloudapi.com"
_VERSION = "2020-09-02"
VARIABLES_LIMIT = 250  # of the 350 characters of a message; the rest is the text of the template
_CONTEXT_LIMIT = 200
_PARAMETERS = {"1": "priority", "2": "what", "3": "where"}


class TencentVoiceNotifier:
    """Calls a list of numbers."""

    def __init__(
        self,
        account: api.Account,
        to: tuple[str, ...],
        *,
        app_id: str,
        template_id: str,
        play_times: int = 2,
        parameters: tuple[str, ...] = tuple(_PARAMETERS.values()),
        timeout: timedelta = settings.TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``parameters`` are values (``phone.VALUES``) by position."""
        self._account = account
        self._to = to
        self._fields = {"VoiceSdkAppid": app_id, "TemplateId": template_id, "PlayTimes": play_times}
        self._parameters = parameters
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> Receipt:
        """Calls every number for a page of a P0; raises DeliveryError if no call was accepted."""
        if not phone.is_call(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        values = phone.template_values(message, self._parameters, VARIABLES_LIMIT, VARIABLES_LIMIT)

        def dial(number: str) -> str:
            document = {
                **self._fields,
                "CalledNumber": number,
                "TemplateParamSet": values,
                "SessionContext": message.id[:_CONTEXT_LIMIT],
            }
            answer = api.call(_NAME, self._account, "SendTtsVoice", document, self._timeout, self._clock)
            status = answer.get("SendStatus")
            return str(status.get("CallId", "")) if isinstance(status, dict) else ""

        return phone.to_each(message, recipients.phones(message, self._to), dial)


def from_settings(values: Mapping[str, Any]) -> TencentVoiceNotifier:
    """``secret_id``, ``secret_key``, ``region``, ``app_id``, ``template_id``, ``play_times``, ``to`` ..."""
    settings.accept(_NAME, values, KEYS)
    return TencentVoiceNotifier(
        account_of(_NAME, values, _ENDPOINT, "vms", _VERSION),
        settings.phones(_NAME, values, international=True),
        app_id=settings.required(_NAME, values, "app_id"),
        template_id=settings.required(_NAME, values, "template_id"),
        play_times=settings.whole(_NAME, values, "play_times", 2, 1, 3),
        parameters=tuple(phone.parameters(_NAME, values, _PARAMETERS).values()),
        timeout=settings.timeout(_NAME, values),
    )
