"""Bodies of webhooks as changes and their ends, by the table ``webhooks.yaml``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import yaml

from collectors.events.redact import redacted
from collectors.kubernetes.actors import kind_of
from outrider.errors import UsageError
from outrider.records.change_log import ActorKind, ChangeEnd, Ended

_PATH = re.compile(r"\{([^{}]+)\}")
_MOST_TEXT, _MOST_NAME = 400, 200
_UNFILLED = "<no value>"  # what a Go template writes for a field that is not there
_ZONE = re.compile(r" ([+-]\d{2}:?\d{2})$")
_TYPES = {"Bot": ActorKind.SYSTEM, "User": ActorKind.PERSON, "Organization": ActorKind.UNKNOWN}


@dataclass(frozen=True, slots=True)
class AnnouncedChange:
    """What a webhook tells of a change, before it is known which component it is about. ``at`` None: now."""

    id: str
    code: str
    at: datetime | None
    actor: str = ""
    actor_kind: ActorKind = ActorKind.UNKNOWN
    before: str = ""
    after: str = ""
    url: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery: the change it announces, the end it tells, and the names of what it is about."""

    names: tuple[str, ...]
    change: AnnouncedChange | None = None
    end: ChangeEnd | None = None


def parse_delivery(source: str, event: str, body: Any, now: datetime) -> Delivery | None:
    """What a delivery of an event says; None for an event that is no change. Raises UsageError for an odd body."""
    table = _table()[source]
    spec = table.get(event)
    if spec is None:
        return None
    if not isinstance(body, Mapping):
        raise UsageError(
            f"the body of a {source} {event!r} event is no JSON object", hint="send it as application/json"
        )
    for path, values in spec.get("only", {}).items():
        if _at(body, path) not in values:
            return None
    names = tuple(dict.fromkeys(name for one in spec["names"] if (name := _filled(one, body))))
    if not names:
        missing = ", ".join(spec["names"])
        raise UsageError(
            f"a {source} {event!r} event needs one of {missing}", hint="is this the webhook of another tool?"
        )
    return Delivery(names, _change(spec.get("change"), body), _end(spec.get("end"), body, now))


def events(source: str) -> tuple[str, ...]:
    """The events of a source that are read."""
    return tuple(_table()[source])


def _change(spec: Mapping[str, Any] | None, body: Mapping[str, Any]) -> AnnouncedChange | None:
    if spec is None:
        return None
    told = {name: _told(spec.get(name), body) for name in ("actor", "before", "after", "url", "text")}
    actor = told["actor"][:_MOST_NAME]
    kind = kind_of(actor)
    if kind is ActorKind.UNKNOWN:
        kind = _TYPES.get(_told(spec.get("actor_type"), body), ActorKind.PERSON if actor else ActorKind.UNKNOWN)
    return AnnouncedChange(
        id=_told(spec["id"], body),
        code=spec["code"],
        at=instant(_told(spec.get("at"), body)),
        actor=actor,
        actor_kind=kind,
        before=redacted(told["before"])[:_MOST_TEXT].strip(),
        after=redacted(told["after"])[:_MOST_TEXT].strip(),
        url=told["url"][:_MOST_TEXT] if told["url"].startswith(("http://", "https://")) else "",
        text=redacted(told["text"].split("\n", 1)[0])[:_MOST_TEXT],
    )


def _end(spec: Mapping[str, Any] | None, body: Mapping[str, Any], now: datetime) -> ChangeEnd | None:
    state = None if spec is None else spec["states"].get(_told(spec["state"], body))
    if spec is None or state is None:
        return None
    when = instant(_told(spec.get("at"), body)) or now
    because = redacted(_told(spec.get("because"), body))[:_MOST_TEXT]
    return ChangeEnd(_told(spec["id"], body), Ended(state), min(when, now), because)


def instant(said: str) -> datetime | None:
    """A time as webhooks write it (RFC 3339, or GitLab's ``2021-04-28 21:50:00 +0200``), None when it is none."""
    try:
        found = datetime.fromisoformat(_ZONE.sub(r"\1", said.replace(" UTC", "+00:00")))
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def _told(templates: str | Sequence[str] | None, body: Mapping[str, Any]) -> str:
    """The first template that is filled; empty when none is."""
    if templates is None:
        return ""
    offered = [templates] if isinstance(templates, str) else templates
    return next((said for one in offered if (said := _filled(one, body))), "")


def _filled(template: str, body: Mapping[str, Any]) -> str:
    """A template with every path filled; empty when one of them is missing."""
    missing = False

    def fill(match: re.Match[str]) -> str:
        nonlocal missing
        said = _at(body, match[1])
        missing |= not said
        return said

    text = _PATH.sub(fill, template)
    return "" if missing else text


def _at(body: Any, path: str) -> str:
    """The text or number at a path; empty for anything else."""
    found = body
    for part in path.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        elif (
            isinstance(found, list) and found and part.lstrip("-").isdecimal() and -len(found) <= int(part) < len(found)
        ):
            found = found[int(part)]
        else:
            return ""
    if isinstance(found, bool) or not isinstance(found, str | int) or found == _UNFILLED:
        return ""
    return str(found)


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files("collectors.receive").joinpath("webhooks.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return found
