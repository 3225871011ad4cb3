"""Weigh members by their recent loss at each lead, on losses known at the time only."""

from __future__ import annotations

import numpy as np

from planner.forecast.grid import Matrix, Slots

SHARPNESS = 6.0
"""A member that loses 10 % more than the best weighs exp(-0.6) of it."""
HALF_LIFE_DAYS = 1.0
_GUARD_HALF_LIFE_DAYS = 7.0
_GUARD_FROM, _GUARD_FULL = 0.97, 1.02
_ROUNDS = 4
_LEAST = 1e-6


def losses(said: Matrix, truth: Matrix) -> Matrix:
    """Absolute errors (members, series, origins, leads), 0 for all members where the truth is unknown."""
    return np.nan_to_num(np.abs(said - truth))


def known_losses(lost: Matrix, leads: Slots, stride: int, half_life: float) -> Matrix:
    """Discounted losses known at each origin: shape of ``lost``, 0 where nothing is known yet.

    Origins lie ``stride`` slots apart; what an origin lost at a lead is known that many slots later.
    ``half_life`` is in slots.
    """
    origins = lost.shape[2]
    grown = 2.0 ** (np.arange(origins) * stride / half_life)
    sums = np.cumsum(lost * grown.astype(lost.dtype)[:, None], axis=2)
    found = np.zeros_like(lost)
    for column, lead in enumerate(leads):
        late = -(-int(lead) // stride)
        if late < origins:
            found[:, :, late:, column] = sums[:, :, : origins - late, column] / grown[late:].astype(lost.dtype)
    return _neighbours(found)


def shares(known: Matrix, usable: Matrix) -> Matrix:
    """Weights that sum to one over members (axis 0), from discounted losses.

    ``usable`` (members, series) is False for members that may not speak for a series.
    """
    known = np.where(usable[:, :, None, None], known, np.inf)
    best = known.min(axis=0)
    worst = np.where(np.isinf(known), 0, known).max(axis=0)
    scale = np.maximum(best, worst * _LEAST)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where((worst > 0) | np.isinf(known), known / np.maximum(scale, 1e-30), 1.0)
    found = np.exp(-SHARPNESS * np.minimum(ratio - 1.0, 50.0))
    found /= found.sum(axis=0)
    typed: Matrix = found.astype(known.dtype)
    return typed


def median(said: Matrix, weights: Matrix) -> Matrix:
    """The weighted median over members (axis 0), by re-weighted means: smooth where members are near each other."""
    middle: Matrix = (weights * said).sum(axis=0)
    for _ in range(_ROUNDS):
        pulls = weights / (np.abs(said - middle) + 0.005)
        middle = (pulls * said).sum(axis=0) / pulls.sum(axis=0)
    return middle


def guards(mixed: Matrix, naive: Matrix, leads: Slots, stride: int, season: int) -> Matrix:
    """How much is left to each naive member, (2, series, origins, leads): all where the mix lost 5 % more than it.

    ``mixed`` (1, ...) and ``naive`` (2, ...) are losses. Only the better of the two counts.
    """
    known = known_losses(np.concatenate([mixed, naive]), leads, stride, _GUARD_HALF_LIFE_DAYS * season)
    mine, theirs = known[0], known[1:]
    better = theirs.min(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(mine > 0, mine / np.maximum(better, mine * _LEAST), 1.0)
    share = np.clip((ratio - _GUARD_FROM) / (_GUARD_FULL - _GUARD_FROM), 0.0, 1.0)
    found: Matrix = (share * (theirs == better)).astype(mixed.dtype)
    found[1] *= found[0] == 0
    return found


def guarded(mixed: Matrix, naive: Matrix, share: Matrix) -> Matrix:
    """The mix, with its share given to the naive members (2, ...)."""
    found: Matrix = mixed * (1 - share.sum(axis=0)) + (naive * share).sum(axis=0)
    return found


def _neighbours(known: Matrix) -> Matrix:
    """Leads beside each other fare alike: a third of each loss is taken from its neighbours."""
    padded = np.concatenate([known[..., :1], known, known[..., -1:]], axis=-1)
    level = np.maximum(padded.sum(axis=0, keepdims=True), 1e-12)
    relative = padded / level
    mixed: Matrix = relative[..., :-2] / 6 + relative[..., 1:-1] * (2 / 3) + relative[..., 2:] / 6
    return mixed.astype(known.dtype, copy=False)
