"""Pages by key over rows and over what is kept in memory: the same places give the same pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import sqlalchemy as sa

from outrider.places import Place, place_of
from store.schema import micros

Entry = TypeVar("Entry")


def beyond(
    asked: sa.Select[Any], at: sa.Column[Any], number: sa.Column[Any], place: Place | None, *, rising: bool = False
) -> sa.Select[Any]:
    """What comes after a place of a list that is newest first; ``rising`` ids stand in order inside an instant."""
    if place is None:
        return asked
    time = micros(place.at)
    mark: int | str = int(place.id) if isinstance(number.type, sa.Integer) else place.id
    return asked.where(at <= time, sa.or_(at < time, number > mark if rising else number < mark))


def page(entries: Iterable[Entry], place: Place | None, limit: int, *, rising: bool = False) -> tuple[Entry, ...]:
    """Entries newest first, those after the place."""

    def number(one: Place, like: object) -> int | str:
        return int(one.id) if isinstance(getattr(like, "id", None), int) else one.id

    placed = [(found.at, number(found, entry), entry) for entry in entries for found in (place_of(entry),)]
    placed.sort(key=lambda item: item[1], reverse=not rising)
    placed.sort(key=lambda item: item[0], reverse=True)
    if place is not None:
        placed = [item for item in placed if item[0] < place.at or (item[0] == place.at and _past(item, place, rising))]
    return tuple(entry for _, _, entry in placed[:limit])


def _past(item: tuple[Any, Any, object], place: Place, rising: bool) -> bool:
    mark = int(place.id) if isinstance(item[1], int) else place.id
    return bool(item[1] > mark if rising else item[1] < mark)
