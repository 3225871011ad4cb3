"""Series and values in the notation of promtool: ``signal{label="value"}`` and ``0+10x4 _x2 stale``. Pure.

``a+bxn`` is a and n further values, each b more; ``axn`` is a and n further values a; ``_`` is a missing value and
``_xn`` are n of them. ``stale`` is a value that is no longer current. ``nan`` is a ratio or quantile without events.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from outrider.model import CellStatus, Floats, Statuses

MOST_VALUES = 50_000  # of one series: a month in cycles of a minute
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SERIES = re.compile(rf"\s*({_NAME})\s*(?:\{{(.*)\}})?\s*", re.DOTALL)
_LABEL = re.compile(rf"\s*({_NAME})\s*=\s*\"((?:[^\"\\]|\\.)*)\"\s*(?:,|$)", re.DOTALL)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RUN = re.compile(rf"({_NUMBER})(?:([+-](?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))?(?:x(\d+))?")
_GAP = re.compile(r"_(?:x(\d+))?")
_ESCAPED = re.compile(r"\\(.)")


class NotationError(ValueError):
    """A text that is not in the notation; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Values:
    """One value per step, NaN unless its status says otherwise; both arrays have shape (steps,)."""

    values: Floats
    status: Statuses


def parse_series(text: str) -> tuple[str, dict[str, str]]:
    """The name and the labels of a series. Raises NotationError."""
    match = _SERIES.fullmatch(text)
    if match is None:
        raise NotationError(f'expected a series such as svc_requests_total{{service="chat"}}, not {text!r}')
    return match[1], _labels(match[2] or "")


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    position = 0
    while text[position:].strip():
        match = _LABEL.match(text, position)
        if match is None:
            raise NotationError(f'expected a label such as service="chat" at {text[position:].strip()!r}')
        if match[1] in labels:
            raise NotationError(f"the label {match[1]} is repeated")
        labels[match[1]] = _ESCAPED.sub(r"\1", match[2])
        position = match.end()
    return labels


def parse_values(text: str) -> Values:
    """The values of a series. Raises NotationError with the position of the word, from 1."""
    values: list[float] = []
    status: list[int] = []
    for number, word in enumerate(text.split(), start=1):
        new_values, new_status = _word(word, number)
        if len(values) + len(new_values) > MOST_VALUES:
            raise NotationError(f"word {number}: more than {MOST_VALUES:,} values")
        values += new_values
        status += [new_status] * len(new_values)
    return Values(np.array(values, dtype=np.float64), np.array(status, dtype=np.uint8))


def _word(word: str, number: int) -> tuple[list[float], CellStatus]:
    if word.lower() == "nan":
        return [math.nan], CellStatus.UNDEFINED
    if word == "stale":
        return [math.nan], CellStatus.STALE
    gap = _GAP.fullmatch(word)
    if gap is not None:
        return [math.nan] * _count(gap[1], 1, number), CellStatus.ABSENT
    run = _RUN.fullmatch(word)
    if run is None or (run[2] is not None and run[3] is None):
        raise NotationError(f"word {number}: expected 5, 5x3, 5+2x3, _, _x3, nan or stale, not {word!r}")
    start, step = float(run[1]), float(run[2] or 0.0)
    values = [start + step * index for index in range(_count(run[3], 0, number) + 1)]
    if not all(map(math.isfinite, values)):
        raise NotationError(f"word {number}: {word!r} is too large")
    return values, CellStatus.PRESENT


def _count(text: str | None, default: int, number: int) -> int:
    if text is None:
        return default
    count = int(text) if len(text) < 10 else MOST_VALUES + 1
    if count > MOST_VALUES:
        raise NotationError(f"word {number}: more than {MOST_VALUES:,} values")
    return count
