"""One Alertmanager: its API v2 over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from outrider.errors import CollectError, OutriderError
from outrider.wire.alertmanager import (
    ALERTS_PATH,
    SILENCE_PATH,
    SILENCES_PATH,
    AlertmanagerSilence,
    PostableAlert,
    post_body,
)
from outrider.wire.http_auth import Access

MOST_AT_ONCE = 500  # alerts per request
_MOST_ERROR = 300
_CHECK_VERSION = "check its version: 0.22 or newer"


class AlertmanagerError(OutriderError):
    """An Alertmanager could not be reached, or did not accept a request."""


class RefusedRequestError(AlertmanagerError):
    """An Alertmanager refused the content of a request: the same request will be refused again."""


class AlertmanagerClient:
    """Thread-safe. ``name`` is the URL without user and query, for logs and metrics."""

    def __init__(self, url: str, access: Access | None = None, timeout: timedelta = timedelta(seconds=5)) -> None:
        """``url`` is without ``/api/v2``."""
        self._url, self._access, self._timeout = url.rstrip("/"), access or Access(), timeout
        self._http: httpx.Client | None = None
        self._trust: Any = None
        parts = urlsplit(self._url)
        self.name = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def post_alerts(self, alerts: Sequence[PostableAlert]) -> None:
        """Sends alerts, in several requests if they are many. Raises AlertmanagerError."""
        for first in range(0, len(alerts), MOST_AT_ONCE):
            self._request("POST", ALERTS_PATH, post_body(alerts[first : first + MOST_AT_ONCE]))

    def silences(self) -> tuple[AlertmanagerSilence, ...]:
        """All silences, expired ones included. Raises AlertmanagerError."""
        document = self._json("GET", SILENCES_PATH)
        if not isinstance(document, list):
            raise AlertmanagerError(f"{self.name} returned no list of silences", hint=_CHECK_VERSION)
        return tuple(_parsed(document))

    def create_silence(self, silence: AlertmanagerSilence) -> str:
        """Creates a silence; returns its id. Raises AlertmanagerError."""
        document = self._json("POST", SILENCES_PATH, silence.body())
        number = document.get("silenceID") if isinstance(document, dict) else None
        if not number:
            raise AlertmanagerError(f"{self.name} returned no id of a silence", hint=_CHECK_VERSION)
        return str(number)

    def expire_silence(self, silence_id: str) -> None:
        """Ends a silence. Raises AlertmanagerError."""
        self._request("DELETE", SILENCE_PATH + quote(silence_id, safe=""))

    def close(self) -> None:
        """Releases the connections."""
        if self._http is not None:
            self._http.close()

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        response = self._request(method, path, body)
        try:
            return response.json()
        except ValueError as error:
            raise AlertmanagerError(f"{self.name} returned no JSON", hint="check alertmanager.urls") from error

    def _request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            response = self._client().request(
                method,
                self._url + path,
                content=None if body is None else json.dumps(body).encode(),
                headers={**self._access.sent(), "Content-Type": "application/json"},
            )
        except CollectError as error:
            raise AlertmanagerError(f"{self.name}: {error.message}", hint=error.hint) from error
        except httpx.HTTPError as error:
            raise AlertmanagerError(
                f"{self.name} cannot be reached: {type(error).__name__}", hint="check alertmanager.urls"
            ) from error
        if not response.is_success:
            refused = response.status_code in (400, 413, 422)
            raise (RefusedRequestError if refused else AlertmanagerError)(
                f"{self.name} returned {response.status_code}: {response.text[:_MOST_ERROR].strip()}"
            )
        return response

    def _client(self) -> httpx.Client:
        """The connections; new ones after a certificate changed. Plain HTTP needs no certificates."""
        trust = self._access.trust() if self._url.startswith("https:") else False
        if self._http is None or trust is not self._trust:
            self.close()
            self._http = httpx.Client(verify=trust, timeout=self._timeout.total_seconds(), trust_env=False)
            self._trust = trust
        return self._http


def _parsed(entries: Sequence[Any]) -> Iterator[AlertmanagerSilence]:
    for entry in entries:
        silence = AlertmanagerSilence.parse(entry)
        if silence is not None:
            yield silence
