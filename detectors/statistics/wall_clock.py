"""Time of a zone's clock: hours of the day and days of the week belong to the users, also across summer time."""

from __future__ import annotations

from datetime import datetime, tzinfo


def wall_seconds(at: float, zone: tzinfo) -> float:
    """The reading of the zone's clock at unix second ``at``, as unix seconds of a clock in UTC that shows the same."""
    ahead = datetime.fromtimestamp(at, zone).utcoffset()
    return at + (ahead.total_seconds() if ahead is not None else 0.0)
