"""HTTP client that injects faults into the simulated fleet of a running platform."""

from __future__ import annotations

from typing import Any

import httpx

from outrider.errors import UnavailableError, UsageError

_TIMEOUT_SECONDS = 10


class FaultControl:
    """Client of ``/control/faults``."""

    def __init__(self, control_url: str) -> None:
        """``control_url`` is the base URL of the fleet server."""
        self._url = control_url.rstrip("/") + "/control/faults"

    def known(self) -> list[dict[str, Any]]:
        """Returns every fault that can be injected. Raises UnavailableError."""
        faults: list[dict[str, Any]] = self._request("GET", "")["known"]
        return faults

    def listed(self) -> list[dict[str, Any]]:
        """Returns every injected fault with its ground truth, newest first. Raises UnavailableError."""
        faults: list[dict[str, Any]] = self._request("GET", "")["ordered"]
        return faults

    def start(self, order: dict[str, Any]) -> dict[str, Any]:
        """Injects a fault. Raises UsageError if the fleet refuses it, UnavailableError if it does not respond."""
        return self._request("POST", "", order)

    def stop(self, name: str) -> dict[str, Any]:
        """Ends a fault early."""
        return self._request("POST", "/stop", {"id": name})

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        message = "the control endpoint of the simulated fleet does not respond"
        hint = "drills need a simulated fleet, for example outrider demo"
        try:
            response = httpx.request(method, self._url + path, json=body, timeout=_TIMEOUT_SECONDS)
            document: dict[str, Any] = response.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise UnavailableError(message, hint=hint) from error
        if response.is_success:
            return document
        error_fields = document.get("error", {}) if isinstance(document, dict) else {}
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise UnavailableError(message, hint=hint)
        raise UsageError(error_fields.get("message", "the fleet refused the fault"), hint=error_fields.get("hint", ""))
