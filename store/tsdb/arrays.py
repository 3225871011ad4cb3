"""Index helpers for matrices, shared by blocks, grids and cycle matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = slice | NDArray[np.intp]


def compact(index: NDArray[np.integer[Any]]) -> Index:
    """The index as a slice if it is evenly spaced: numpy copies slices many times faster."""
    if index.size == 0:
        return slice(0, 0)
    if index.size == 1:
        return slice(int(index[0]), int(index[0]) + 1)
    gap = int(index[1] - index[0])
    if gap > 0 and (np.diff(index) == gap).all():
        return slice(int(index[0]), int(index[-1]) + 1, gap)
    return index.astype(np.intp)


def cross(*axes: Any) -> Any:
    """One index over several axes, each a slice or an index list, that keeps the order of the axes."""
    if sum(not isinstance(axis, slice) for axis in axes) <= 1:  # a single list needs no np.ix_, and copies faster
        return axes
    spelled = [np.arange(axis.start, axis.stop, axis.step or 1) if isinstance(axis, slice) else axis for axis in axes]
    return np.ix_(*spelled)
