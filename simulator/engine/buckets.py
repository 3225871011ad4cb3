"""Histogram buckets of many values at once, without a binary search per value.

The leading bits of a positive float (exponent and some of the mantissa) are monotonic. A table gives, for each such
prefix, the number of bounds below all values with that prefix. If the bounds are so far apart that no prefix contains
two of them, one comparison with the next bound settles the rest.
"""

from __future__ import annotations

import numpy as np

from outrider.model import Floats

_MANTISSA_BITS = 52
_MOST_BITS = 11  # of the mantissa: bounds closer than 0.05 % need a binary search


class Buckets:
    """Buckets between increasing ``bounds`` (0 or more); a value on a bound belongs to the bucket below it."""

    def __init__(self, bounds: Floats) -> None:
        self._bounds = bounds
        self._not_above_zero = int(bounds.size and bounds[0] <= 0)  # a bound of 0 has no prefix: the sign decides
        positive = bounds[self._not_above_zero :]
        self._next = np.append(positive, np.inf)
        bits = positive.view(np.int64)
        wide = [few for few in range(_MOST_BITS + 1) if (np.diff(bits >> (_MANTISSA_BITS - few)) > 0).all()]
        self._shift = _MANTISSA_BITS - wide[0] if wide and positive.size else None
        if self._shift is not None:
            self._low, self._high = int(bits[0] >> self._shift) - 1, int(bits[-1] >> self._shift) + 1
            begins = (np.arange(self._low, self._high + 1) << self._shift).view(np.float64)
            self._table = np.searchsorted(positive, begins, side="left").astype(np.int32)

    def of(self, values: Floats) -> np.ndarray:
        """Returns the number of bounds below each value (NaN is not allowed)."""
        if self._shift is None:
            return np.searchsorted(self._bounds, values, side="left")
        begin = np.asarray(values, dtype=np.float64).view(np.int64) >> self._shift
        below = self._table[np.clip(begin, self._low, self._high) - self._low]
        below += values > self._next[below]
        return np.asarray(below + (values > 0) if self._not_above_zero else below)
