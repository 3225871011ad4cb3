"""Protocols of the notification channels."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from outrider.model import Message, Receipt


class Notifier(Protocol):
    """Delivers one message to one channel."""

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        ...


@runtime_checkable
class ThreadingNotifier(Protocol):
    """A notifier that keeps the messages of one incident together and edits the first one."""

    def send(self, message: Message) -> Receipt:
        """Delivers the first message of an incident, or raises DeliveryError."""
        ...

    def follow_up(self, message: Message, first: Receipt) -> Receipt:
        """Delivers a later message; ``first`` is the receipt of the first one. Raises DeliveryError."""
        ...
