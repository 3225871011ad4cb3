"""Which replica a service's invalid answers come from, told by how their share moves with who answers.

The owner counts invalid answers of the whole service. Where one replica gives them all, their share is that replica's
share of the answers times a constant, scrape by scrape; where every replica gives as many, it does not care who
answers. Each of these is a model with one constant, fitted by least squares; from their residuals follow their
posterior probabilities (Gaussian errors of unknown variance: a likelihood of the sum of squares to the power of minus
half the number of scrapes), with even odds before that it is one replica at all. Pure.

It cannot tell while routing is so even that shares hardly move, nor where some of the replicas are ill and others not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats

SURE = 0.9
FEWEST_SCRAPES = 8  # with fewer a replica may fit by chance
NOISE_RATIO = 0.01  # of the mean share: what counts that are rounded leave of a perfect fit


@dataclass(frozen=True, slots=True)
class Source:
    """Where invalid answers come from. ``replica`` is a row number, None for none in particular.

    ``evenly`` is True when every replica gives as many; with neither it cannot be told. ``share`` is that of the
    invalid ones among the replica's own answers, NaN where no replica is named.
    """

    replica: int | None
    evenly: bool
    share: float


UNTOLD = Source(None, evenly=False, share=float("nan"))


def source(invalid_ratio: Floats, answered: Floats) -> Source:
    """Where a service's invalid answers come from.

    ``invalid_ratio`` (times,) is their share of the service's answers, ``answered`` (replicas, times) what each
    replica finished in the same scrapes; NaN where nothing is known, which costs that scrape or counts as none.
    """
    given = np.nan_to_num(answered)
    total = given.sum(axis=0)
    known = ~np.isnan(invalid_ratio) & (total > 0)
    if given.shape[0] < 2 or known.sum() < FEWEST_SCRAPES:
        return UNTOLD
    ratio, weight = invalid_ratio[known], total[known] / total[known].sum()
    part = given[:, known] / total[known]
    constant = _slopes(ratio, part, weight)
    left = (weight * (ratio - constant[:, None] * part) ** 2).sum(axis=1)
    mean = float((weight * ratio).sum())
    unexplained = np.append(left, (weight * (ratio - mean) ** 2).sum()) + (NOISE_RATIO * mean) ** 2
    fits = np.append(constant <= 1.0, True)  # more than all of its answers are no replica's
    odds = _posterior(unexplained, fits, int(known.sum()))
    best = int(np.argmax(odds))
    if odds[best] < SURE:
        return UNTOLD
    if best == len(left):
        return Source(None, evenly=True, share=float("nan"))
    return Source(best, evenly=False, share=float(constant[best]))


def _slopes(ratio: Floats, part: Floats, weight: Floats) -> Floats:
    """The constant of each replica that fits best, shape (replicas,); 0 for one that answers nothing."""
    square = (weight * part**2).sum(axis=1)
    product = (weight * ratio * part).sum(axis=1)
    found: Floats = np.divide(product, square, out=np.zeros_like(product), where=square > 0)
    return found


def _posterior(unexplained: Floats, fits: np.ndarray, scrapes: int) -> Floats:
    """Probabilities of the models, each replica's and last the even one, shape (replicas + 1,)."""
    replicas = unexplained.size - 1
    before = np.log(np.append(np.full(replicas, 0.5 / replicas), 0.5))
    told = np.where(fits, before - 0.5 * scrapes * np.log(np.maximum(unexplained, 1e-300)), -np.inf)
    shares = np.exp(told - told.max())
    found: Floats = shares / shares.sum()
    return found
