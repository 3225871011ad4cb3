"""Shortens texts to the limits of a channel."""

from __future__ import annotations

from outrider.model import Message
from outrider.text.i18n import Language, translate


def language_of(message: Message) -> Language:
    """The language of a message, English if it is not supported."""
    return "zh" if message.language == "zh" else "en"


def shorten(text: str, limit: int, mark: str) -> str:
    """At most ``limit`` characters, including the truncation mark."""
    if len(text) <= limit:
        return text
    return text[: max(0, limit - len(mark))] + mark[:limit]


def shorten_bytes(text: str, limit: int, mark: str) -> str:
    """At most ``limit`` bytes of UTF-8, without partial characters."""
    if len(text.encode()) <= limit:
        return text
    kept = text.encode()[: max(0, limit - len(mark.encode()))].decode(errors="ignore")
    return kept + mark


def mark_of(message: Message) -> str:
    """The truncation mark."""
    return translate("notify.truncated", language_of(message))


def one_line(text: str) -> str:
    """The text without line breaks and control characters, for titles and mail headers."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
