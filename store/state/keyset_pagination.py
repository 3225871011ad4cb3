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
    query: sa.Select[Any],
    at: sa.Column[Any],
    number: sa.Column[Any],
    position: Position | None,
    *,
    rising: bool = False,
) -> sa.Select[Any]:
    """The entries after a position of a list, newest first. ``rising``: ids ascend within one timestamp."""
    if position is None:
        return query
    time, mark = micros(position.at), _mark(position, numbered=isinstance(number.type, sa.Integer))
    return query.where(at <= time, sa.or_(at < time, number > mark if rising else number < mark))


def page(entries: Iterable[Entry], position: Position | None, limit: int, *, rising: bool = False) -> tuple[Entry, ...]:
    """The entries after a position, newest first."""
    placed: list[tuple[datetime, Any, Entry]] = []
    for entry in entries:
        result, numbered = position_of(entry), isinstance(getattr(entry, "id", None), int)
        placed.append((result.at, _mark(result, numbered=numbered), entry))
    placed.sort(key=lambda item: item[1], reverse=not rising)
    placed.sort(key=lambda item: item[0], reverse=True)
    if position is not None:
        placed = [item for item in placed if _is_beyond(item, position, rising=rising)]
    return tuple(entry for _, _, entry in placed[:limit])


def _mark(position: Position, *, numbered: bool) -> int | str:
    """The id to compare with; for a position without a numeric id, a number below all others."""
    return (int(position.id) if position.id.isdecimal() else 0) if numbered else position.id


def _is_beyond(item: tuple[datetime, Any, object], position: Position, *, rising: bool) -> bool:
    at, number, _ = item
    mark: Any = _mark(position, numbered=isinstance(number, int))
    return at < position.at or (at == position.at and bool(number > mark if rising else number < mark))
