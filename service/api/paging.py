"""Pagination of lists: a limit, and a cursor for the next result page.

Lists of the stores use keyset pagination: each result page costs the same, and new entries do not shift it. Short
lists that are computed per request use offsets.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, TypeVar

from fastapi import Query

from outrider.errors import UsageError
from outrider.wire.cursors import Position, position_of

Item = TypeVar("Item")
Limit = Annotated[int, Query(ge=1, le=1000, description="entries on this page")]
Cursor = Annotated[str, Query(description="next_cursor of the page before; empty for the first page")]


_MOST_READ = 1000  # entries looked at in one go for a filter that seldom matches


def place_in(cursor: str) -> Position | None:
    """Key after which the result page starts, None for the first. Raises UsageError for an unknown cursor."""
    if not cursor:
        return None
    try:
        at, number = urlsafe_b64decode(cursor.encode()).decode().split(" ", 1)
        found = Position(datetime.fromisoformat(at), number)
    except (binascii.Error, ValueError) as error:
        raise _unknown(cursor) from error
    if found.at.tzinfo is None:
        raise _unknown(cursor)
    return found


def cursor_of(entry: object) -> str:
    """Cursor of the result page that starts after an entry."""
    place = position_of(entry)
    return urlsafe_b64encode(f"{place.at.isoformat()} {place.id}".encode()).decode()


def by_key(
    read: Callable[[Position | None, int], Sequence[Item]], keep: Callable[[Item], bool] | None, cursor: str, limit: int
) -> tuple[list[Item], str | None]:
    """One result page of a stored list and the cursor of the next, None on the last.

    ``read(after, n)`` returns n entries after a key, in order. Fewer mean the end of the list.
    """
    place, count = place_in(cursor), limit + 1
    kept: list[Item] = []
    while True:
        found = read(place, count)
        kept += found if keep is None else [item for item in found if keep(item)]
        if len(kept) > limit or len(found) < count:
            break
        place, count = position_of(found[-1]), min(2 * count, _MOST_READ)
    following = cursor_of(kept[limit - 1]) if len(kept) > limit else None
    return kept[:limit], following


def _unknown(cursor: str) -> UsageError:
    return UsageError(f"{cursor!r} is not a cursor", hint="pass next_cursor of the previous response unchanged")


def offset_of(cursor: str) -> int:
    """Offset of a result page. Raises UsageError for an unknown cursor."""
    if not cursor:
        return 0
    if not cursor.isdecimal():
        raise _unknown(cursor)
    return int(cursor)


def page(
    read: Callable[[int], Sequence[Item]], keep: Callable[[Item], bool] | None, cursor: str, limit: int
) -> tuple[list[Item], str | None]:
    """One result page of a computed list and the cursor of the next, None on the last.

    ``read(n)`` returns the first n entries in order. With a filter, reads double until the page is full or the list
    ends, so a rare match costs at most twice the list.
    """
    offset = offset_of(cursor)
    wanted = offset + limit + 1
    count = wanted
    while True:
        found = read(count)
        kept = list(found) if keep is None else [item for item in found if keep(item)]
        if len(kept) >= wanted or len(found) < count:
            break
        count *= 2
    following = str(offset + limit) if len(kept) > offset + limit else None
    return kept[offset : offset + limit], following
