"""Paths into parsed JSON, and templates such as ``{alert.host}`` that are filled from them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_PATH = re.compile(r"\{([^{}]+)\}")
_UNFILLED = "<no value>"  # output of a Go template for a missing field
_ZONE = re.compile(r" ([+-]\d{2}:?\d{2})$")


def value_at(body: Any, path: str) -> Any:
    """Any value at a path of keys and list positions, separated by dots; None if there is none."""
    value = body
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif (
            isinstance(value, list) and value and part.lstrip("-").isdecimal() and -len(value) <= int(part) < len(value)
        ):
            value = value[int(part)]
        else:
            return None
    return value


def text_at(body: Any, path: str) -> str:
    """Text or whole number at a path; empty for anything else."""
    value = value_at(body, path)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == _UNFILLED:
        return ""
    return str(value)


def filled(template: str, body: Any) -> str:
    """A template with every path filled; empty if one of them is missing."""
    missing = False

    def fill(match: re.Match[str]) -> str:
        nonlocal missing
        value = text_at(body, match[1])
        missing |= not value
        return value

    text = _PATH.sub(fill, template)
    return "" if missing else text


def first_filled(templates: str | Sequence[str] | None, body: Any) -> str:
    """The first template that can be filled; empty if none can."""
    if templates is None:
        return ""
    offered = [templates] if isinstance(templates, str) else templates
    return next((text for template in offered if (text := filled(template, body))), "")


def instant(text: str) -> datetime | None:
    """Parses a webhook's time (RFC 3339, or GitLab's ``2021-04-28 21:50:00 +0200``), None if invalid."""
    try:
        parsed = datetime.fromisoformat(_ZONE.sub(r"\1", text.replace(" UTC", "+00:00")))
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
