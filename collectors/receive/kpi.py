"""Pushed business KPIs: entries checked one by one, values held until the next one. Pure.

A KPI ``orders`` of a service becomes its signal ``kpi_orders``. It is also ``svc_kpi_value`` if it is the service's
main KPI: the configured one, else its only one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from outrider.clock import from_unix, parse_rfc3339
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from outrider.vocabulary import catalog
from outrider.vocabulary.units import format_duration

MAIN = SignalKey("svc_kpi_value")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,99}")
_KEYS = {"name", "service", "value", "at", "unit", "labels"}
_OF_ENTITY = ("namespace", "cluster")
_FUTURE = timedelta(minutes=1)  # clock skew of senders
_MOST_NAMES = 50  # KPIs per service


@dataclass(frozen=True, slots=True)
class Kpi:
    """One value. ``service`` is the entity's key; ``at`` in unix seconds, None: the time of the round that reads it."""

    name: str
    service: str
    value: float
    at: float | None = None
    unit: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KpiProblem:
    """Reason for rejecting an entry; ``index`` counts from 0."""

    index: int
    error: str
    hint: str


@dataclass(frozen=True, slots=True)
class KpiLimits:
    """Limits: entries per request, and the age of a value."""

    most: int = 10_000
    late: timedelta = timedelta(minutes=10)


class _RefusedEntryError(Exception):
    def __init__(self, error: str, hint: str) -> None:
        super().__init__(error)
        self.error, self.hint = error, hint


def check(
    entries: Sequence[Any],
    *,
    now: datetime,
    find: Callable[[str, str | None, str | None], Sequence[EntityRef]],
    newest: Mapping[tuple[str, str], float],
    limits: KpiLimits,
) -> tuple[list[Kpi], list[KpiProblem]]:
    """Valid entries, and the problem of each invalid one.

    ``find`` returns the services of a name (and namespace, cluster). ``newest`` is the time of the newest known value
    of a (service key, KPI).
    """
    valid: list[Kpi] = []
    problems: list[KpiProblem] = []
    newest_by_kpi: dict[tuple[str, str], float] = dict(newest)
    inside: set[tuple[str, str, float | None]] = set()
    for index, entry in enumerate(entries):
        try:
            kpi = _read(entry, now, find, limits.late)
            key = kpi.service, kpi.name
            if (*key, kpi.at) in inside:
                raise _RefusedEntryError(  # noqa: TRY301 - one handler builds the response
                    f"duplicate value of {kpi.name} at that time",
                    "send one value per timestamp; put a region into the name",
                )
            if kpi.at is not None and kpi.at <= newest_by_kpi.get(key, -math.inf):
                raise _RefusedEntryError(  # noqa: TRY301
                    f"a value of {kpi.name} with the same or a later time is stored already",
                    "send values in time order",
                )
        except _RefusedEntryError as refused:
            problems.append(KpiProblem(index, refused.error, refused.hint))
            continue
        inside.add((*key, kpi.at))
        if kpi.at is not None:
            newest_by_kpi[key] = kpi.at
        valid.append(kpi)
    return valid, problems


def _read(
    entry: Any,
    now: datetime,
    find: Callable[[str, str | None, str | None], Sequence[EntityRef]],
    late: timedelta,
) -> Kpi:
    if not isinstance(entry, dict):
        raise _RefusedEntryError(
            "expected an object with name, service and value", "see the how-to on ingest endpoints"
        )
    for key in entry:
        if key not in _KEYS:
            raise _RefusedEntryError(f"unknown key {key!r}", f"valid keys: {', '.join(sorted(_KEYS))}")
    name, service, unit, labels = _texts(entry)
    value = entry.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedEntryError(f"value {value!r} is not a number", "omit the entry if there is no value")
    if not math.isfinite(value):
        raise _RefusedEntryError(f"value {value!r} is not finite", "omit the entry if there is no value")
    at = _instant(entry.get("at"), now, late)
    entities = find(service, labels.get("namespace"), labels.get("cluster"))
    if not entities:
        raise _RefusedEntryError(
            f"unknown service {service!r}",
            "GET /api/v1/services lists the monitored ones; add others under receive.kpi_services",
        )
    if len(entities) > 1:
        candidates = ", ".join(sorted(f"{entity.cluster}/{entity.namespace or ''}" for entity in entities))
        raise _RefusedEntryError(
            f"several services are named {service!r}: {candidates}", "add labels: {namespace: ...}"
        )
    facts = {entity: text for entity, text in labels.items() if entity not in _OF_ENTITY}
    return Kpi(name, entities[0].key, float(value), None if at is None else at.timestamp(), unit, facts)


