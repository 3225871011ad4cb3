"""Tencent Cloud SMS: ``SendSms`` with a template, whose parameters have a position.

Up to 200 numbers a request. Each number has its own status; ``Ok`` is success. Links are not allowed as parameters.
The limit of a parameter depends on the review of the template. Source: Tencent Cloud SMS, "SendSms" (2021-01-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import phone, recipients, settings
from alerts.notify.tencent import api
from outrider import log
from outrider.clock import Clock, SystemClock
from outrider.errors import DeliveryError
from outrider.model import DeliveryNote, Message, Receipt

_NAME = "tencent_sms"
KEYS = (
    "secret_id",
    "secret_key",
    "region",
    "app_id",
    "sign_name",
    "template_id",
    "template_parameters",
    "parameter_limit",
    "to",
    "url",
)
_log = log.get("notify")
_ENDPOINT = "https://sms.tencentcloudapi.com"
_VERSION = "2021-01-11"
_REGION = "ap-guangzhou"
MOST_NUMBERS = 200
PARAMETER_LIMIT = 12  # the default; a template that was approved for more may raise it
_CONTEXT_LIMIT = 511
_PARAMETERS = {"1": "priority", "2": "what", "3": "where"}


class TencentSmsNotifier:
    """Sends one template to a list of numbers."""

    def __init__(
        self,
        account: api.Account,
        to: tuple[str, ...],
        *,
        app_id: str,
        sign_name: str,
        template_id: str,
        parameters: tuple[str, ...] = tuple(_PARAMETERS.values()),
        parameter_limit: int = PARAMETER_LIMIT,
        timeout: timedelta = settings.TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``parameters`` are values (``phone.VALUES``) by position."""
        self._account = account
        self._to = to
        self._fields = {"SmsSdkAppId": app_id, "SignName": sign_name, "TemplateId": template_id}
        self._parameters = parameters
        self._parameter_limit = parameter_limit
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> Receipt:
        """Delivers to at least one number, or raises DeliveryError."""
        if not phone.is_sms(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        document = {
            **self._fields,
            "PhoneNumberSet": list(recipients.phones(message, self._to)),
            "TemplateParamSet": phone.template_values(message, self._parameters, self._parameter_limit),
            "SessionContext": message.id[:_CONTEXT_LIMIT],
        }
        answer = api.call(_NAME, self._account, "SendSms", document, self._timeout, self._clock)
        return _receipt(message, answer)


def _receipt(message: Message, answer: Mapping[str, Any]) -> Receipt:
    """The serial numbers of the accepted numbers."""
    statuses = [status for status in answer.get("SendStatusSet") or () if isinstance(status, dict)]
    accepted = [status for status in statuses if status.get("Code") == "Ok"]
    errors = {
        str(status.get("PhoneNumber", "")): api.error_of(_NAME, str(status.get("Code", "")))
        for status in statuses
        if status not in accepted
    }
    if not accepted:
        raise (
            max(errors.values(), key=lambda error: error.retryable)
            if errors
            else DeliveryError(f"the {_NAME} channel returned no status", retryable=True, reason="no_status")
        )
    if errors:
        _log.warning("numbers_failed", message=message.id, failed=len(errors), of=len(statuses))
    serials = " ".join(str(status.get("SerialNo", "")) for status in accepted)[:500]
    return Receipt(serials, unreached=tuple(number for number in phone.worth_a_retry(errors) if number))


def from_settings(values: Mapping[str, Any]) -> TencentSmsNotifier:
    """``secret_id``, ``secret_key``, ``region``, ``app_id``, ``sign_name``, ``template_id``, ``to`` ..."""
    settings.accept(_NAME, values, KEYS)
    numbers = settings.phones(_NAME, values, international=True)
    if len(numbers) > MOST_NUMBERS:
        raise settings.wrong(_NAME, "to", f"at most {MOST_NUMBERS} numbers")
    return TencentSmsNotifier(
        account_of(_NAME, values, _ENDPOINT, "sms", _VERSION),
        numbers,
        app_id=settings.required(_NAME, values, "app_id"),
        sign_name=settings.required(_NAME, values, "sign_name"),
        template_id=settings.required(_NAME, values, "template_id"),
        parameters=tuple(phone.parameters(_NAME, values, _PARAMETERS).values()),
        parameter_limit=settings.whole(_NAME, values, "parameter_limit", PARAMETER_LIMIT, 1, 500),
        timeout=settings.timeout(_NAME, values),
    )


def account_of(channel: str, values: Mapping[str, Any], endpoint: str, service: str, version: str) -> api.Account:
    """The secret of a channel."""
    return api.Account(
        settings.required(channel, values, "secret_id"),
        settings.required(channel, values, "secret_key"),
        settings.url(channel, values, endpoint),
        service,
        version,
        settings.optional(channel, values, "region") or _REGION,
    )
