"""Weights of members by their recent loss at each lead, from losses known at the time only.

A restless week must not decide for the calm one after it. Losses of an origin are therefore divided by the square root
of the mean loss there: half way between the mean of ratios and the ratio of means. Losses at short leads, which are
known soon, are also forgotten sooner.
"""

from __future__ import annotations

import numpy as np

from planner.forecast.grid import Matrix, Slots

SHARPNESS = 4.0
"""A member with 10 % more loss than the best has exp(-0.4) of its weight."""
HALF_LIFE_DAYS = 1.0
_NEAR_SHARE = 0.3
"""Half-life at the shortest leads, as a share of that at a lead of one day."""
_EVENED = 0.5
_LEAST_TYPICAL = 0.02
_GUARD_LONG_DAYS, _GUARD_SHORT_DAYS = 7.0, 1.0
_GUARD_FROM, _GUARD_FULL = 0.97, 1.02
_CHANGED_FROM, _CHANGED_FULL = 1.1, 1.3
"""Loss of the mix relative to a naive forecast, over the short time alone, that shows that the load has changed."""
_ROUNDS = 4
_LEAST = 1e-6


def losses(predicted: Matrix, truth: Matrix) -> Matrix:
    """Absolute errors (members, series, origins, leads), 0 for all members if the truth is unknown."""
    return np.nan_to_num(np.abs(predicted - truth))


def known_losses(loss: Matrix, leads: Slots, stride: int, season: int, half_life_days: float) -> Matrix:
    """Discounted losses known at each origin: shape of ``loss``, 0 if nothing is known yet.

    Origins lie ``stride`` slots apart; the loss at a lead is known that many slots later. The half-life is that of a
    lead of one day, which has ``season`` slots.
    """
    origins = loss.shape[2]
    half_lives = half_life_days * season * (_NEAR_SHARE + (1 - _NEAR_SHARE) * np.minimum(leads / season, 1.0))
    grown = (2.0 ** (np.arange(origins)[:, None] * stride / half_lives)).astype(loss.dtype)
    sums = np.cumsum(_evened(loss) * grown, axis=2)
    result = np.zeros_like(loss)
    for column, lead in enumerate(leads):
        late = -(-int(lead) // stride)
        if late < origins:
            result[:, :, late:, column] = sums[:, :, : origins - late, column] / grown[late:, column]
    return _smooth_leads(result)


def _evened(loss: Matrix) -> Matrix:
    """Losses over the square root of the mean loss of the members at the same origin and lead."""
    mean = loss.mean(axis=0)
    known = np.maximum((mean > 0).sum(axis=1, keepdims=True), 1)
    typical = mean.sum(axis=1, keepdims=True) / known
    result: Matrix = loss / np.maximum(np.maximum(mean, _LEAST_TYPICAL * typical), 1e-12) ** _EVENED
    return result


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
    """Share of each naive member, (2, series, origins, leads).

    ``mixed`` (1, ...) and ``naive`` (2, ...) are losses. A naive member replaces the mix if the mix lost 2 % more both
    over a week and over a day, or much more over a day. Only the better of the two over the day counts.
    """
    long, short = (
        known_losses(np.concatenate([mixed, naive]), leads, stride, season, days)
        for days in (_GUARD_LONG_DAYS, _GUARD_SHORT_DAYS)
    )
    lost = np.minimum(_relative(long), _relative(short))
    share = np.maximum(
        np.clip((lost - _GUARD_FROM) / (_GUARD_FULL - _GUARD_FROM), 0.0, 1.0),
        np.clip((_relative(short) - _CHANGED_FROM) / (_CHANGED_FULL - _CHANGED_FROM), 0.0, 1.0),
    )
    result: Matrix = np.where(short[1:] == short[1:].min(axis=0), share, 0.0).astype(mixed.dtype)
    result[1] *= result[0] == 0
    return result


def _relative(known: Matrix) -> Matrix:
    """Loss of the first member over that of each other one; 1 without any loss."""
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Matrix = np.where(known[:1] > 0, known[:1] / np.maximum(known[1:], known[:1] * _LEAST), 1.0)
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
