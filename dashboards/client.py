"""HTTP client of the dashboard's only source, the API. Responses are cached for a few seconds, for all viewers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import streamlit as st

from outrider.errors import OutriderError
from outrider.text.i18n import Language

CACHE_SECONDS = 5
_TIMEOUT = httpx.Timeout(15.0, connect=3.0)
_PREFIX = "/api/v1"
Query = tuple[tuple[str, str], ...]


class ApiError(OutriderError):
    """The API refused a request, with its message and hint."""

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        """``status`` is the HTTP status."""
        super().__init__(message, hint=hint)
        self.status = status


class ApiUnreachableError(OutriderError):
    """The API does not respond, or not in time."""


@dataclass(frozen=True, slots=True)
class Client:
    """Reads in the viewer's language, writes with the viewer's token, under the name ``user``."""

    base_url: str
    language: Language = "en"
    token: str = ""
    user: str = ""

    def get(self, path: str, **query: Any) -> Any:
        """Returns the JSON at ``/api/v1`` + path, at most a few seconds old. Raises ApiError, ApiUnreachableError."""
        pairs: list[tuple[str, str]] = [("lang", self.language)]
        for name, value in query.items():
            values = value if isinstance(value, list | tuple) else [value]
            pairs += [(name, str(item)) for item in values if item is not None]
        return _cached_get(self.base_url, path, tuple(pairs), self.token)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Sends a change and clears the cache. Raises ApiError, ApiUnreachableError."""
        return self._change("POST", path, body)

    def delete(self, path: str) -> Any:
        """Removes something and clears the cache. Raises ApiError, ApiUnreachableError."""
        return self._change("DELETE", path, None)

    def _change(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        query = (("lang", self.language),)
        response = _request(method, self.base_url, path, query, self.token, body, user=self.user)
        _cached_get.clear()
        return response


@st.cache_resource(show_spinner=False)
def _connections() -> httpx.Client:
    # The environment's proxy settings are for the internet; the API is local.
    return httpx.Client(timeout=_TIMEOUT, trust_env=False)


@st.cache_data(ttl=CACHE_SECONDS, max_entries=256, show_spinner=False)
def _cached_get(base_url: str, path: str, query: Query, token: str) -> Any:
    return _request("GET", base_url, path, query, token)


def _request(
    method: str,
    base_url: str,
    path: str,
    query: Query,
    token: str,
    body: Mapping[str, Any] | None = None,
    *,
    user: str = "",
) -> Any:
    headers = {b"Authorization": f"Bearer {token}".encode()} if token else {}
    if user:
        headers[b"X-Outrider-User"] = user.encode()  # names need not be ASCII
    url = f"{base_url.rstrip('/')}{_PREFIX}{path}"
    try:
        response = _connections().request(method, url, params=list(query), json=body, headers=headers)
    except httpx.HTTPError as error:
        raise ApiUnreachableError(f"{base_url}: {error or type(error).__name__}") from error
    if response.is_success:
        return response.json()
    try:
        problem = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        problem = {"message": f"{base_url} returned HTTP {response.status_code}.", "hint": ""}
    raise ApiError(problem["message"], status=response.status_code, hint=problem.get("hint", ""))