def _texts(entry: Mapping[str, Any]) -> tuple[str, str, str, dict[str, str]]:
    name, service, unit, labels = entry.get("name"), entry.get("service"), entry.get("unit") or "", entry.get("labels")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _RefusedEntryError(
            f"name {name!r} is not a valid KPI name", "use letters, digits and _, such as orders_per_minute"
        )
    if not isinstance(service, str) or not service or "/" in service or len(service) > 253:
        raise _RefusedEntryError(
            f"service {service!r} is not a valid service name", "use the service name of its targets"
        )
    if not isinstance(unit, str) or len(unit) > 32:
        raise _RefusedEntryError(f"unit {unit!r} is not a valid unit", "use a short text such as orders or EUR")
    labels = {} if labels is None else labels
    if not isinstance(labels, dict) or not all(isinstance(value, str) for pair in labels.items() for value in pair):
        raise _RefusedEntryError("labels are not a mapping of strings", 'write {"team": "search"}')
    if len(labels) > 20 or any(len(text) > 200 for text in labels.values()):
        raise _RefusedEntryError("too many or too long labels", "use at most 20 labels of 200 characters")
    if any("/" in labels.get(value, "") for value in _OF_ENTITY):
        raise _RefusedEntryError("a namespace or cluster cannot contain '/'", "use the names of the service's targets")
    return name, service, unit, labels


def _instant(value: Any, now: datetime, late: timedelta) -> datetime | None:
    if value is None:
        return None
    try:
        at = parse_rfc3339(value) if isinstance(value, str) else from_unix(float(value))
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise _RefusedEntryError(
            f"at {value!r} is not a timestamp", "use RFC 3339 with a zone, or unix seconds"
        ) from error
    if at > now + _FUTURE:
        raise _RefusedEntryError(f"at {value!r} is in the future", "check the sender's clock and zone")
    if at < now - late:
        raise _RefusedEntryError(
            f"at {value!r} is older than {format_duration(late)}", "send earlier, or increase receive.kpi_late"
        )
    return at


def encode(kpis: Sequence[Kpi]) -> bytes:
    """Encodes KPIs as a block."""
    return json.dumps([asdict(kpi) for kpi in kpis]).encode()


def decode(payload: bytes) -> list[Kpi]:
    """Decodes a block. Raises ValueError if it is not one."""
    try:
        return [Kpi(**entry) for entry in json.loads(payload)]
    except TypeError as error:
        raise ValueError(f"not a block of KPIs: {error}") from error


@dataclass(slots=True)
class _Value:
    value: float
    at: datetime
    labels: Mapping[str, str]


class KpiValues:
    """Newest value of every KPI. Not thread-safe."""

    def __init__(self, hold: timedelta, main: Mapping[str, str]) -> None:
        """A value is valid for ``hold`` after its time; ``main`` names the main KPI of a service."""
        self._hold = hold
        self._main = dict(main)
        self._values: dict[EntityRef, dict[str, _Value]] = {}
        self._columns: dict[EntityRef, tuple[tuple[SignalKey, ...], tuple[EntityRef, ...]]] = {}

    def add(self, kpi: Kpi, now: datetime) -> bool:
        """Adds a value; False if a newer one is known, or the service has too many KPIs."""
        entity = EntityRef.from_key(kpi.service)
        at = now if kpi.at is None else from_unix(kpi.at)
        values = self._values.setdefault(entity, {})
        previous = values.get(kpi.name)
        if (previous is None and len(values) >= _MOST_NAMES) or (previous is not None and previous.at >= at):
            return False
        unit = {f"{catalog.KPI_PREFIX}{kpi.name}_unit": kpi.unit} if kpi.unit else {}
        values[kpi.name] = _Value(kpi.value, at, {**kpi.labels, **unit})
        return True

    def batches(self, now: datetime) -> tuple[SampleBatch, ...]:
        """One batch for every service with a valid value; columns are the same objects every round."""
        batches = []
        for entity, values in list(self._values.items()):
            for name in [name for name, value in values.items() if now - value.at > self._hold]:
                del values[name]
            if not values:
                del self._values[entity]
                self._columns.pop(entity, None)
                continue
            batches.append(self._batch(entity, values))
        return tuple(batches)

    def facts(self) -> dict[EntityRef, dict[str, str]]:
        """Labels of the services with KPIs."""
        return {
            entity: {name: text for value in values.values() for name, text in value.labels.items()}
            for entity, values in self._values.items()
        }

    def _batch(self, entity: EntityRef, values: Mapping[str, _Value]) -> SampleBatch:
        names = sorted(values)
        main = self._main.get(entity.name) or (names[0] if len(names) == 1 else None)
        numbers = [values[name].value for name in names]
        keys = tuple(SignalKey(catalog.KPI_PREFIX + name) for name in names)
        if main is not None and main in values:
            keys, numbers = (*keys, MAIN), [*numbers, values[main].value]
        columns = self._columns.get(entity)
        if columns is None or columns[0] != keys:
            columns = self._columns[entity] = (keys, (entity,))
        row = np.array([numbers], dtype=np.float64)
        status = np.full(row.shape, CellStatus.PRESENT, dtype=np.uint8)
        newest = max(value.at for value in values.values())
        return SampleBatch("kpi", newest, EntityKind.SERVICE, columns[0], columns[1], row, status)
