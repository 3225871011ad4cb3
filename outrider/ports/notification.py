"""Protocol of the notification channels."""

from __future__ import annotations

from typing import Protocol

from outrider.model import Message


class Notifier(Protocol):
    """Delivers one message to one channel."""

    def send(self, message: Message) -> None:
        """Delivers the message, or raises DeliveryError."""
        ...
