"""The happenings of a recorded fleet: ``events.jsonl``, a line each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collectors.events.deduplication import SOURCES
from collectors.recording.lines import NOT_AS_EXPECTED, describe_error, lines
from outrider.clock import from_unix, parse_rfc3339
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, Event, EventKind


def read_events(path: Path, cluster: str) -> Iterator[Event]:
    """The events of a fleet, none when there is no such file. Raises UsageError naming file and line."""
    if not path.exists():
        return
    for number, line in lines(path):
        try:
            yield _event(json.loads(line.decode()), cluster, str(path), number)
        except NOT_AS_EXPECTED as error:
            raise UsageError(
                f"{path}:{number}: no event: {describe_error(error)}", hint="expected at, kind, entity, code and text"
            ) from error


def _event(said: Mapping[str, Any], cluster: str, file: str, number: int) -> Event:
    entity = said["entity"]
    ref = EntityRef(
        str(entity.get("cluster") or cluster),
        EntityKind(entity["kind"]),
        entity.get("namespace") or None,
        str(entity["name"]),
    )
    at = from_unix(float(said["at"])) if isinstance(said["at"], int | float) else parse_rfc3339(str(said["at"]))
    code = str(said.get("code", ""))
    key = f"{said['kind']}/{ref.key}/{code}/{at.timestamp():.3f}/{number}"
    identity = hashlib.sha256(key.encode()).hexdigest()[:24]
    text = str(said.get("text", ""))
    attributes = {"message": text} if text else {}
    attributes |= {str(name): str(value) for name, value in dict(said.get("attributes") or {}).items()}
    attributes.pop(SOURCES, None)  # each door tells anew
    return Event(identity, EventKind(said["kind"]), ref, at, str(said.get("source") or file), code, attributes, key)
