"""Acts on a simulated fleet through its control endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx

from outrider.clock import Clock, SystemClock
from outrider.documents import serialization
from outrider.errors import ActuationError, ConfigError
from outrider.model import Action, ActionRequest, Outcome, OutcomeStatus
from remediation.actuators.dry_run import dry_run_text

_PATH = "/control/actions"
_TIMEOUT = timedelta(seconds=10)


class SimulatedActuator:
    """Posts each action to ``control_url``, which deduplicates by id. A dry run stays in this process."""

    def __init__(self, control_url: str, timeout: timedelta = _TIMEOUT, *, clock: Clock | None = None) -> None:
        """``control_url`` is the root of the fleet's server."""
        self._url = control_url.rstrip("/") + _PATH
        self._timeout = timeout
        self._clock = clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Performs the action, or raises ActuationError: retryable if the endpoint is unreachable or returns 5xx."""
        started = self._clock.now()
        if action.dry_run:
            return Outcome(action.id, OutcomeStatus.DRY_RUN, dry_run_text(action), started, self._clock.now())
        body = self._post(action)
        status = _STATUSES.get(str(body.get("status")))
        detail = str(body.get("detail", ""))
        if status is None:
            raise ActuationError(
                "the control endpoint returned no status",
                retryable=False,
                hint="check that control_url points to a fleet",
            )
        return Outcome(action.id, status, detail, started, self._clock.now())

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the POST to the control endpoint."""
        return (ActionRequest("POST", self._url, request(action)),)

    def _post(self, action: Action) -> dict[str, Any]:
        seconds = self._timeout.total_seconds()
        try:
            response = httpx.post(self._url, json=request(action), timeout=seconds, follow_redirects=False)
        except httpx.TimeoutException as error:
            raise ActuationError(
                f"the control endpoint did not respond within {seconds:g} s", retryable=True
            ) from error
        except httpx.TransportError as error:
            hint = "check that the simulated fleet is running"
            raise ActuationError("the control endpoint cannot be reached", retryable=True, hint=hint) from error
        except httpx.InvalidURL as error:
            raise ActuationError("control_url is not a URL", retryable=False) from error
        body = _json(response)
        if response.status_code // 100 != 2:
            sentence, hint = _refusal(body)
            text = f"the control endpoint returned HTTP {response.status_code}" + (f": {sentence}" if sentence else "")
            raise ActuationError(text, retryable=response.status_code >= 500, hint=hint)
        return body


_STATUSES = {status.value: status for status in OutcomeStatus}


def request(action: Action) -> dict[str, Any]:
    """The body of the POST."""
    return {
        "id": action.id,
        "kind": action.kind.value,
        "target": serialization.entity(action.target),
        "params": dict(action.params),
    }


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        result = response.json()
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}


def _refusal(body: Mapping[str, Any]) -> tuple[str, str]:
    """The sentence and the hint of an error response."""
    error = body.get("error")
    if not isinstance(error, dict):
        return str(body.get("detail") or error or ""), ""
    return str(error.get("message") or ""), str(error.get("hint") or "")


def from_settings(values: Mapping[str, Any]) -> SimulatedActuator:
    """``control_url``, ``timeout`` (a timedelta)."""
    url = values.get("control_url")
    if not url:
        raise ConfigError("the simulated actuator needs control_url", hint="set it to the root of the fleet's server")
    return SimulatedActuator(str(url), values.get("timeout") or _TIMEOUT)
