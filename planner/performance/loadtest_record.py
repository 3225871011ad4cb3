"""A load test as JSON text: kept while the store is unavailable, and imported later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from math import inf, isfinite
from typing import Any

from outrider.clock import parse_rfc3339, rfc3339
from outrider.errors import UsageError
from outrider.model import Interval
from planner.performance.queueing import Slo
from planner.performance.saturation_point import LoadPoint

FORMAT = "outrider_load_test"
VERSION = 1
_TEXTS = ("service", "gpu_type", "model", "engine_version", "source")
_WHOLE = ("tensor_parallel", "pipeline_parallel")
_FIELDS = frozenset(LoadPoint.__slots__)


@dataclass(frozen=True, slots=True)
class LoadTestRecord:
    """Steps and setup of a test, its end, its validity, and the SLO its saturation point was searched for."""

    service: str
    namespace: str | None
    gpu_type: str
    tensor_parallel: int
    pipeline_parallel: int
    model: str
    engine_version: str
    source: str
    measured_at: datetime
    valid: timedelta
    slo: Slo
    points: tuple[LoadPoint, ...]


def text(test: LoadTestRecord) -> str:
    """Returns one JSON document; ``read`` restores the same test."""
    slo = {name: value for name, value in asdict(test.slo).items() if value != inf}
    head = {name: getattr(test, name) for name in (*_TEXTS, "namespace", *_WHOLE)}
    body = {
        FORMAT: VERSION,
        **head,
        "measured_at": rfc3339(test.measured_at),
        "valid_seconds": test.valid.total_seconds(),
        "slo": slo,
        "steps": [_step(point) for point in test.points],
    }
    return json.dumps(body, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def read(content: str, source: str) -> LoadTestRecord | None:
    """Parses the text of ``text``, None for anything else. Raises UsageError if it is damaged."""
    try:
        document = json.loads(content)
    except json.JSONDecodeError:
        return None
    if not isinstance(document, Mapping) or FORMAT not in document:
        return None
    if document[FORMAT] != VERSION:
        hint = "import it with the version that wrote it"
        raise UsageError(f"{source} has version {document[FORMAT]!r}; supported is {VERSION}", hint=hint)
    try:
        return LoadTestRecord(
            **{name: _of(document, name, str) for name in _TEXTS},
            **{name: _of(document, name, int) for name in _WHOLE},
            namespace=None if document["namespace"] is None else _of(document, "namespace", str),
            measured_at=parse_rfc3339(_of(document, "measured_at", str)),
            valid=timedelta(seconds=float(_of(document, "valid_seconds", (int, float)))),
            slo=Slo(**{str(name): float(value) for name, value in _of(document, "slo", dict).items()}),
            points=tuple(_point(step) for step in _of(document, "steps", list)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{source} is damaged: {reason}", hint="use the unmodified file") from error


def _step(point: LoadPoint) -> dict[str, Any]:
    values = {name: getattr(point, name) for name in LoadPoint.__slots__ if name != "intervals"}
    spans = {name: [span.low, span.high] for name, span in point.intervals.items()}
    return {**{name: value for name, value in values.items() if value is not None}, "intervals": spans}


def _point(step: Any) -> LoadPoint:
    if not isinstance(step, Mapping) or not set(step) <= _FIELDS:
        raise ValueError("a step has unknown fields")
    numbers = {name: value for name, value in step.items() if name != "intervals"}
    if not all(isinstance(value, (int, float)) and isfinite(value) for value in numbers.values()):
        raise ValueError("a step has a value that is not a number")
    spans = {name: Interval(*span) for name, span in dict(step.get("intervals", {})).items()}
    return LoadPoint(**numbers, intervals=spans)


def _of(document: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = document[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}")
    return value
