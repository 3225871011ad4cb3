"""Counts scaling reversals of a fleet whose load did not change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from outrider.model import Floats

WITHIN_MINUTES = 30
STEADY = 0.05


def reversals(replicas: Floats, load: Floats, *, steady: float | None = STEADY) -> int:
    """Counts pairs of successive changes in opposite directions at most half an hour apart.

    ``replicas`` and ``load`` are by minute. A pair counts only if the load, from half an hour before the first change
    to the second, stayed within ``steady`` of itself; None counts all pairs.
    """
    changes = np.diff(replicas)
    minutes = np.flatnonzero(changes) + 1
    count = 0
    for before, after in pairwise(minutes.tolist()):
        if after - before > WITHIN_MINUTES or changes[before - 1] * changes[after - 1] > 0:
            continue
        recent = load[max(0, before - WITHIN_MINUTES) : after + 1]
        if steady is None or recent.max() <= recent.min() * (1.0 + steady):
            count += 1
    return count
