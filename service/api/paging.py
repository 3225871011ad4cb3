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
Limit = Annotated[int, Query(ge=1, le=1000, description="entries per result page")]
Cursor = Annotated[str, Query(description="next_cursor of the previous result page; empty for the first")]


_MOST_READ = 1000  # entries per read for a filter that rarely matches


def position_in(cursor: str) -> Position | None:
    """Key after which the result page starts, None for the first. Raises UsageError for an unknown cursor."""
    if not cursor:
        return None
    try:
        at, number = urlsafe_b64decode(cursor.encode()).decode().split(" ", 1)
        position = Position(datetime.fromisoformat(at), number)
    except (binascii.Error, ValueError) as error:
        raise _unknown(cursor) from error
    if position.at.tzinfo is None:
        raise _unknown(cursor)
    return position


def cursor_of(entry: object) -> str:
    """Cursor of the result page that starts after an entry."""
    position = position_of(entry)
    return urlsafe_b64encode(f"{position.at.isoformat()} {position.id}".encode()).decode()


def by_key(
    read: Callable[[Position | None, int], Sequence[Item]], keep: Callable[[Item], bool] | None, cursor: str, limit: int
) -> tuple[list[Item], str | None]:
    """One result page of a stored list and the cursor of the next, None on the last.

    ``read(after, n)`` returns n entries after a key, in order. Fewer mean the end of the list.
    """
    position, count = position_in(cursor), limit + 1
    matches: list[Item] = []
    while True:
        batch = read(position, count)
        matches += batch if keep is None else [item for item in batch if keep(item)]
        if len(matches) > limit or len(batch) < count:
            break
        position, count = position_of(batch[-1]), min(2 * count, _MOST_READ)
    following = cursor_of(matches[limit - 1]) if len(matches) > limit else None
    return matches[:limit], following


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
        batch = read(count)
        matches = list(batch) if keep is None else [item for item in batch if keep(item)]
        if len(matches) >= wanted or len(batch) < count:
            break
        count *= 2
    following = str(offset + limit) if len(matches) > offset + limit else None
    return matches[offset : offset + limit], following
