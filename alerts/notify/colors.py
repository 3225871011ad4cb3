"""The color of a message for channels that take any: by priority, and one for the end of an incident."""

from __future__ import annotations

from outrider.model import Message, NotifyReason, Priority

_BY_PRIORITY = {Priority.P0: "#b91c1c", Priority.P1: "#c2410c", Priority.P2: "#a16207", Priority.P3: "#475569"}
_RESOLVED = "#15803d"


def color_of(message: Message) -> str:
    """The color as #rrggbb."""
    return _RESOLVED if message.reason is NotifyReason.RESOLVED else _BY_PRIORITY[message.priority or Priority.P3]
