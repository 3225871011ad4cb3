"""Business KPIs that their owners push: entries checked one by one, values held until the next one. Pure.

A KPI ``orders`` of a service becomes its signal ``kpi_orders``. ``svc_kpi_value`` has it too when it is the
service's main KPI: the one that the configuration names, else its only one.
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
_FUTURE = timedelta(minutes=1)  # clocks of senders differ
_MOST_NAMES = 50  # KPIs of one service


@dataclass(frozen=True, slots=True)
class Kpi:
    """One value. ``service`` is the entity's key; ``at`` unix seconds, None: when the engine takes it."""

    name: str
    service: str
    value: float
    at: float | None = None
    unit: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KpiProblem:
    """Why an entry, counted from 0, is refused."""

    index: int
    error: str
    hint: str


@dataclass(frozen=True, slots=True)
class KpiLimits:
    """What is taken: entries of a request, and the age of a value."""

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
    """The entries that can be used, and what is wrong with each of the others.

    ``find`` gives the services of a name (and namespace, cluster); ``newest`` the instant of the newest value
    known of a (service key, KPI).
    """
    found: list[Kpi] = []
    problems: list[KpiProblem] = []
    seen: dict[tuple[str, str], float] = dict(newest)
    inside: set[tuple[str, str, float | None]] = set()
    for index, entry in enumerate(entries):
        try:
            kpi = _read(entry, now, find, limits.late)
            place = kpi.service, kpi.name
            if (*place, kpi.at) in inside:
                raise _RefusedEntryError(  # noqa: TRY301 - one place makes the answer
                    f"a second value of {kpi.name} at that instant",
                    "send one value an instant; put a region into the name",
                )
            if kpi.at is not None and kpi.at <= seen.get(place, -math.inf):
                raise _RefusedEntryError(  # noqa: TRY301
                    f"a value of {kpi.name} that is as new or newer is here already", "send values in order of time"
                )
        except _RefusedEntryError as refused:
            problems.append(KpiProblem(index, refused.error, refused.hint))
            continue
        inside.add((*place, kpi.at))
        if kpi.at is not None:
            seen[place] = kpi.at
        found.append(kpi)
    return found, problems


def _read(
    entry: Any,
    now: datetime,
    find: Callable[[str, str | None, str | None], Sequence[EntityRef]],
    late: timedelta,
) -> Kpi:
    if not isinstance(entry, dict):
        raise _RefusedEntryError("expected an object with name, service and value", "see the how-to of the doors")
    for key in entry:
        if key not in _KEYS:
            raise _RefusedEntryError(f"unknown key {key!r}", f"known are {', '.join(sorted(_KEYS))}")
    name, service, unit, labels = _texts(entry)
    value = entry.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedEntryError(f"value {value!r} is no number", "leave the entry out when there is no value")
    if not math.isfinite(value):
        raise _RefusedEntryError(f"value {value!r} is not finite", "leave the entry out when there is no value")
    at = _instant(entry.get("at"), now, late)
    entities = find(service, labels.get("namespace"), labels.get("cluster"))
    if not entities:
        raise _RefusedEntryError(
            f"no service is named {service!r}",
            "GET /api/v1/services lists those that are watched; name others under receive.kpi_services",
        )
    if len(entities) > 1:
        places = ", ".join(sorted(f"{one.cluster}/{one.namespace or ''}" for one in entities))
        raise _RefusedEntryError(f"several services are named {service!r}: {places}", "add labels: {namespace: ...}")
    facts = {one: text for one, text in labels.items() if one not in _OF_ENTITY}
    return Kpi(name, entities[0].key, float(value), None if at is None else at.timestamp(), unit, facts)


