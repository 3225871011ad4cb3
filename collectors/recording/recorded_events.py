"""Events of a recorded fleet: ``events.jsonl``, one per line."""

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
    """Yields the events of a fleet, none without the file. Raises UsageError naming file and line."""
    if not path.exists():
        return
    for number, line in lines(path):
        try:
            yield _event(json.loads(line.decode()), cluster, str(path), number)
        except NOT_AS_EXPECTED as error:
            raise UsageError(
                f"{path}:{number}: not an event: {describe_error(error)}",
                hint="expected at, kind, entity, code and text",
            ) from error


def _event(record: Mapping[str, Any], cluster: str, file: str, number: int) -> Event:
    entity = record["entity"]
    ref = EntityRef(
        str(entity.get("cluster") or cluster),
        EntityKind(entity["kind"]),
        entity.get("namespace") or None,
        str(entity["name"]),
    )
    at = from_unix(float(record["at"])) if isinstance(record["at"], int | float) else parse_rfc3339(str(record["at"]))
    code = str(record.get("code", ""))
    key = f"{record['kind']}/{ref.key}/{code}/{at.timestamp():.3f}/{number}"
    identity = hashlib.sha256(key.encode()).hexdigest()[:24]
    text = str(record.get("text", ""))
    attributes = {"message": text} if text else {}
    attributes |= {str(name): str(value) for name, value in dict(record.get("attributes") or {}).items()}
    attributes.pop(SOURCES, None)  # each source reports again
    return Event(identity, EventKind(record["kind"]), ref, at, str(record.get("source") or file), code, attributes, key)
