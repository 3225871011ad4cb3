"""Parsing of control request bodies: JSON objects, durations, seeds and entities."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from aiohttp import web

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef

MOST_SECONDS = 31 * 86400


async def body_of(request: web.Request) -> dict[str, Any]:
    """Returns the JSON object of a request. Raises UsageError for anything else."""
    try:
        body = await request.json()
    except ValueError as error:
        raise UsageError("the body is not JSON", hint="send a JSON object") from error
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object", hint='send an object such as {"id": "...", "kind": "cordon"}')
    return body


def needed(body: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a required key. Raises UsageError if it is missing."""
    if key not in body:
        raise UsageError(f"the body has no {key!r}", hint=f"add {key!r} to the JSON object")
    return body[key]


def duration(body: Mapping[str, Any], key: str) -> timedelta | None:
    """Returns a number of seconds, None if it is missing. Raises UsageError if it is invalid."""
    seconds = body.get(key)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"{key} {seconds!r} is not a number", hint="give a number such as 300")
    if not 0 <= seconds <= MOST_SECONDS:  # Python's JSON parser accepts Infinity and NaN
        raise UsageError(f"{key} {seconds!r} is out of range", hint=f"give a number from 0 to {MOST_SECONDS}")
    return timedelta(seconds=seconds)


def seed(body: Mapping[str, Any]) -> int:
    """Returns the random seed, 0 if it is missing. Raises UsageError if it is invalid."""
    drawn = body.get("seed", 0)
    if isinstance(drawn, bool) or not isinstance(drawn, int) or drawn < 0:
        raise UsageError(f"seed {drawn!r} is not a whole number", hint="give a number such as 7")
    return drawn


def entity(cluster: str, written: Any) -> EntityRef | str:
    """Parses an entity from an object, a key ``cluster/kind/namespace/name``, or a bare name.

    ``cluster`` is the default for objects without one. Raises UsageError if it is invalid.
    """
    if isinstance(written, Mapping):
        try:
            kind = EntityKind(str(written.get("kind")))
        except ValueError:
            known = ", ".join(kind.value for kind in EntityKind)
            raise UsageError(f"{written.get('kind')!r} is not a kind of entity", hint=f"kinds are: {known}") from None
        home = str(written.get("cluster") or cluster)
        return EntityRef(home, kind, written.get("namespace"), str(written.get("name")))
    text = str(written)
    if text.count("/") < 3:
        return text.rsplit("/", 1)[-1]
    try:
        return EntityRef.from_key(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an entity", hint="write cluster/kind/namespace/name") from error


def refusal(error: UsageError) -> web.Response:
    """Returns the error response of a refused request."""
    return web.json_response({"error": {"message": error.message, "hint": error.hint}}, status=400)
