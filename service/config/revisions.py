"""Database revisions as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text(revisions: Mapping[Any, str | None]) -> str:
    """Returns revisions as text, for example ``state 0001, metrics 0001``."""
    return ", ".join(f"{name} {revisions[name] or 'none'}" for name in sorted(revisions, reverse=True))
