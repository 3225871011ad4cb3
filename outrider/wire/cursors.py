"""Keyset pagination: a result page begins after the last entry of the previous one, whatever was added meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Position:
    """End of a result page: sort time and id of its last entry."""

    at: datetime
    id: str


_KEYS: Final = {  # sort keys of the stores' lists, newest first
    "Action": ("decided_at", "id"),
    "Alert": ("starts_at", "fingerprint"),
    "AuditRecord": ("at", "id"),
    "Change": ("at", "id"),
    "CycleRecord": ("at", "id"),
    "Drill": ("starts_at", "id"),
    "Feedback": ("at", "id"),
    "FollowUp": ("at", "id"),
    "Incident": ("opened_at", "id"),
    "Message": ("created_at", "id"),
    "ReceivedAlert": ("starts_at", "id"),
    "Startup": ("began_at", "id"),
}


def position_of(entry: object) -> Position:
    """The position of an entry of a list that ``_KEYS`` names."""
    at, number = _KEYS[type(entry).__name__]
    result: Any = entry
    return Position(getattr(result, at), str(getattr(result, number)))
