"""Links along which an excess may have propagated, and the propagation of blame.

A link has a capacity, 0-1: the share of the excess at its start that its end shows in the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

PASSED_ON = 0.95  # of what links explain; some blame stays along a chain of equal excess
SHARPNESS = 2.0  # exponent; of two explanations, the one with half the excess gets a fifth
SETTLED = 1e-6
_ROUNDS = 500  # 0.95 ** 500 is far below SETTLED: cycles end too

Numbers = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Links:
    """Links of an excess: ``capacity[k]`` of the excess at ``start[k]``, 0-1, comes from ``end[k]``."""

    start: Numbers
    end: Numbers
    capacity: Floats

    def explained(self, size: int) -> Floats:
        """The share of each entity's excess that its links explain together, as independent chances."""
        left = np.log1p(-np.minimum(self.capacity, 1.0 - 1e-12))
        result: Floats = 1.0 - np.exp(np.bincount(self.start, left, minlength=size))
        return result

    def __add__(self, other: Links) -> Links:
        return Links(
            np.concatenate([self.start, other.start]),
            np.concatenate([self.end, other.end]),
            np.concatenate([self.capacity, other.capacity]),
        )


def alike(start: Numbers, end: Numbers, own: Floats, theirs: Floats, sure: Floats) -> Links:
    """Links whose capacity is the part of the excess at ``start`` that ``end`` shows in the same steps."""
    mine = own[start]
    common = np.minimum(mine, theirs[end])  # NaN if one of the two is unknown
    total = np.where(np.isnan(common), 0.0, mine).sum(axis=1)
    shared = np.nansum(common, axis=1) * sure[end]
    return Links(start, end, np.divide(shared, total, out=np.zeros(start.size), where=total > 0))


def weaker(links: Links, by: float, better: Links, size: int) -> Links:
    """Weaker links: ``by`` times the remainder that better ones leave unexplained."""
    left = 1.0 - better.explained(size)[links.start]
    return Links(links.start, links.end, by * left * links.capacity)


def followed(links: Links, target: int, size: int) -> Floats:
    """Propagates one unit of blame from the target; each entity keeps its unexplained share. Sums to 1."""
    weight = links.capacity**SHARPNESS
    weights = np.bincount(links.start, weight, minlength=size)[links.start]
    passed = PASSED_ON * links.explained(size)[links.start]
    share = passed * np.divide(weight, weights, out=np.zeros_like(weight), where=weights > 0)
    kept = 1.0 - np.bincount(links.start, share, minlength=size)
    blame: Floats = np.zeros(size)
    here: Floats = np.zeros(size)
    here[target] = 1.0
    for _ in range(_ROUNDS):
        blame += here * kept
        here = np.bincount(links.end, here[links.start] * share, minlength=size).astype(np.float64)
        if here.sum() < SETTLED:
            break
    return blame + here


def connected(start: Numbers, end: Numbers, entities: Iterable[int], size: int) -> Mask:
    """True for entities on a path from or to one of the entities."""
    mask = np.zeros(size, dtype=np.bool_)
    for entity in entities:
        mask |= reached(start, end, entity, size) | reached(end, start, entity, size)
    return mask


def reached(start: Numbers, end: Numbers, origin: int, size: int) -> Mask:
    """True for entities reachable from one entity, itself included."""
    mask = np.zeros(size, dtype=np.bool_)
    mask[origin] = True
    while True:
        more = end[mask[start] & ~mask[end]]
        if not more.size:
            return mask
        mask[more] = True
