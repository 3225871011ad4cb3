"""Records of cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """Statistics of one cycle, for the audit and the health page."""

    id: str
    at: datetime
    duration_seconds: float
    targets: int
    targets_up: int
    signals_written: int
    findings: int
    alerts_firing: int
    incidents_open: int
    sentences: Sequence[str] = ()
    late: int = 0
