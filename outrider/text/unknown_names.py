"""The error for a name outside a known set: the nearest name in its message, all of them in its hint."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.errors import UsageError
from outrider.text.yaml_file import near


def no_such(noun: str, name: str, known: Iterable[str], *, without: str = "none yet") -> UsageError:
    """The error of ``name``, such as ``no service is named "chta"``. ``without`` replaces the list if it is empty."""
    names = list(dict.fromkeys(known))
    hint = f"known {noun}s: {', '.join(names) or without}"
    return UsageError(f"no {noun} is named {name!r}{near(name, names)}", hint=hint)
