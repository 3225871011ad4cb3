"""Alibaba Cloud SMS: ``SendSms`` with a template.

A template variable has at most 35 characters. The signature name and the template are approved by Alibaba Cloud.
Source: Alibaba Cloud SMS, "SendSms" and "SMS template specifications".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from alerts.notify import phone, recipients, settings
from alerts.notify.aliyun import api
from outrider.clock import Clock, SystemClock
from outrider.model import DeliveryNote, Message, Receipt

_NAME = "aliyun_sms"
KEYS = ("access_key_id", "access_key_secret", "sign_name", "template_code", "template_parameters", "to", "url")
_ENDPOINT = "https://dysmsapi.aliyuncs.com"
VARIABLE_LIMIT = 35
_PARAMETERS = {"priority": "priority", "what": "what", "where": "where", "since": "since"}


class AliyunSmsNotifier:
    """Sends one template to a list of numbers."""

    def __init__(
        self,
        account: api.Account,
        to: tuple[str, ...],
        *,
        sign_name: str,
        template_code: str,
        parameters: Mapping[str, str] | None = None,
        timeout: timedelta = settings.TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``parameters`` map the variables of the template to values (``phone.VALUES``)."""
        self._account = account
        self._to = to
        self._sign_name = sign_name
        self._template_code = template_code
        self._parameters = dict(_PARAMETERS if parameters is None else parameters)
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        if not phone.is_sms(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        sms = {
            "PhoneNumbers": ",".join(recipients.phones(message, self._to, china=True)),
            "SignName": self._sign_name,
            "TemplateCode": self._template_code,
            "TemplateParam": template_param(message, self._parameters),
            "OutId": hashlib.sha256(message.id.encode()).hexdigest()[:32],
        }
        answer = api.call(_NAME, self._account, "SendSms", sms, self._timeout, self._clock)
        return Receipt(str(answer.get("BizId", "")))


def template_param(message: Message, parameters: Mapping[str, str]) -> str:
    """The values of the template, as JSON."""
    values = phone.template_values(message, parameters.values(), VARIABLE_LIMIT)
    return json.dumps(dict(zip(parameters, values, strict=True)), ensure_ascii=False)


def from_settings(values: Mapping[str, Any]) -> AliyunSmsNotifier:
    """``access_key_id``, ``access_key_secret``, ``sign_name``, ``template_code``, ``template_parameters``, ``to``."""
    settings.accept(_NAME, values, KEYS)
    return AliyunSmsNotifier(
        account_of(_NAME, values, _ENDPOINT),
        settings.phones(_NAME, values),
        sign_name=settings.required(_NAME, values, "sign_name"),
        template_code=settings.required(_NAME, values, "template_code"),
        parameters=phone.parameters(_NAME, values, _PARAMETERS),
        timeout=settings.timeout(_NAME, values),
    )


def account_of(channel: str, values: Mapping[str, Any], endpoint: str) -> api.Account:
    """The access key of a channel."""
    return api.Account(
        settings.required(channel, values, "access_key_id"),
        settings.required(channel, values, "access_key_secret"),
        settings.url(channel, values, endpoint),
    )