def _texts(entry: Mapping[str, Any]) -> tuple[str, str, str, dict[str, str]]:
    name, service, unit, labels = entry.get("name"), entry.get("service"), entry.get("unit") or "", entry.get("labels")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _RefusedEntryError(
            f"name {name!r} is no name of a KPI", "letters, digits and _, such as orders_per_minute"
        )
    if not isinstance(service, str) or not service or "/" in service or len(service) > 253:
        raise _RefusedEntryError(f"service {service!r} is no name of a service", "the name that its targets bear")
    if not isinstance(unit, str) or len(unit) > 32:
        raise _RefusedEntryError(f"unit {unit!r} is no unit", "a short text such as orders or EUR")
    labels = {} if labels is None else labels
    if not isinstance(labels, dict) or not all(isinstance(one, str) for pair in labels.items() for one in pair):
        raise _RefusedEntryError("labels are no mapping of texts", 'write {"team": "search"}')
    if len(labels) > 20 or any(len(text) > 200 for text in labels.values()):
        raise _RefusedEntryError("there are too many or too long labels", "20 labels of 200 characters at most")
    if any("/" in labels.get(one, "") for one in _OF_ENTITY):
        raise _RefusedEntryError("a namespace or cluster cannot hold '/'", "name it as the service's targets do")
    return name, service, unit, labels


def _instant(given: Any, now: datetime, late: timedelta) -> datetime | None:
    if given is None:
        return None
    try:
        at = parse_rfc3339(given) if isinstance(given, str) else from_unix(float(given))
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise _RefusedEntryError(f"at {given!r} is no instant", "RFC 3339 with a zone, or unix seconds") from error
    if at > now + _FUTURE:
        raise _RefusedEntryError(f"at {given!r} lies in the future", "check the sender's clock and zone")
    if at < now - late:
        raise _RefusedEntryError(
            f"at {given!r} is older than {format_duration(late)}", "send sooner, or raise receive.kpi_late"
        )
    return at


def encode(kpis: Sequence[Kpi]) -> bytes:
    """A block of KPIs."""
    return json.dumps([asdict(kpi) for kpi in kpis]).encode()


def decode(payload: bytes) -> list[Kpi]:
    """Read a block back. Raises ValueError when it is none."""
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
    """The newest value of every KPI. Not for two threads at a time."""

    def __init__(self, hold: timedelta, main: Mapping[str, str]) -> None:
        """A value counts for ``hold`` after its instant; ``main`` names the main KPI of a service."""
        self._hold = hold
        self._main = dict(main)
        self._values: dict[EntityRef, dict[str, _Value]] = {}
        self._columns: dict[EntityRef, tuple[tuple[SignalKey, ...], tuple[EntityRef, ...]]] = {}

    def add(self, kpi: Kpi, now: datetime) -> bool:
        """Take a value; False when a newer one is here, or when the service has too many."""
        entity = EntityRef.from_key(kpi.service)
        at = now if kpi.at is None else from_unix(kpi.at)
        known = self._values.setdefault(entity, {})
        held = known.get(kpi.name)
        if (held is None and len(known) >= _MOST_NAMES) or (held is not None and held.at >= at):
            return False
        unit = {f"{catalog.KPI_PREFIX}{kpi.name}_unit": kpi.unit} if kpi.unit else {}
        known[kpi.name] = _Value(kpi.value, at, {**kpi.labels, **unit})
        return True

    def batches(self, now: datetime) -> tuple[SampleBatch, ...]:
        """A batch for every service with a value that counts; columns are the same objects every round."""
        found = []
        for entity, values in list(self._values.items()):
            for name in [name for name, held in values.items() if now - held.at > self._hold]:
                del values[name]
            if not values:
                del self._values[entity]
                self._columns.pop(entity, None)
                continue
            found.append(self._batch(entity, values))
        return tuple(found)

    def facts(self) -> dict[EntityRef, dict[str, str]]:
        """The labels of the services that have KPIs."""
        return {
            entity: {name: text for held in values.values() for name, text in held.labels.items()}
            for entity, values in self._values.items()
        }

    def _batch(self, entity: EntityRef, values: Mapping[str, _Value]) -> SampleBatch:
        names = sorted(values)
        main = self._main.get(entity.name) or (names[0] if len(names) == 1 else None)
        numbers = [values[name].value for name in names]
        keys = tuple(SignalKey(catalog.KPI_PREFIX + name) for name in names)
        if main is not None and main in values:
            keys, numbers = (*keys, MAIN), [*numbers, values[main].value]
        held = self._columns.get(entity)
        if held is None or held[0] != keys:
            held = self._columns[entity] = (keys, (entity,))
        row = np.array([numbers], dtype=np.float64)
        status = np.full(row.shape, CellStatus.PRESENT, dtype=np.uint8)
        newest = max(one.at for one in values.values())
        return SampleBatch("kpi", newest, EntityKind.SERVICE, held[0], held[1], row, status)
