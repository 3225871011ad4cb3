"""The load when a replica that is started now can serve: where it goes in the next half hour, and how surely.

Every slot of the past is an origin: its path uses nothing newer than that slot, so that the same arrays
serve a live plan (the newest origin) and a replay (all of them). Paths come from a ridge regression of the
change of the log load on recent changes, on the change at this time of the last days, and on how far the
load lies from its daily profile; it is fitted anew four times a day on the last nine days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from outrider.model import Floats

RECENT_CHANGES = 5
PROFILE_DAYS = 7
FIT_DAYS = 9
FITS_PER_DAY = 4
ERROR_DAYS = 7
WARM_UP_DAYS = 2
"""Before that many days the load is carried forward and ``UNKNOWN_MARGIN`` is added."""
UNKNOWN_MARGIN = 0.3
_RIDGE = 3.0
_OFFSET_SHARE = 0.01
LEVEL_SHARE = 0.6
"""Errors are shares of the forecast plus this much of the mean load: a quiet hour errs by more than its ratio."""
_LEAST_ROWS = 60
COLLAPSE_SHARE = 0.1
DOUBT_HOURS = 1
CEILING_OVER_MAXIMUM = 1.25
"""No bound lies above 1.25 x the highest load of the last seven days, nor below the forecast."""


class Forecaster(Protocol):
    """Makes paths: ``values`` (slots,) with NaN where missing; (slots, steps + 1), NaN where it cannot say.

    Column 0 is the slot itself, column h the slot h later; row i uses nothing after slot i.
    """

    def __call__(self, values: Floats, season: int, steps: int) -> Floats:
        """Paths of every origin."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Upper bounds of the load. ``upper[origin, level, lead]``: leads in minutes from the origin's slot on."""

    levels: tuple[float, ...]
    upper: Floats


def filled(values: Floats, season: int) -> Floats:
    """The load as far as it can be guessed: a missing slot is worth what it was a day before.

    Without a day before the slot is worth the one before it; before the first value, that value.
    """
    found = values.copy()
    for place in np.flatnonzero(np.isnan(found)):
        back = found[place - season] if place >= season else np.nan
        found[place] = back if np.isfinite(back) else (found[place - 1] if place else np.nan)
    known = found[np.isfinite(found)]
    return np.where(np.isnan(found), known[0] if known.size else 0.0, found)


def believed(values: Floats, season: int) -> Floats:
    """The values without sudden collapses: more often a broken meter or door than calm.

    A slot below a tenth both of the newest believed one and of the day before is taken as missing, for
    an hour at most; a load that stays away longer is believed.
    """
    found = values.copy()
    newest, doubted = np.nan, 0
    for place, value in enumerate(values):
        if np.isnan(value):
            continue
        before = found[place - season] if place >= season else np.nan
        least = COLLAPSE_SHARE * np.fmin(newest, before)
        if value < least and doubted < season * DOUBT_HOURS // 24:
            doubted += 1
            found[place] = np.nan
            continue
        doubted = doubted if value < least else 0
        if doubted == 0:
            newest = value
    return found


def ridge_paths(values: Floats, season: int, steps: int) -> Floats:
    """The default forecaster. Before two days of history the newest value is carried forward."""
    load = filled(values, season)
    shift = _shift(load, season)
    logs = np.log(load + shift)
    known = np.isfinite(values)
    found = np.repeat(load[:, None], steps + 1, axis=1)
    for step in range(1, steps + 1):
        found[:, step] = np.maximum(np.exp(_ahead(logs, known, season, step)) - shift, 0.0)
    return found


