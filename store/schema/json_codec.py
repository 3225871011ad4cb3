"""JSON codec for frozen dataclasses, driven by their type hints.

Entities become their key, timestamps RFC 3339 with microseconds, dates ISO 8601, durations seconds, enums their value,
arrays lists with null for NaN. Unknown keys are ignored and missing keys take the field's default, so that rows of an
earlier release stay readable.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from outrider.errors import StoreError
from outrider.model import EntityRef

T = TypeVar("T")


def dumps(value: Any) -> str:
    """A dataclass (or a container of them) as JSON text."""
    return text_of(to_plain(value))


def text_of(plain: Any) -> str:
    """Plain values as JSON text in any encoding: lone surrogates are escaped."""
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)
    return text


def loads(kind: type[T], text: str) -> T:
    """Parses what ``dumps`` wrote. Raises StoreError if the text does not fit the type."""
    try:
        result: T = from_plain(kind, json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(
            f"A stored {kind.__name__} cannot be read: {error}.",
            hint="`outrider db check --deep` lists it; restore a backup: outrider db restore FILE --force",
        ) from error
    return result


def to_plain(value: Any) -> Any:
    """A value as dicts, lists, strings and numbers. Non-finite numbers become None."""
    if value is None or (isinstance(value, (bool, int)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, (float, np.generic)):
        plain = value.item() if isinstance(value, np.generic) else value
        return None if isinstance(plain, float) and not np.isfinite(plain) else plain
    if isinstance(value, EntityRef):
        return value.key
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, np.ndarray):
        return [to_plain(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {_key(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (Sequence, frozenset, set)):
        return [to_plain(item) for item in value]
    return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _key(key: Any) -> str:
    plain = to_plain(key)
    return plain if isinstance(plain, str) else repr(plain)


def from_plain(kind: Any, value: Any) -> Any:
    """The value converted to a type. Raises ValueError, TypeError, KeyError or AttributeError if it does not fit."""
    origin = get_origin(kind)
    if value is None and kind is not float:
        return None
    if origin in (Union, types.UnionType):
        return _from_union(get_args(kind), value)
    if kind is Any or origin is Literal:
        return value
    if origin is not None:
        return _from_container(origin, get_args(kind), value)
    return _from_scalar(kind, value)


def _from_container(origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    if origin is np.ndarray:
        return np.array([np.nan if item is None else item for item in value], dtype=np.float64)
    if issubclass(origin, Mapping):
        return {from_plain(arguments[0], key): from_plain(arguments[1], item) for key, item in value.items()}
    items = (from_plain(arguments[0], item) for item in value)
    return frozenset(items) if origin is frozenset else tuple(items)


def _from_scalar(kind: Any, value: Any) -> Any:
    if kind is float:
        return float("nan") if value is None else float(value)
    if kind is EntityRef:
        return EntityRef.from_key(value)
    if kind is datetime:
        return datetime.fromisoformat(value)
    if kind is date:
        return date.fromisoformat(value)
    if kind is timedelta:
        return timedelta(seconds=value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return _record(kind, value) if dataclasses.is_dataclass(kind) else value


def _record(kind: Any, value: Mapping[str, Any]) -> Any:
    fields = _fields(kind)
    return kind(**{name: from_plain(fields[name], item) for name, item in value.items() if name in fields})


def _from_union(choices: tuple[Any, ...], value: Any) -> Any:
    """Picks the only choice beside None, else the dataclass with the most required fields that are all present."""
    others = [choice for choice in choices if choice is not type(None)]
    if len(others) == 1:
        return from_plain(others[0], value)
    records: list[Any] = sorted(filter(dataclasses.is_dataclass, others), key=lambda choice: -len(_required(choice)))
    fitting = (record for record in records if isinstance(value, Mapping) and _required(record) <= set(value))
    record = next(fitting, None)
    return value if record is None else from_plain(record, value)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _required(kind: Any) -> frozenset[str]:
    missing = dataclasses.MISSING
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is missing and field.default_factory is missing
    )
