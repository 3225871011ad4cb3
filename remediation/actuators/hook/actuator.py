"""Runs the hook that is configured for each action kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from outrider.clock import Clock, SystemClock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, ActionRequest, EntityKind, Outcome, OutcomeStatus
from remediation.actuators.api_server import ConflictError

KINDS = frozenset({ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RUN_DIAGNOSTIC})
STOPS_PODS = frozenset({ActionKind.RESET_GPU, ActionKind.REBOOT_NODE})
"""Kinds that stop the pods of a node, which must be cordoned before."""
_TRIES = 3  # reads again after a concurrent write


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of an action after one attempt, in one sentence."""

    status: OutcomeStatus
    detail: str


class Hook(Protocol):
    """Performs one kind of action outside this process. An attempt reads first and sends only what is left."""

    def attempt(self, action: Action, now: datetime) -> Progress:
        """Starts the action, or returns how far it is. Raises ActuationError."""
        ...

    def requests(self, action: Action, now: datetime) -> tuple[ActionRequest, ...]:
        """Returns the requests that ``attempt`` would send now. Raises ActuationError."""
        ...


class HookActuator:
    """One hook per action kind. Outcomes are IN_PROGRESS until the hook reports an end."""

    def __init__(self, hooks: Mapping[ActionKind, Hook], *, clock: Clock | None = None) -> None:
        """``hooks`` are those of the configuration."""
        self._hooks = dict(hooks)
        self._clock = clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Makes one attempt, or raises ActuationError."""
        started = self._clock.now()
        progress = self._progress(action)
        return Outcome(action.id, progress.status, progress.detail, started, self._clock.now())

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the requests that ``perform`` would send now. Raises ActuationError."""
        return self._hook(action).requests(action, self._clock.now())

    def _progress(self, action: Action) -> Progress:
        hook = self._hook(action)
        for _ in range(_TRIES - 1):
            try:
                return hook.attempt(action, self._clock.now())
            except ConflictError:
                continue
        return hook.attempt(action, self._clock.now())

    def _hook(self, action: Action) -> Hook:
        hook = self._hooks.get(action.kind)
        if hook is None:
            known = action.kind in KINDS
            setting = f"remediation.{'hooks' if known else 'actuators'}.{action.kind.value}"
            sentence = f"no hook is configured for {action.kind.value}" if known else _unsupported(action.kind)
            raise ActuationError(sentence, retryable=False, hint=f"set {setting}")
        return hook


def _unsupported(kind: ActionKind) -> str:
    return f"the actuator hook does not support {kind.value}"


def node_of(action: Action) -> str:
    """Returns the node that the hook acts on. Raises ActuationError if the decision did not know it."""
    if action.target.kind is EntityKind.NODE:
        return action.target.name
    node = str(action.params.get("node") or "")
    if not node:
        sentence = f"the node of {action.target.name} is unknown"
        raise ActuationError(sentence, retryable=False, hint="check discovery: outrider entities")
    return node


def gpus_of(action: Action) -> tuple[str, ...]:
    """Returns the UUIDs of the devices; empty for all devices of the node."""
    gpus = action.params.get("gpus")
    return tuple(str(gpu) for gpu in gpus) if isinstance(gpus, (list, tuple)) else ()
