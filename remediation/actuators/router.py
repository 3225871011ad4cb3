"""Chooses the actuator of each action by its kind."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.model import Action, ActionKind, ActionRequest, Outcome
from outrider.ports import Actuator


class ActuatorRouter:
    """One actuator per action kind: a cluster has autoscalers, node actions and traffic at once."""

    def __init__(self, default: Actuator, by_kind: Mapping[ActionKind, Actuator]) -> None:
        """``default`` performs the kinds that ``by_kind`` lacks."""
        self._default, self._by_kind = default, dict(by_kind)

    def perform(self, action: Action) -> Outcome:
        """Performs the action through its actuator, or raises ActuationError."""
        return self._of(action).perform(action)

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the requests that its actuator would send now. Raises ActuationError."""
        return self._of(action).requests(action)

    def _of(self, action: Action) -> Actuator:
        return self._by_kind.get(action.kind, self._default)
