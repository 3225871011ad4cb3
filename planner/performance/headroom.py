"""Rate of calibrated replicas less the buffer, and the buffer from forecast errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.model import Calibration, Floats

BUFFER_MOST = 1.0
"""A buffer above 100 % is refused as a mistake."""

_LEAST_ERRORS = 30


def capacity_per_second(calibration: Calibration, replicas: int, buffer: float) -> float:
    """Returns the requests per second that ``replicas`` serve, less the buffer."""
    sequences = replicas * calibration.batch
    return sequences * calibration.tokens_per_second_per_sequence / calibration.tokens_per_request / (1.0 + buffer)


def buffer_from_errors(errors: Sequence[float] | Floats, quantile: float = 0.95) -> float | None:
    """Returns the buffer for measured forecast errors, None with fewer than 30 of them.

    ``errors`` are ratios over the lead time: (observed peak - forecast peak) / forecast peak. The result is their
    ``quantile`` within 0 and 1: that share of peaks fits. It replaces the rule of thumb of 0.20 to 0.30.
    """
    ratios = np.asarray(errors, dtype=np.float64)
    known = np.sort(ratios[np.isfinite(ratios)])
    if known.size < _LEAST_ERRORS:
        return None
    position = quantile * (known.size - 1)  # numpy.quantile's definition; numpy's own takes ten times as long
    below = int(position)
    above = min(below + 1, known.size - 1)
    value = float(known[below] + (known[above] - known[below]) * (position - below))
    return min(max(value, 0.0), BUFFER_MOST)
