"""Health of a target: result of its last scrape or reading."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """State of a target. ``up`` None: not scraped yet. ``late``: its response missed this round."""

    target: str
    adapter: str
    up: bool | None
    samples: int | None
    duration_seconds: float | None
    error: str | None
    last_success: datetime | None
    reason: str | None = None
    late: bool = False
    hint: str = ""
    cluster: str = ""  # of the entity that the target represents
