"""Pages of long lists: a limit, and a cursor that says where the next page begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from outrider.errors import UsageError

Item = TypeVar("Item")
Limit = Annotated[int, Query(ge=1, le=1000, description="entries on this page")]
Cursor = Annotated[str, Query(description="next_cursor of the page before; empty for the first page")]


def offset_of(cursor: str) -> int:
    """Where a page begins. Raises UsageError for a cursor that no page gave out."""
    if not cursor:
        return 0
    if not cursor.isdecimal():
        raise UsageError(f"{cursor!r} is not a cursor", hint="use next_cursor of the page before as it is")
    return int(cursor)


def page(
    read: Callable[[int], Sequence[Item]], keep: Callable[[Item], bool] | None, cursor: str, limit: int
) -> tuple[list[Item], str | None]:
    """One page and the cursor of the next, None on the last.

    ``read(n)`` gives the first n entries in order. With a filter more is read until the page is full or
    the list ends; what is read doubles, so a rare match costs at most twice the list.
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
