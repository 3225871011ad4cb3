"""Garbage-collection settings for processes that run for weeks."""

from __future__ import annotations

import gc

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 100
"""A request or a cycle creates some 10,000 objects and no reference cycles. CPython's default threshold of 700 would
scan them seventy times in vain.
"""


def settle() -> None:
    """Freezes everything loaded so far, and makes collections of new objects rare. Called once after start-up.

    Reference counting still frees objects at once; only reference cycles are freed later.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
