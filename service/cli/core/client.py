"""Writes go through the API: one place for authentication and audit."""

from __future__ import annotations

import getpass
import re
from typing import Annotated, Any

import typer

from outrider.errors import UnavailableError, UsageError
from service.cli.core.common import Context
from service.config import settings as settings_file
from service.config import tokens

Person = Annotated[
    str,
    typer.Option("--as", help="Name to record, for example ann. Default: the name of the system user.", metavar="NAME"),
]
_COMMANDS = {
    "alerts": "alerts list",
    "incidents": "incidents list",
    "actions": "remediate list",
    "plan": "capacity plan",
    "remediation": "remediate status",
}
_API_PATH = re.compile(r"GET /api/v1/(\w+) (?:lists|shows)")


def person_or_user(person: str) -> str:
    """The given name, else that of the system user; empty if there is none, as in some containers."""
    if person.strip():
        return person.strip()
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def write(context: Context, method: str, path: str, body: dict[str, Any] | None = None, *, user: str = "") -> Any:
    """Calls the API with the admin token, as ``user`` if given.

    Raises UnavailableError if no API responds, UsageError if it refuses.
    """
    import httpx  # noqa: PLC0415 - most commands only read the store

    settings = context.settings()
    base = f"http://{settings.api.host}:{settings.api.port}/api/v1"
    unreachable = UnavailableError(
        f"no API responds at {base}",
        hint=(
            "start it with outrider serve (or outrider demo), or give the configuration of the running one "
            "with --config; the demo uses .outrider/demo.yaml"
        ),
    )
    if not tokens.token_file(settings).exists() and settings.api.token_file is None:
        raise unreachable
    token = settings_file.read_secret(tokens.token_file(settings))
    try:
        response = httpx.request(
            method,
            base + path,
            json=body,
            params={"lang": context.language},
            headers=_headers(token, user),
            timeout=10,
        )
    except httpx.HTTPError as error:
        raise unreachable from error
    if response.is_success:
        return response.json()
    problem = response.json().get("error", {}) if "json" in response.headers.get("content-type", "") else {}
    message = problem.get("message") or f"the API returned status {response.status_code}"
    hint = _API_PATH.sub(_as_command, problem.get("hint") or "")
    if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise UnavailableError(message, hint=hint)
    raise UsageError(message, hint=hint)


def _as_command(match: re.Match[str]) -> str:
    """API path in a hint, translated to the equivalent command if there is one."""
    command = _COMMANDS.get(match[1])
    return f"outrider {command} shows" if command else match[0]


def _headers(token: str, user: str) -> dict[bytes, bytes]:
    """Token and name; a name need not be ASCII."""
    headers = {b"Authorization": f"Bearer {token}".encode()}
    return headers | {b"X-Outrider-User": user.encode()} if user else headers
