"""Garbage collection of processes that run for weeks."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 100
"""A request or a cycle makes some 10,000 objects and leaves none in a circle: CPython's usual 700 looks at them
seventy times in vain."""


def settle() -> None:
    """Once a process has loaded what it keeps: never look at that again, and seldom at what is new.

    Objects are still freed at once when nothing refers to them; only circles of them wait longer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