def upper_paths(
    values: Floats, season: int, slot_minutes: int, minutes: int, levels: Sequence[float],
    forecaster: Forecaster = ridge_paths,
) -> Paths:  # fmt: skip
    """Conformal upper bounds at ``levels`` for the next ``minutes``, minute by minute.

    Between slots the load is taken as a straight line. The errors are those of the last seven days as
    shares of the load, lead by lead, those whose truth was known at the origin; a level is their quantile.
    A level above 1 stretches the largest error seen by so much.
    """
    steps = -(-minutes // slot_minutes)
    knots = forecaster(values, season, steps)
    paths = _lines(knots, slot_minutes)
    truth = np.full_like(knots, np.nan)
    for step in range(steps + 1):
        truth[: values.size - step, step] = values[step:]
    load = filled(values, season)
    scale = paths + LEVEL_SHARE * _level(load, season)[:, None]
    top = np.maximum(CEILING_OVER_MAXIMUM * _highest(load, PROFILE_DAYS * season)[:, None], paths)
    errors = (_lines(truth, slot_minutes) - paths) / np.maximum(scale, 1e-12)
    block = max(1, season // FITS_PER_DAY)
    first = WARM_UP_DAYS * season + block
    upper = np.repeat((paths * (1.0 + UNKNOWN_MARGIN))[:, None, :], len(levels), axis=1)
    for begin in range(first, values.size, block):
        seen = errors[max(WARM_UP_DAYS * season, begin - ERROR_DAYS * season) : begin - steps]
        rows = slice(begin, begin + block)
        upper[rows] = paths[rows, None, :] + _quantiles(seen, levels)[None] * scale[rows, None, :]
        upper[rows] = np.minimum(upper[rows], top[rows, None, :])
    upper[:, :, 0] = paths[:, None, 0]
    return Paths(tuple(levels), np.maximum(upper, 0.0))


def _level(load: Floats, season: int) -> Floats:
    """The mean load of the last seven days, at every slot."""
    span = PROFILE_DAYS * season
    sums = np.concatenate([[0.0], np.cumsum(load)])
    ends = np.arange(1, load.size + 1)
    begins = np.maximum(0, ends - span)
    found: Floats = (sums[ends] - sums[begins]) / (ends - begins)
    return found


def _highest(load: Floats, span: int) -> Floats:
    """The highest load of the last ``span`` slots, at every slot."""
    padded = np.concatenate([np.repeat(load[:1], span - 1), load])
    found: Floats = sliding_window_view(padded, span).max(axis=-1)
    return found


def _quantiles(errors: Floats, levels: Sequence[float]) -> Floats:
    """(levels, leads); a lead whose errors are all unknown adds the margin of not knowing."""
    known = np.isfinite(errors).any(axis=0)
    found = np.full((len(levels), errors.shape[1]), UNKNOWN_MARGIN)
    if known.any():
        found[:, known] = np.nanquantile(errors[:, known], np.minimum(levels, 1.0), axis=0)
        found *= np.maximum(levels, 1.0)[:, None]
    return found


def _lines(knots: Floats, slot_minutes: int) -> Floats:
    """Straight lines between slots: (origins, steps + 1) to (origins, steps x minutes + 1)."""
    places = np.arange((knots.shape[1] - 1) * slot_minutes + 1) / slot_minutes
    low = np.minimum(places.astype(int), max(0, knots.shape[1] - 2))
    share = places - low
    high = np.minimum(low + 1, knots.shape[1] - 1)
    # the line through a missing end is missing, except at its known end
    return np.where(share == 0, knots[:, low], knots[:, low] * (1 - share) + knots[:, high] * share)


def _shift(load: Floats, season: int) -> float:
    """What is added before taking logarithms: 1 % of the mean of the first day."""
    return max(_OFFSET_SHARE * float(load[:season].mean()) if load.size else 0.0, 1e-9)


def _ahead(logs: Floats, known: NDArray[np.bool_], season: int, step: int) -> Floats:
    """The log load ``step`` slots after every slot."""
    inputs = _inputs(logs, season, step)
    change = np.full(logs.size, np.nan)
    change[: logs.size - step] = logs[step:] - logs[: logs.size - step]
    usable = known.copy()
    usable[: logs.size - step] &= known[step:]
    usable[logs.size - step :] = False
    found = logs.copy()
    for begin in range(WARM_UP_DAYS * season, logs.size, max(1, season // FITS_PER_DAY)):
        rows = np.arange(max(season, begin - FIT_DAYS * season), begin - step + 1)
        rows = rows[usable[rows]]
        if rows.size < _LEAST_ROWS:
            continue
        scale = inputs[rows].std(axis=0) + 1e-9
        scale[0] = 1.0
        weights = _fit(inputs[rows] / scale, change[rows])
        block = slice(begin, begin + max(1, season // FITS_PER_DAY))
        found[block] = logs[block] + inputs[block] / scale @ weights
    return found


def _fit(inputs: Floats, change: Floats) -> Floats:
    """Ridge regression; the second pass weighs rows down whose error is in the largest fifth (Huber)."""
    weights: Floats = np.ones(change.size)
    penalty = _RIDGE * np.eye(inputs.shape[1])
    penalty[0, 0] = 0.01 * _RIDGE
    for _ in range(2):
        squares, products = inputs.T @ (inputs * weights[:, None]) + penalty, inputs.T @ (weights * change)
        found: Floats = np.asarray(np.linalg.solve(squares, products), dtype=np.float64)
        errors = np.abs(change - inputs @ found)
        weights = np.asarray(1.0 / np.maximum(errors / (np.quantile(errors, 0.8) + 1e-6), 1.0), dtype=np.float64)
    return found


def _inputs(logs: Floats, season: int, step: int) -> Floats:
    """What the change over ``step`` slots is read from, a row a slot; nothing later than that slot."""
    count = logs.size
    columns = [np.ones(count)]
    columns += [_late(logs, back) - _late(logs, back + 1) for back in range(RECENT_CHANGES)]
    columns += [_late(logs, 0) - _late(logs, 6), _late(logs, season - step) - _late(logs, season)]
    places = np.arange(count)
    changes, smooth, level = np.zeros(count), np.zeros(count), np.zeros(count)
    for day in range(1, PROFILE_DAYS + 1):
        there = places >= day * season
        then, later = day * season, day * season - step
        changes += np.where(there, _late(logs, later) - _late(logs, then), 0.0)
        level += np.where(there, _late(logs, then), 0.0)
        around = [_late(logs, later + by) - _late(logs, then + by) for by in (-1, 0, 1) if later + by >= 0]
        smooth += np.where(there, sum(around) / len(around), 0.0)
    days = np.clip(places // season, 1, PROFILE_DAYS)
    off = np.where(places >= season, logs - level / days, 0.0)
    columns += [changes / days, smooth / days, off, _late(off, 1), _late(off, 6)]
    return np.stack(columns, axis=1)


def _late(values: Floats, back: int) -> Floats:
    """What the value was ``back`` slots ago, 0 before the beginning."""
    found = np.zeros(values.size)
    if back < values.size:
        found[back:] = values[: values.size - back]
    return found
