"""The dashboard's only source: the HTTP API. Answers are kept for a few seconds and shared by all viewers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import streamlit as st

from outrider.errors import OutriderError
from outrider.text.i18n import Language

KEPT_SECONDS = 5
_TIMEOUT = httpx.Timeout(15.0, connect=3.0)
_PREFIX = "/api/v1"
Query = tuple[tuple[str, str], ...]


class ApiError(OutriderError):
    """The API said no; its own sentence and hint."""

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        """``status`` is the HTTP status."""
        super().__init__(message, hint=hint)
        self.status = status


class ApiAwayError(OutriderError):
    """Nothing answers at the API's address, or not in time."""


@dataclass(frozen=True, slots=True)
class Client:
    """Reads with the viewer's language, writes with the viewer's token."""

    base_url: str
    language: Language = "en"
    token: str = ""

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at ``/api/v1`` + path, at most a few seconds old. Raises ApiError, ApiAwayError."""
        pairs: list[tuple[str, str]] = [("lang", self.language)]
        for name, value in query.items():
            values = value if isinstance(value, list | tuple) else [value]
            pairs += [(name, str(each)) for each in values if each is not None]
        return _kept(self.base_url, path, tuple(pairs), self.token)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Change something; what was kept is forgotten. Raises ApiError, ApiAwayError."""
        answer = _ask("POST", self.base_url, path, (("lang", self.language),), self.token, body)
        _kept.clear()
        return answer


@st.cache_resource(show_spinner=False)
def _connections() -> httpx.Client:
    # Proxy settings of the environment are for the internet; the API is ours and near.
    return httpx.Client(timeout=_TIMEOUT, trust_env=False)


@st.cache_data(ttl=KEPT_SECONDS, max_entries=256, show_spinner=False)
def _kept(base_url: str, path: str, query: Query, token: str) -> Any:
    return _ask("GET", base_url, path, query, token)


def _ask(method: str, base_url: str, path: str, query: Query, token: str, body: Mapping[str, Any] | None = None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{base_url.rstrip('/')}{_PREFIX}{path}"
    try:
        answer = _connections().request(method, url, params=list(query), json=body, headers=headers)
    except httpx.HTTPError as error:
        raise ApiAwayError(f"{base_url}: {error or type(error).__name__}") from error
    if answer.is_success:
        return answer.json()
    try:
        said = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        said = {"message": f"{base_url} answered {answer.status_code}.", "hint": ""}
    raise ApiError(said["message"], status=answer.status_code, hint=said.get("hint", ""))
