"""Requests in flight in the response of an engine's load endpoint: paths into the response, from the adapter. Pure.

``loads.*.num_running_reqs + loads.*.num_waiting_reqs``: names joined by dots descend into the response, ``*`` stands
for every item of a list or mapping, ``+`` adds. The values must be numbers of requests. true and false count as 1 and
0, so that ``slots.*.busy`` is the number of busy slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

Path = tuple[str, ...]
Load = tuple[tuple[Path, ...], ...]  # spellings, newest first; each is a list of paths to sum

EVERY = "*"
SERVER_LOAD = ("server_load",)  # default if an adapter names none
# Names used before paths were supported; users' adapters may still contain them.
_NAMED = {"sglang_loads": ("loads.*.num_running_reqs + loads.*.num_waiting_reqs", "*.num_reqs")}


def invalid_paths(spellings: tuple[str, ...]) -> Iterator[str]:
    """Yields an error sentence for each invalid path in an adapter file's ``load_as``."""
    for spelling in spellings:
        try:
            load_of_spellings((spelling,))
        except ValueError as error:
            yield str(error)


@cache
def load_of_spellings(spellings: tuple[str, ...]) -> Load:
    """Parses the paths of an adapter file's ``load_as``. Raises ValueError that names the invalid path."""
    plain = [text for spelling in spellings for text in _NAMED.get(spelling, (spelling,))]
    return tuple(tuple(_path(part, text) for part in text.split("+")) for text in plain)


def _path(text: str, whole: str) -> Path:
    names = tuple(name.strip() for name in text.strip().split("."))
    if not all(names) or any(EVERY in name and name != EVERY for name in names):
        syntax = "names joined by dots, * for every item of a list, + between summands"
        raise ValueError(f"{whole!r} is not a path into a response; expected {syntax}, such as loads.*.num_reqs")
    return names


def requests_in_flight(load: Load, document: Any) -> float | None:
    """Sum by the first spelling that applies to a parsed response; None if none gives numbers of requests."""
    for paths in load:
        try:
            total = sum(_count(value) for path in paths for value in _values_at(document, path))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if total < math.inf:
            return total
    return None


def _values_at(document: Any, path: Path) -> Iterator[Any]:
    """Values at a path. Raises KeyError or TypeError if it does not exist, ValueError if it has no item."""
    level = [document]
    for name in path:
        if name == EVERY:
            level = [item for value in level for item in _items(value)]
        else:
            level = [_mapping(item)[name] for item in level]
    yield from level


def _items(document: Any) -> list[Any]:
    items = list(document.values()) if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise TypeError("neither a list nor a mapping")
    if not items:
        raise ValueError("no item")  # an empty list means no data, not 0
    return items


def _mapping(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise TypeError("no mapping")
    return document


def _count(value: Any) -> float:
    if not isinstance(value, int | float):
        raise TypeError("no number")
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError("not a number of requests")
    return number
