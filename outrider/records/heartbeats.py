"""Times at which something last proved that it works: external watchdogs, deliveries to an Alertmanager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from outrider.records.silences import LabelMatcher

NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Heartbeat of a monitor that reported its own end."""
_PREFIX = "watchdog/"


@dataclass(frozen=True, slots=True)
class Watchdog:
    """An expected heartbeat of another monitor. ``within``: it is absent after this time without one.

    A received alert that ``matchers`` select is the heartbeat. Without matchers only its own endpoint is.
    """

    name: str
    matchers: tuple[LabelMatcher, ...]
    within: timedelta

    @property
    def key(self) -> str:
        """The name of its heartbeat in the store."""
        return f"{_PREFIX}{self.name}"

    def selects(self, labels: Mapping[str, str], source: str) -> bool:
        """True if a received alert is its heartbeat."""
        view = {name: (value,) for name, value in labels.items()} | {"source": (source,)}
        return bool(self.matchers) and all(matcher.holds(view) for matcher in self.matchers)


class HeartbeatReader(Protocol):
    """Read side of the heartbeats."""

    def heartbeats(self) -> Mapping[str, datetime]:
        """The last heartbeat of each name."""
        ...


class HeartbeatStore(HeartbeatReader, Protocol):
    """Write side of the heartbeats."""

    def beat(self, name: str, at: datetime) -> None:
        """Records a heartbeat. An earlier time than the stored one replaces it: clocks may step back."""
        ...
