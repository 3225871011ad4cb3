"""Cells, headings and names of the tables of back-tests and drills, in the language of the call."""

from __future__ import annotations

from typing import Any

from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_duration

_SECONDS = "_seconds"


def say(key: str, language: Language, **arguments: object) -> str:
    """A text of the area."""
    return translate(f"measured.{key}", language, **arguments)


def heads(language: Language, *names: str) -> list[str]:
    """Column headings by name."""
    return [say(f"head.{name}", language) for name in names]


def figure(name: str, language: Language) -> str:
    """What the figure of a JSON key is called."""
    return say(f"figure.{name}", language)


def cell(value: Any, language: Language, name: str = "") -> str:
    """A value as people read it; what ``name`` says is seconds is a duration."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return say("yes" if value else "no", language)
    if name.endswith(_SECONDS):
        return format_duration(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
