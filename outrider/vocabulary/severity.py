"""Severities of other monitors as priorities, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outrider.model import Priority

PRIORITIES: Final[Mapping[str, Priority]] = {
    **dict.fromkeys(("p0", "emergency", "fatal", "disaster"), Priority.P0),
    **dict.fromkeys(("p1", "critical", "page", "high", "error", "major"), Priority.P1),
    **dict.fromkeys(("p2", "warning", "warn", "medium", "minor", "ticket", "average"), Priority.P2),
    **dict.fromkeys(("p3", "p4", "p5", "info", "information", "low", "notice", "none", "debug"), Priority.P3),
}
"""Priority by severity, in lower case. An unknown or missing severity is P2."""
SEVERITIES: Final[Mapping[Priority, str]] = {
    Priority.P0: "critical",
    Priority.P1: "critical",
    Priority.P2: "warning",
    Priority.P3: "info",
}
"""Severity of a priority, in the usual words of Prometheus rules."""


def priority_of(labels: Mapping[str, str]) -> Priority:
    """The priority of an alert's labels: that of ``priority`` if it is one of ours, else that of ``severity``."""
    for name in ("priority", "severity"):
        priority = PRIORITIES.get(labels.get(name, "").strip().lower())
        if priority is not None:
            return priority
    return Priority.P2
