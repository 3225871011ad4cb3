"""Keyset pagination over rows and over lists in memory, with identical result pages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from outrider.wire.cursors import Position, position_of
from store.schema.metadata import micros

Entry = TypeVar("Entry")


def beyond(
    asked: sa.Select[Any], at: sa.Column[Any], number: sa.Column[Any], place: Position | None, *, rising: bool = False
) -> sa.Select[Any]:
    """The entries after a position of a list, newest first. ``rising``: ids ascend within one timestamp."""
    if place is None:
        return asked
    time, mark = micros(place.at), _mark(place, numbered=isinstance(number.type, sa.Integer))
    return asked.where(at <= time, sa.or_(at < time, number > mark if rising else number < mark))


def page(entries: Iterable[Entry], place: Position | None, limit: int, *, rising: bool = False) -> tuple[Entry, ...]:
    """The entries after a position, newest first."""
    placed: list[tuple[datetime, Any, Entry]] = []
    for entry in entries:
        result, numbered = position_of(entry), isinstance(getattr(entry, "id", None), int)
        placed.append((result.at, _mark(result, numbered=numbered), entry))
    placed.sort(key=lambda item: item[1], reverse=not rising)
    placed.sort(key=lambda item: item[0], reverse=True)
    if place is not None:
        placed = [item for item in placed if _is_beyond(item, place, rising=rising)]
    return tuple(entry for _, _, entry in placed[:limit])


def _mark(place: Position, *, numbered: bool) -> int | str:
    """The id to compare with; for a position without a numeric id, a number below all others."""
    return (int(place.id) if place.id.isdecimal() else 0) if numbered else place.id


def _is_beyond(item: tuple[datetime, Any, object], place: Position, *, rising: bool) -> bool:
    at, number, _ = item
    mark: Any = _mark(place, numbered=isinstance(number, int))
    return at < place.at or (at == place.at and bool(number > mark if rising else number < mark))
