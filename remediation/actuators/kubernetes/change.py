"""The requests that an action still needs, as found by reading the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from outrider.errors import ActuationError
from outrider.model import Action, ActionRequest
from remediation.actuators.api_server import ApiServer


@dataclass(frozen=True, slots=True)
class Change:
    """Requests in the order in which they are sent.

    ``detail`` describes the result in one sentence. ``pending``: more is left to do after these requests. None at all
    and not pending means that the action is already done.
    """

    detail: str
    requests: tuple[ActionRequest, ...] = ()
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an action, on one API server, at one time."""

    server: ApiServer
    action: Action
    now: datetime


ChangeReader = Callable[[Attempt], Change]


def refused(message: str, hint: str = "") -> ActuationError:
    """Returns the error of an action that must not be performed, now or later."""
    return ActuationError(message, retryable=False, hint=hint)
