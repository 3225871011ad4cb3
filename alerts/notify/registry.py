"""All channel types and their factories. A new channel is a new row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from alerts.notify import dingtalk, email, slack, webhook
from outrider.ports import Notifier

NOTIFIERS: dict[str, Callable[[Mapping[str, Any]], Notifier]] = {
    "webhook": webhook.from_settings,
    "slack": slack.from_settings,
    "dingtalk": dingtalk.from_settings,
    "email": email.from_settings,
}
