"""Values of rule expressions: a number or a truth value per entity, or the reason that there is none.

*Undefined*: nothing happened, so a ratio or a quantile has no value, and no comparison with it holds. *Missing* and
*untrusted*: no conclusion either way. ``and``/``or`` follow Kleene logic: a false operand decides an ``and``
regardless of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import at_index, late_seconds, newest_index
from outrider.model import CellStatus, Floats, SignalKey, Window


class Unknown(IntEnum):
    """Reason that an entity has no value, in order of severity."""

    KNOWN = 0
    UNDEFINED = 1
    MISSING = 2
    UNTRUSTED = 3


@dataclass(frozen=True, slots=True)
class Numbers:
    """A value per entity, NaN unless ``unknown`` is KNOWN."""

    values: Floats
    unknown: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Truths:
    """A truth value per entity; False unless ``unknown`` is KNOWN."""

    holds: NDArray[np.bool_]
    unknown: NDArray[np.uint8]


def certain(values: Floats) -> Numbers:
    """Values known for every entity."""
    return Numbers(values, np.zeros(values.shape[0], dtype=np.uint8))


def mapped(operands: list[Numbers], apply: Callable[[list[Floats]], Floats]) -> Numbers:
    """Arithmetic on operands; a result that is not a number (0/0, x/0) is undefined."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values = apply([operand.values for operand in operands])
    unknown = operands[0].unknown
    for operand in operands[1:]:
        unknown = np.maximum(unknown, operand.unknown)
    invalid = ~np.isfinite(values) & (unknown == Unknown.KNOWN)
    return Numbers(np.where(invalid, np.nan, values), np.where(invalid, Unknown.UNDEFINED, unknown).astype(np.uint8))


def all_of(parts: list[Truths]) -> Truths:
    """``and``: true if all are true, known false if one is known to be false."""
    holds = np.logical_and.reduce([part.holds for part in parts])
    denied = np.logical_or.reduce([~part.holds & (part.unknown == Unknown.KNOWN) for part in parts])
    return _decided(holds, denied, parts)


def any_of(parts: list[Truths]) -> Truths:
    """``or``: true if one is true, known false if all are known to be false."""
    holds = np.logical_or.reduce([part.holds for part in parts])
    denied = np.logical_and.reduce([~part.holds & (part.unknown == Unknown.KNOWN) for part in parts])
    return _decided(holds, denied, parts)


def _decided(holds: NDArray[np.bool_], denied: NDArray[np.bool_], parts: list[Truths]) -> Truths:
    worst = np.maximum.reduce([part.unknown for part in parts])
    return Truths(holds, np.where(holds | denied, Unknown.KNOWN, worst).astype(np.uint8))


def negated(inner: Truths) -> Truths:
    """``not``: unknown stays unknown."""
    return Truths(~inner.holds & (inner.unknown == Unknown.KNOWN), inner.unknown)


def with_reasons(window: Window, keys: list[SignalKey], values: Floats) -> Numbers:
    """Adds the reasons of missing values, and drops values without any fresh cell.

    The newest cell within ``late_seconds`` that is not merely absent decides, in any of the columns.
    """
    fresh = window.times > window.times[-1] - late_seconds(window)
    status = np.stack([window.column_status(key)[:, fresh] for key in keys], axis=2).min(axis=2)
    has_value = status != CellStatus.ABSENT
    newest_status = at_index(status.astype(np.float64), newest_index(has_value))
    doubtful = np.isin(newest_status, (CellStatus.STALE, CellStatus.RESET, CellStatus.UNTRUSTED))
    unknown = np.where(np.isnan(newest_status), Unknown.MISSING, np.where(doubtful, Unknown.UNTRUSTED, Unknown.KNOWN))
    unknown = np.where((unknown == Unknown.KNOWN) & np.isnan(values), Unknown.UNDEFINED, unknown)
    return Numbers(np.where(unknown == Unknown.KNOWN, values, np.nan), unknown.astype(np.uint8))


def _sum(values: Floats, _window: Window, _span: timedelta) -> Floats:
    return np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values, axis=1))


def _rate(values: Floats, window: Window, span: timedelta) -> Floats:
    """Rate per second of the covered time: a young window is not divided by the whole span."""
    covered = min(span.total_seconds(), float(window.times[-1] - window.times[0]) + window.step.total_seconds())
    return _sum(values, window, span) / covered


def _mean(values: Floats, window: Window, span: timedelta) -> Floats:
    count = (~np.isnan(values)).sum(axis=1)
    result: Floats = _sum(values, window, span) / np.maximum(count, 1)
    return result


def _max(values: Floats, _window: Window, _span: timedelta) -> Floats:
    result = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    return np.where(np.isinf(result), np.nan, result)


def _min(values: Floats, window: Window, span: timedelta) -> Floats:
    return -_max(-values, window, span)


REDUCTIONS: dict[str, Callable[[Floats, Window, timedelta], Floats]] = {
    "sum": _sum,
    "rate": _rate,
    "mean": _mean,
    "max": _max,
    "min": _min,
}
