"""Requests in flight as an engine's load door tells them: paths into its answer, as its adapter writes them. Pure.

``loads.*.num_running_reqs + loads.*.num_waiting_reqs``: names joined by dots lead into the answer, ``*`` stands for
every item of a list or of a mapping, ``+`` joins what is summed. What is found must be numbers of requests; true
and false count as 1 and 0, so that ``slots.*.busy`` is how many are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

Path = tuple[str, ...]
Load = tuple[tuple[Path, ...], ...]  # spellings, the newest first; each the paths that are summed

EVERY = "*"
SERVER_LOAD = ("server_load",)  # where an adapter names none
# What stood for a path before there were paths; adapters of one's own may still say so.
_NAMED = {"sglang_loads": ("loads.*.num_running_reqs + loads.*.num_waiting_reqs", "*.num_reqs")}


def faults_of(spellings: tuple[str, ...]) -> Iterator[str]:
    """What is no path in an adapter file's ``load_as``, each in a sentence."""
    for one in spellings:
        try:
            load_of_spellings((one,))
        except ValueError as error:
            yield str(error)


@cache
def load_of_spellings(spellings: tuple[str, ...]) -> Load:
    """The paths of an adapter file's ``load_as``. Raises ValueError naming what is no path."""
    plain = [text for one in spellings for text in _NAMED.get(one, (one,))]
    return tuple(tuple(_path(part, text) for part in text.split("+")) for text in plain)


def _path(text: str, whole: str) -> Path:
    names = tuple(name.strip() for name in text.strip().split("."))
    if not all(names) or any(EVERY in name and name != EVERY for name in names):
        said = "names joined by dots, * for every item of a list, + between what is summed"
        raise ValueError(f"{whole!r} is no path into an answer; expected {said}, such as loads.*.num_reqs")
    return names


def requests_in_flight(load: Load, said: Any) -> float | None:
    """The sum that the first spelling finds in a parsed answer; None where none finds numbers of requests."""
    for paths in load:
        try:
            total = sum(_count(found) for path in paths for found in _found(said, path))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if total < math.inf:
            return total
    return None


def _found(said: Any, path: Path) -> Iterator[Any]:
    """What a path leads to. Raises KeyError or TypeError where it leads nowhere, ValueError for no item at all."""
    here = [said]
    for name in path:
        if name == EVERY:
            here = [item for one in here for item in _items(one)]
        else:
            here = [_mapping(one)[name] for one in here]
    yield from here


def _items(said: Any) -> list[Any]:
    items = list(said.values()) if isinstance(said, dict) else said
    if not isinstance(items, list):
        raise TypeError("neither a list nor a mapping")
    if not items:
        raise ValueError("no item")  # a door that lists nobody says nothing, not 0
    return items


def _mapping(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise TypeError("no mapping")
    return said


def _count(said: Any) -> float:
    if not isinstance(said, int | float):
        raise TypeError("no number")
    number = float(said)
    if not 0 <= number < math.inf:
        raise ValueError("no number of requests")
    return number
