"""What SMS and calls share: an account, the numbers, and a template with its values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from alerts.notify import phone, recipients, settings
from alerts.notify.aliyun import api
from outrider.clock import Clock, SystemClock
from outrider.model import Message


@dataclass(frozen=True, slots=True)
class TemplateSender:
    """Sends a template to a list of numbers. ``parameters`` map its variables to values (``phone.VALUES``)."""

    account: api.Account
    to: tuple[str, ...]
    parameters: Mapping[str, str]
    timeout: timedelta = settings.TIMEOUT
    clock: Clock = field(default_factory=SystemClock)

    def numbers(self, message: Message) -> tuple[str, ...]:
        """The numbers of the message, else those of the channel."""
        return recipients.phones(message, self.to, china=True)

    def values(self, message: Message, each: int, total: int | None = None) -> str:
        """The values of the template as JSON: ``each`` and ``total`` limit their characters."""
        values = phone.template_values(message, self.parameters.values(), each, total)
        return json.dumps(dict(zip(self.parameters, values, strict=True)), ensure_ascii=False)

    def call(self, channel: str, action: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Calls an action. Raises DeliveryError."""
        return api.call(channel, self.account, action, parameters, self.timeout, self.clock)


def sender_of(channel: str, values: Mapping[str, Any], endpoint: str, parameters: Mapping[str, str]) -> TemplateSender:
    """The sender of a channel. ``parameters`` are those of the usual template. Raises ConfigError."""
    account = api.Account(
        settings.required(channel, values, "access_key_id"),
        settings.required(channel, values, "access_key_secret"),
        settings.url(channel, values, endpoint),
    )
    return TemplateSender(
        account,
        settings.phones(channel, values),
        phone.parameters(channel, values, parameters),
        settings.timeout(channel, values),
    )
