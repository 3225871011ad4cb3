"""Webhook bodies as changes and change ends, by the table ``webhooks.yaml``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

import yaml

from collectors.events.redact import redacted
from collectors.kubernetes.actors import kind_of
from collectors.receive.json_paths import filled, first_filled, instant, text_at
from outrider.errors import UsageError
from outrider.records.change_log import ActorKind, ChangeEnd, ChangeStatus

_MOST_TEXT, _MOST_NAME = 400, 200
_TYPES = {"Bot": ActorKind.SYSTEM, "User": ActorKind.PERSON, "Organization": ActorKind.UNKNOWN}


@dataclass(frozen=True, slots=True)
class AnnouncedChange:
    """A change announced by a webhook, before its entity is resolved. ``at`` None: now."""

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
    """One delivery: the announced change, the reported end, and the names of the affected components."""

    names: tuple[str, ...]
    change: AnnouncedChange | None = None
    end: ChangeEnd | None = None


def parse_delivery(source: str, event: str, body: Any, now: datetime) -> Delivery | None:
    """Parses a delivery; None if the event is not a change. Raises UsageError for an invalid body."""
    table = _table()[source]
    spec = table.get(event)
    if spec is None:
        return None
    if not isinstance(body, Mapping):
        raise UsageError(
            f"the body of a {source} {event!r} event is not a JSON object", hint="send it as application/json"
        )
    for path, values in spec.get("only", {}).items():
        if text_at(body, path) not in values:
            return None
    names = tuple(dict.fromkeys(name for template in spec["names"] if (name := filled(template, body))))
    if not names:
        missing = ", ".join(spec["names"])
        raise UsageError(
            f"a {source} {event!r} event needs one of {missing}", hint="check that the webhook belongs to this tool"
        )
    return Delivery(names, _change(spec.get("change"), body), _end(spec.get("end"), body, now))


def events(source: str) -> tuple[str, ...]:
    """The supported events of a source."""
    return tuple(_table()[source])


def _change(spec: Mapping[str, Any] | None, body: Mapping[str, Any]) -> AnnouncedChange | None:
    if spec is None:
        return None
    texts = {name: first_filled(spec.get(name), body) for name in ("actor", "before", "after", "url", "text")}
    actor = texts["actor"][:_MOST_NAME]
    kind = kind_of(actor)
    if kind is ActorKind.UNKNOWN:
        kind = _TYPES.get(first_filled(spec.get("actor_type"), body), ActorKind.PERSON if actor else ActorKind.UNKNOWN)
    return AnnouncedChange(
        id=first_filled(spec["id"], body),
        code=spec["code"],
        at=instant(first_filled(spec.get("at"), body)),
        actor=actor,
        actor_kind=kind,
        before=redacted(texts["before"])[:_MOST_TEXT].strip(),
        after=redacted(texts["after"])[:_MOST_TEXT].strip(),
        url=texts["url"][:_MOST_TEXT] if texts["url"].startswith(("http://", "https://")) else "",
        text=redacted(texts["text"].split("\n", 1)[0])[:_MOST_TEXT],
    )


def _end(spec: Mapping[str, Any] | None, body: Mapping[str, Any], now: datetime) -> ChangeEnd | None:
    state = None if spec is None else spec["states"].get(first_filled(spec["state"], body))
    if spec is None or state is None:
        return None
    when = instant(first_filled(spec.get("at"), body)) or now
    because = redacted(first_filled(spec.get("because"), body))[:_MOST_TEXT]
    return ChangeEnd(first_filled(spec["id"], body), ChangeStatus(state), min(when, now), because)


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files("collectors.receive").joinpath("webhooks.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return table
