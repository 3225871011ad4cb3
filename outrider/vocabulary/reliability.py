"""Calibration of confidences: of answers given with 70 %, seven in ten should be right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

BINS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers with a confidence in [low, high); the last bin includes 1. Ratios 0-1."""

    low: float
    high: float
    count: int
    confidence: float  # mean confidence
    accuracy: float  # share of right answers


def curve(confidences: Sequence[float], right: Sequence[bool], edges: Sequence[float] = BINS) -> tuple[Bin, ...]:
    """The non-empty bins, lowest first.

    Raises ValueError if the lengths differ, edges do not ascend, or a confidence is outside them.
    """
    if any(high <= low for low, high in itertools.pairwise(edges)):
        raise ValueError("the edges of the bins must rise")
    held: list[list[tuple[float, bool]]] = [[] for _ in edges[1:]]
    for confidence, hit in zip(confidences, right, strict=True):
        if not edges[0] <= confidence <= edges[-1]:
            raise ValueError(f"the confidence {confidence:g} lies outside of {edges[0]:g} to {edges[-1]:g}")
        index = max(number for number, low in enumerate(edges[:-1]) if confidence >= low)
        held[index].append((confidence, hit))
    return tuple(
        Bin(
            edges[index],
            edges[index + 1],
            len(answers),
            sum(confidence for confidence, _ in answers) / len(answers),
            sum(hit for _, hit in answers) / len(answers),
        )
        for index, answers in enumerate(held)
        if answers
    )


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """The mean distance of confidence from accuracy, weighted by answers (expected calibration error)."""
    total = sum(item.count for item in bins)
    return sum(item.count * abs(item.confidence - item.accuracy) for item in bins) / total if total else None
