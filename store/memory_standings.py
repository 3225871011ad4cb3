"""The standings of the detectors, in memory."""

from __future__ import annotations

from outrider.model import DetectorStanding
from store import state_rows


class MemoryStandings:
    """The part of the state store in memory that keeps how far the detectors have come."""

    _standings: tuple[DetectorStanding, ...] = ()

    def standings(self) -> tuple[DetectorStanding, ...]:
        """How far each detector has come, by name; empty before the first cycle."""
        return self._standings

    def _keep_standings(self, told: tuple[DetectorStanding, ...]) -> None:
        """A cycle that tells none leaves them as they are."""
        self._standings = state_rows.by_name(told) or self._standings
