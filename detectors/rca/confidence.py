"""Converts scores to confidences: a softmax whose temperature was fitted to drill results.

``benchmarks/fit_confidence.py`` writes the values in ``confidence.yaml`` from drills of tuning seeds. Temperature
scaling after Guo et al., On Calibration of Modern Neural Networks (2017); it keeps the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from detectors import packaged_data
from outrider.text import yaml_file
from outrider.text.yaml_shapes import Shapes

FILE = "confidence.yaml"
_KEYS = ("temperature", "unknown_score", "fitted")


@dataclass(frozen=True, slots=True)
class Scale:
    """``temperature`` divides scores (0-1); ``unknown_score`` is the score of an unknown cause."""

    temperature: float
    unknown_score: float

    def weight(self, score: float) -> float:
        """The weight of a score, relative to that of the unknown cause."""
        return math.exp((score - self.unknown_score) / self.temperature)

    def shares(self, weights: Sequence[float]) -> list[float]:
        """Confidences (0-1) of weights; the rest to 1 belongs to the unknown cause."""
        total = 1.0 + sum(weights)
        return [weight / total for weight in weights]


@cache
def packaged() -> Scale:
    """The scale of this release. Raises ConfigError if the file is damaged."""
    return read(packaged_data.confidence(), f"detectors/rca/{FILE}")


def read(text: str, file: str) -> Scale:
    """Parses a scale. Raises ConfigError with line and key of every mistake."""
    document, shapes = yaml_file.parse(text, file), Shapes()
    top = shapes.mapping(document, (), {} if document.value is None else document.value)
    for key in top:
        if key not in _KEYS:
            shapes.note(document, (key,), f"unknown key{yaml_file.near(key, _KEYS)}")
    temperature = _figure(document, shapes, top, "temperature", 0.01, 2.0)
    unknown = _figure(document, shapes, top, "unknown_score", 0.0, 1.0)
    if shapes.problems:
        raise yaml_file.refuse(shapes.problems)
    return Scale(temperature, unknown)


def _figure(
    document: yaml_file.Document, shapes: Shapes, top: dict[str, Any], key: str, least: float, most: float
) -> float:
    if key not in top:
        if isinstance(document.value, dict | None):
            shapes.note(document, (key,), "is missing")
        return least
    number = shapes.number(document, (key,), top[key])
    if number is not None and not least <= number <= most:
        shapes.note(document, (key,), f"expected {least:g} to {most:g}, not {number:g}")
    return number if number is not None else least
