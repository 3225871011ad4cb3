"""Alibaba Cloud SMS: ``SendSms`` with a template.

A template variable has at most 35 characters. The signature name and the template are approved by Alibaba Cloud.
Source: Alibaba Cloud SMS, "SendSms" and "SMS template specifications".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from alerts.notify import phone, settings
from alerts.notify.aliyun.template import TemplateSender, sender_of
from outrider.model import DeliveryNote, Message, Receipt

_NAME = "aliyun_sms"
KEYS = ("access_key_id", "access_key_secret", "sign_name", "template_code", "template_parameters", "to", "url")
_ENDPOINT = "https://dysmsapi.aliyuncs.com"
VARIABLE_LIMIT = 35
_PARAMETERS = {"priority": "priority", "what": "what", "where": "where", "since": "since"}


class AliyunSmsNotifier:
    """Sends one template to a list of numbers."""

    def __init__(self, sender: TemplateSender, *, sign_name: str, template_code: str) -> None:
        """``sign_name`` and ``template_code`` are those that Alibaba Cloud approved."""
        self._sender = sender
        self._sign_name = sign_name
        self._template_code = template_code

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        if not phone.is_sms(message):
            return Receipt(note=DeliveryNote.NOT_NEEDED)
        sms = {
            "PhoneNumbers": ",".join(self._sender.numbers(message)),
            "SignName": self._sign_name,
            "TemplateCode": self._template_code,
            "TemplateParam": self._sender.values(message, VARIABLE_LIMIT),
            "OutId": hashlib.sha256(message.id.encode()).hexdigest()[:32],
        }
        answer = self._sender.call(_NAME, "SendSms", sms)
        return Receipt(str(answer.get("BizId", "")))


def from_settings(values: Mapping[str, Any]) -> AliyunSmsNotifier:
    """``access_key_id``, ``access_key_secret``, ``sign_name``, ``template_code``, ``template_parameters``, ``to``."""
    settings.accept(_NAME, values, KEYS)
    return AliyunSmsNotifier(
        sender_of(_NAME, values, _ENDPOINT, _PARAMETERS),
        sign_name=settings.required(_NAME, values, "sign_name"),
        template_code=settings.required(_NAME, values, "template_code"),
    )
