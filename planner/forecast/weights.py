"""Weights of members by their recent loss at each lead, from losses known at the time only."""

from __future__ import annotations

import numpy as np

from planner.forecast.grid import Matrix, Slots

SHARPNESS = 6.0
"""A member with 10 % more loss than the best has exp(-0.6) of its weight."""
HALF_LIFE_DAYS = 1.0
_GUARD_HALF_LIFE_DAYS = 7.0
_GUARD_FROM, _GUARD_FULL = 0.97, 1.02
_ROUNDS = 4
_LEAST = 1e-6


def losses(predicted: Matrix, truth: Matrix) -> Matrix:
    """Absolute errors (members, series, origins, leads), 0 for all members if the truth is unknown."""
    return np.nan_to_num(np.abs(predicted - truth))


def known_losses(loss: Matrix, leads: Slots, stride: int, half_life: float) -> Matrix:
    """Discounted losses known at each origin: shape of ``loss``, 0 if nothing is known yet.

    Origins lie ``stride`` slots apart; the loss at a lead is known that many slots later. ``half_life`` is in slots.
    """
    origins = loss.shape[2]
    grown = 2.0 ** (np.arange(origins) * stride / half_life)
    sums = np.cumsum(loss * grown.astype(loss.dtype)[:, None], axis=2)
    result = np.zeros_like(loss)
    for column, lead in enumerate(leads):
        late = -(-int(lead) // stride)
        if late < origins:
            result[:, :, late:, column] = sums[:, :, : origins - late, column] / grown[late:].astype(loss.dtype)
    return _smooth_leads(result)


def shares(known: Matrix, usable: Matrix) -> Matrix:
    """Weights that sum to one over members (axis 0), from discounted losses.

    ``usable`` (members, series) is False for members that must not be used for a series.
    """
    known = np.where(usable[:, :, None, None], known, np.inf)
    best = known.min(axis=0)
    worst = np.where(np.isinf(known), 0, known).max(axis=0)
    scale = np.maximum(best, worst * _LEAST)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where((worst > 0) | np.isinf(known), known / np.maximum(scale, 1e-30), 1.0)
    result = np.exp(-SHARPNESS * np.minimum(ratio - 1.0, 50.0))
    result /= result.sum(axis=0)
    typed: Matrix = result.astype(known.dtype)
    return typed


def median(predicted: Matrix, weights: Matrix) -> Matrix:
    """Weighted median over members (axis 0) by re-weighted means; smooth if members are close."""
    middle: Matrix = (weights * predicted).sum(axis=0)
    for _ in range(_ROUNDS):
        pulls = weights / (np.abs(predicted - middle) + 0.005)
        middle = (pulls * predicted).sum(axis=0) / pulls.sum(axis=0)
    return middle


def guards(mixed: Matrix, naive: Matrix, leads: Slots, stride: int, season: int) -> Matrix:
    """Share of each naive member, (2, series, origins, leads): all of it if the mix lost 2 % more.

    ``mixed`` (1, ...) and ``naive`` (2, ...) are losses. Only the better of the two counts.
    """
    known = known_losses(np.concatenate([mixed, naive]), leads, stride, _GUARD_HALF_LIFE_DAYS * season)
    of_mix, of_naive = known[0], known[1:]
    better = of_naive.min(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(of_mix > 0, of_mix / np.maximum(better, of_mix * _LEAST), 1.0)
    share = np.clip((ratio - _GUARD_FROM) / (_GUARD_FULL - _GUARD_FROM), 0.0, 1.0)
    result: Matrix = (share * (of_naive == better)).astype(mixed.dtype)
    result[1] *= result[0] == 0
    return result


def guarded(mixed: Matrix, naive: Matrix, share: Matrix) -> Matrix:
    """The mix, with part of it replaced by the naive members (2, ...)."""
    result: Matrix = mixed * (1 - share.sum(axis=0)) + (naive * share).sum(axis=0)
    return result


def _smooth_leads(known: Matrix) -> Matrix:
    """Smooths over adjacent leads, which have similar losses: a third of each loss comes from its neighbors."""
    padded = np.concatenate([known[..., :1], known, known[..., -1:]], axis=-1)
    level = np.maximum(padded.sum(axis=0, keepdims=True), 1e-12)
    relative = padded / level
    mixed: Matrix = relative[..., :-2] / 6 + relative[..., 1:-1] * (2 / 3) + relative[..., 2:] / 6
    return mixed.astype(known.dtype, copy=False)
