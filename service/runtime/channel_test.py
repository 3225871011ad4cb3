"""Sends sample messages to one channel."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from alerts.notify.registry import NOTIFIERS, Reach
from alerts.routing import pipeline
from outrider.errors import DeliveryError
from outrider.model import Message, Priority
from outrider.text.i18n import Language
from outrider.text.unknown_names import no_such
from outrider.wire.alertmanager import origin_of
from service.config.settings import Settings
from service.wiring import alerting as wiring_alerting

_COSTLY = (Reach.PHONE, Reach.SMS)


def run(settings: Settings, channel: str, language: Language, now: datetime, installation: str = "") -> dict[str, Any]:
    """Sends samples until one fails. Returns their receipts and the error, if any.

    ``installation`` is the id of the store, empty if there is none yet. Raises UsageError for an unknown channel.
    """
    configured = settings.notify.channels.get(channel)
    if configured is None:
        raise no_such("channel", channel, settings.notify.channels, without="none; name one under notify.channels")
    notifier = wiring_alerting.notifier(channel, configured, origin_of(settings.cluster, installation))
    samples, error = [], None
    for message in _messages(settings, channel, language, now):
        try:
            receipt = notifier.send(message)
        except DeliveryError as failure:
            error = f"{failure.message}; {failure.hint}" if failure.hint else failure.message
            break
        samples.append(
            {
                "priority": message.priority.value if message.priority else "",
                "receipt": receipt.id,
                "note": receipt.note.value if receipt.note else None,
            }
        )
    return {"sent": len(samples), "error": error, "samples": samples}


def _messages(settings: Settings, channel: str, language: Language, now: datetime) -> tuple[Message, ...]:
    """The samples: of every priority, but only that of a P0 where each one costs money."""
    samples = pipeline.sample_messages(channel, wiring_alerting.messaging_of(settings, language), now)
    if NOTIFIERS[settings.notify.channels[channel].type].reach not in _COSTLY:
        return samples
    return tuple(message for message in samples if message.priority is Priority.P0)
