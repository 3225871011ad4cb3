"""Writes go through the API: one place for authentication and audit."""

from __future__ import annotations

from typing import Any

import httpx

from outrider.errors import UnavailableError, UsageError
from service.cli.common import Context
from service.settings import read_secret
from service.tokens import token_file


def write(context: Context, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Call the API with the admin token. Raises UnavailableError when no API answers, UsageError when it refuses."""
    settings = context.settings()
    base = f"http://{settings.api.host}:{settings.api.port}/api/v1"
    away = UnavailableError(
        f"no API answers at {base}", hint="start it with: outrider serve, or name its configuration with --config"
    )
    if not token_file(settings).exists() and settings.api.token_file is None:
        raise away
    token = read_secret(token_file(settings))
    try:
        answer = httpx.request(
            method,
            base + path,
            json=body,
            params={"lang": context.language},
            headers={"Authorization": f"Bearer {token}"},
            timeout=10,
        )
    except httpx.HTTPError as error:
        raise away from error
    if answer.is_success:
        return answer.json()
    said = answer.json().get("error", {}) if "json" in answer.headers.get("content-type", "") else {}
    message = said.get("message") or f"the API answered {answer.status_code}"
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise UnavailableError(message, hint=said.get("hint", ""))
    raise UsageError(message, hint=said.get("hint", ""))
