"""How often a fleet turned round although its load did not change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from outrider.model import Floats

WITHIN_MINUTES = 30
STEADY = 0.05


def reversals(replicas: Floats, load: Floats, *, steady: float | None = STEADY) -> int:
    """Pairs of successive moves in opposite directions at most half an hour apart.

    ``replicas`` and ``load`` are by minute. Only pairs count whose load, from half an hour before the
    first move to the second, stayed within ``steady`` of itself; None counts all.
    """
    changes = np.diff(replicas)
    places = np.flatnonzero(changes) + 1
    found = 0
    for before, after in pairwise(places.tolist()):
        if after - before > WITHIN_MINUTES or changes[before - 1] * changes[after - 1] > 0:
            continue
        lately = load[max(0, before - WITHIN_MINUTES) : after + 1]
        if steady is None or lately.max() <= lately.min() * (1.0 + steady):
            found += 1
    return found
