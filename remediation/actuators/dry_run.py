"""Dry-run actuator: reports what an action would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.clock import Clock, SystemClock
from outrider.documents.summaries import entity_name
from outrider.model import Action, ActionRequest, Outcome, OutcomeStatus
from outrider.text.i18n import Language, translate


class DryRunActuator:
    """Performs nothing. Keeps received actions in ``received``, newest last."""

    def __init__(self, *, language: Language = "en", clock: Clock | None = None) -> None:
        """``clock`` dates the outcomes."""
        self.received: list[Action] = []
        self._language = language
        self._clock = clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Returns the effect of the action as one sentence."""
        self.received.append(action)
        now = self._clock.now()
        return Outcome(action.id, OutcomeStatus.DRY_RUN, dry_run_text(action, self._language), now, now)

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """No requests: nothing is sent."""
        del action
        return ()


def dry_run_text(action: Action, language: Language = "en") -> str:
    """The effect of the action, in one sentence."""
    arguments = {"current": "?", "replicas": "?", "level": "?"} | {
        key: str(value) for key, value in action.params.items()
    }
    target = entity_name(action.target, language)
    return translate(f"actions.would.{action.kind}", language, **{**arguments, "target": target})


def from_settings(values: Mapping[str, Any]) -> DryRunActuator:
    """No settings."""
    del values
    return DryRunActuator()
