"""A running platform's way to its simulated fleet: faults are ordered at the fleet's own door, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx

from outrider.errors import UnavailableError, UsageError

_TIMEOUT_SECONDS = 10


class FaultControl:
    """A client of ``/control/faults``."""

    def __init__(self, control_url: str) -> None:
        """``control_url`` is the root of the fleet's server."""
        self._url = control_url.rstrip("/") + "/control/faults"

    def known(self) -> list[dict[str, Any]]:
        """Every fault that can be ordered. Raises UnavailableError."""
        found: list[dict[str, Any]] = self._ask("GET", "")["known"]
        return found

    def listed(self) -> list[dict[str, Any]]:
        """Every fault ordered so far, newest first, with the truth. Raises UnavailableError."""
        found: list[dict[str, Any]] = self._ask("GET", "")["ordered"]
        return found

    def start(self, order: dict[str, Any]) -> dict[str, Any]:
        """Order one. Raises UsageError when the fleet refuses, UnavailableError when it does not answer."""
        return self._ask("POST", "", order)

    def stop(self, name: str) -> dict[str, Any]:
        """End one before its time."""
        return self._ask("POST", "/stop", {"id": name})

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        away = "the simulated fleet's control door does not answer"
        hint = "drills need a simulated fleet, such as that of outrider demo"
        try:
            answer = httpx.request(method, self._url + path, json=body, timeout=_TIMEOUT_SECONDS)
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise UnavailableError(away, hint=hint) from error
        if answer.is_success:
            return found
        said = found.get("error", {}) if isinstance(found, dict) else {}
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise UnavailableError(away, hint=hint)
        raise UsageError(said.get("message", "the fleet refused"), hint=said.get("hint", ""))
