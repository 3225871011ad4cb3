"""Protocol of the actuators."""

from __future__ import annotations

from typing import Protocol

from outrider.model import Action, ActionRequest, Outcome


class Actuator(Protocol):
    """Performs one action on a cluster. Must be idempotent by ``action.id``."""

    def perform(self, action: Action) -> Outcome:
        """Performs the action, or raises ActuationError. A dry run changes nothing and describes its effect."""
        ...

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the requests that ``perform`` would send now. Raises ActuationError."""
        ...
