"""When the service got over a fault: the end of the harm, seen from the fleet and not from the script."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.faults.base import Injection
    from simulator.fleet import Fleet

WELL_FOR_SECONDS = 30.0


class Recovery:
    """Watches one injected fault. ``at`` is when its harm ended for good before the fault did, unix seconds."""

    def __init__(self, fleet: Fleet, injection: Injection) -> None:
        self.fleet = fleet
        self.injection = injection
        self.at: float | None = None
        self._hurt = False
        self._well_since: float | None = None

    def look(self) -> None:
        """Once a step. Harm that is gone for ``WELL_FOR_SECONDS`` is over since it went."""
        truth, now = self.injection.truth, self.fleet.at
        if self.at is not None or not truth.start.timestamp() <= now < truth.end.timestamp():
            return
        if self.injection.harm(self.fleet).size:
            self._hurt, self._well_since = True, None
        elif self._hurt:
            self._well_since = self._well_since or now
            if now - self._well_since >= WELL_FOR_SECONDS:
                self.at = self._well_since
