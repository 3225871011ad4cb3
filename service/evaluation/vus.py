"""Volume under the surface of precision and recall (VUS-PR; Paparrizos et al., VLDB 2022), without a threshold.

Labels get a slope of ``buffer`` samples around each event. Recall is multiplied by the share of detected events.
The area under precision over recall is averaged over buffers of 0 to 100 samples. The thresholds are the scores at
250 evenly spaced ranks, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats
from service.evaluation.events import spans

BUFFERS = tuple(range(0, 101, 10))
THRESHOLDS = 250


def vus_pr(scores: Floats, labels: NDArray[np.bool_], buffers: Sequence[int] = BUFFERS) -> float | None:
    """Returns the mean area over the buffers; None without an event. NaN is the lowest score."""
    runs = spans(labels)
    if len(runs) == 0:
        return None
    lowest = np.nanmin(scores, initial=0.0) - 1.0
    clean = np.where(np.isnan(scores), lowest, scores)
    order = np.argsort(-clean, kind="stable")
    ranked = clean[order]
    cuts = ranked[np.linspace(0, clean.size - 1, THRESHOLDS).astype(int)]
    chosen = np.searchsorted(-ranked, -cuts, side="right")  # points at or above each threshold
    areas = [_area(clean, labels, runs, order, cuts, chosen, buffer) for buffer in buffers]
    return float(np.mean(areas))


def _area(
    scores: Floats,
    labels: NDArray[np.bool_],
    runs: NDArray[np.intp],
    order: NDArray[np.intp],
    cuts: Floats,
    chosen: NDArray[np.intp],
    buffer: int,
) -> float:
    weight = extended(labels.size, runs, buffer)
    hit = np.cumsum(weight[order])[chosen - 1]  # weighted points at or above each threshold
    outside = np.cumsum(np.where(labels, 0.0, weight)[order])[chosen - 1]
    positives = labels.sum()
    soft = (positives + positives + outside) / 2.0
    peaks = np.array([scores[first : last + 1].max() for first, last in segments(labels.size, runs, buffer)])
    seen = (peaks[None] >= cuts[:, None]).mean(axis=1)
    recall = np.concatenate(([0.0], np.minimum(hit / soft, 1.0) * seen))
    precision = hit / chosen
    return float(np.sum(np.diff(recall) * precision))


def extended(size: int, runs: NDArray[np.intp], buffer: int) -> Floats:
    """Returns labels with slopes of half a buffer on both sides, shape (size,)."""
    weight = np.zeros(size)
    half = buffer // 2
    for first, last in runs:
        weight[first : last + 1] = 1.0
        if half == 0:
            continue
        for distance in range(1, half + 1):
            slope = np.sqrt(1.0 - distance / buffer)
            if last + distance < size:
                weight[last + distance] += slope
            if first - distance >= 0:
                weight[first - distance] += slope
    return np.minimum(weight, 1.0)


def segments(size: int, runs: NDArray[np.intp], buffer: int) -> NDArray[np.intp]:
    """Returns events with their slopes; events with touching slopes are merged."""
    half = buffer // 2
    merged = [[max(runs[0][0] - half, 0), min(runs[0][1] + half, size - 1)]]
    for first, last in runs[1:]:
        if merged[-1][1] < first - half:
            merged.append([first - half, min(last + half, size - 1)])
        else:
            merged[-1][1] = min(last + half, size - 1)
    return np.array(merged)
