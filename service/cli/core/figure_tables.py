"""Cells and headings of the tables of back-tests and drills, translated."""

from __future__ import annotations

from typing import Any

from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_duration

_SECONDS = "_seconds"


def localize(key: str, language: Language, **arguments: object) -> str:
    """Translated text of this area."""
    return translate(f"measured.{key}", language, **arguments)


def heads(language: Language, *names: str) -> list[str]:
    """Column headings by name."""
    return [localize(f"head.{name}", language) for name in names]


def figure(name: str, language: Language) -> str:
    """Heading for a JSON key."""
    return localize(f"figure.{name}", language)


def cell(value: Any, language: Language, name: str = "") -> str:
    """Value as text. Keys that end in seconds are shown as durations."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return localize("yes" if value else "no", language)
    if name.endswith(_SECONDS):
        return format_duration(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
