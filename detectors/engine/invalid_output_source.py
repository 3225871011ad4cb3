"""The replica behind a service's invalid responses, from how their share varies with the replicas' load.

The owner counts invalid responses of the whole service. If one replica causes them all, their share is that replica's
share of the responses times a constant, in each scrape. If every replica causes them alike, the share does not depend
on the replica. Each is a model with one constant, fitted by least squares. Posterior probabilities follow from the
residuals: Gaussian errors of unknown variance, so the likelihood is the sum of squares to the power of minus half the
number of scrapes. The prior odds of a single replica are even. Pure.

Undecidable if routing is so even that shares hardly vary, or if several but not all replicas are affected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats

SURE = 0.9
FEWEST_SCRAPES = 8  # with fewer, a replica may fit by chance
NOISE_RATIO = 0.01  # of the mean share; rounding error of a perfect fit


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of invalid responses. ``replica`` is a row number, None if no single replica is named.

    ``evenly`` is True if all replicas cause them alike; with neither it is undecided. ``share`` is the invalid share
    of the replica's own responses, NaN if no replica is named.
    """

    replica: int | None
    evenly: bool
    share: float


UNKNOWN = Source(None, evenly=False, share=float("nan"))


def source(invalid_ratio: Floats, answered: Floats) -> Source:
    """Returns the origin of a service's invalid responses.

    ``invalid_ratio`` (times,) is their share of the service's responses. ``answered`` (replicas, times) is the number
    each replica finished in the same scrapes. NaN drops the scrape or counts as zero.
    """
    given = np.nan_to_num(answered)
    total = given.sum(axis=0)
    known = ~np.isnan(invalid_ratio) & (total > 0)
    if given.shape[0] < 2 or known.sum() < FEWEST_SCRAPES:
        return UNKNOWN
    ratio, weight = invalid_ratio[known], total[known] / total[known].sum()
    part = given[:, known] / total[known]
    constant = _slopes(ratio, part, weight)
    left = (weight * (ratio - constant[:, None] * part) ** 2).sum(axis=1)
    mean = float((weight * ratio).sum())
    unexplained = np.append(left, (weight * (ratio - mean) ** 2).sum()) + (NOISE_RATIO * mean) ** 2
    fits = np.append(constant <= 1.0, True)  # more than all of its responses cannot come from a replica
    odds = _posterior(unexplained, fits, int(known.sum()))
    best = int(np.argmax(odds))
    if odds[best] < SURE:
        return UNKNOWN
    if best == len(left):
        return Source(None, evenly=True, share=float("nan"))
    return Source(best, evenly=False, share=float(constant[best]))


def _slopes(ratio: Floats, part: Floats, weight: Floats) -> Floats:
    """The best-fitting constant of each replica, shape (replicas,); 0 for a replica without responses."""
    square = (weight * part**2).sum(axis=1)
    product = (weight * ratio * part).sum(axis=1)
    result: Floats = np.divide(product, square, out=np.zeros_like(product), where=square > 0)
    return result


def _posterior(unexplained: Floats, fits: np.ndarray, scrapes: int) -> Floats:
    """Model probabilities, each replica's and last the even one, shape (replicas + 1,)."""
    replicas = unexplained.size - 1
    before = np.log(np.append(np.full(replicas, 0.5 / replicas), 0.5))
    likelihood = np.where(fits, before - 0.5 * scrapes * np.log(np.maximum(unexplained, 1e-300)), -np.inf)
    shares = np.exp(likelihood - likelihood.max())
    result: Floats = shares / shares.sum()
    return result
