"""The ensemble: quantiles of many series at once, from cheap members weighted by their recent loss.

``forecast_many`` forecasts every row of a matrix. It keeps no state and reads only the values. A row has the same
forecast alone and among others; leading missing slots change it by less than 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np

from planner.forecast import base_models, conformal, day_profiles
from planner.forecast import weights as forecast_weights
from planner.forecast.grid import Grid, Matrix, Slots
from planner.forecast.series import OFFSET_SHARE

MEDIAN, SURE = 0.5, 0.995
QUANTILES = (0.05, MEDIAN, 0.8, 0.9, 0.95, SURE)
"""``SURE`` is the quantile that capacity is planned for."""
HISTORY_DAYS = 15
CEILING_OVER_MAXIMUM = 1.25
"""No quantile exceeds 1.25 x the highest known value: folds of a few days do not support more."""

_FOLD_DAYS = 7
_FOLD_TENS = 3
_CHUNK = 16
_LOG_LIMIT = 80.0


class ExtraMember(Protocol):
    """A further member for one series, such as a Prophet fitted at night."""

    def at(self, origins: Slots, leads: Slots) -> Matrix:
        """Returns its forecast at ``origins`` (slots of the row), at leads from 1: (origins, leads), NaN if unknown."""
        ...


NO_MEMBERS: Mapping[str, Sequence[ExtraMember]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Folds:
    """Forecasts and observed values at past origins: (series, origins, anchors), in the units of the values.

    ``ages`` are slots from each origin to the present, falling. ``truth`` is NaN if not known yet.
    """

    ages: Slots
    truth: Matrix
    predicted: Matrix
    last_value: Matrix
    seasonal_naive: Matrix


@dataclass(frozen=True, slots=True)
class Outlook:
    """Forecasts of rows of series, in the units of the values.

    ``quantiles`` maps to (series, steps): the value at each of the next slots. ``peaks`` maps to (series, steps): the
    highest value up to and including each slot, a quantile of the maximum itself, learned from past maxima. A row
    without any value is NaN throughout. ``weights`` (members, series, anchors) are those at the leads ``anchors`` (in
    slots). ``folds`` are recent on request.
    """

    step_seconds: float
    quantiles: dict[float, Matrix]
    peaks: dict[float, Matrix]
    members: tuple[str, ...]
    weights: Matrix
    anchors: Slots
    folds: Folds | None

    def only(self, row: int) -> Outlook:
        """The outlook of one series."""
        rows, folds = slice(row, row + 1), self.folds
        parts = None if folds is None else (getattr(folds, name)[rows] for name in Folds.__slots__[1:])
        return replace(
            self,
            quantiles={q: values[rows] for q, values in self.quantiles.items()},
            peaks={q: values[rows] for q, values in self.peaks.items()},
            weights=self.weights[:, rows],
            folds=None if folds is None or parts is None else Folds(folds.ages, *parts),
        )


def forecast_many(
    values: Matrix,
    *,
    step_seconds: float,
    steps: int,
    wanted: Sequence[float] = QUANTILES,
    keep_folds: bool = False,
    extra: Mapping[str, Sequence[ExtraMember]] = NO_MEMBERS,
) -> Outlook:
    """Forecasts the next ``steps`` slots of every row of ``values`` (series, slots).

    The newest slot is the last column; NaN (also infinite or negative) is a missing slot. At most the newest 15 days
    are read. Quantiles of a row never cross, are never negative and never above 1.25 x its highest value. A series that
    was constant for a day stays constant. ``extra`` members join by name, one for each row. Raises ValueError
    otherwise.
    """
    if any(len(members) != len(values) for members in extra.values()):
        raise ValueError("an extra member needs one forecaster for each row")
    grid = Grid(step_seconds)
    recent = np.asarray(values, dtype=np.float64)[:, -HISTORY_DAYS * grid.season :]
    recent = np.where(np.isfinite(recent) & (recent >= 0), recent, np.nan)
    parts = [
        _chunk(
            recent[row : row + _CHUNK],
            grid,
            steps,
            tuple(wanted),
            {name: members[row : row + _CHUNK] for name, members in extra.items()},
            keep_folds=keep_folds,
        )
        for row in range(0, len(recent), _CHUNK)
    ]
    return parts[0] if len(parts) == 1 else _concatenate(parts)


def at_origins(
    values: Matrix, origins: Sequence[int], *, step_seconds: float, steps: int, wanted: Sequence[float] = QUANTILES
) -> Outlook:
    """Forecasts one trace (slots,) as known at many ``origins``: row i has seen only ``values[:origins[i]]``."""
    width = min(HISTORY_DAYS * Grid(step_seconds).season, max(origins))
    rows = np.full((len(origins), width), np.nan)
    for row, origin in enumerate(origins):
        known = values[max(0, origin - width) : origin]
        rows[row, rows.shape[1] - known.size :] = known
    return forecast_many(rows, step_seconds=step_seconds, steps=steps, wanted=wanted)


def _chunk(
    values: Matrix,
    grid: Grid,
    steps: int,
    wanted: tuple[float, ...],
    extra: Mapping[str, Sequence[ExtraMember]],
    *,
    keep_folds: bool,
) -> Outlook:
    slots, stride = values.shape[1], grid.slots(_FOLD_TENS)
    known = ~np.isnan(values)
    mean = np.where(known, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    shift = np.maximum(OFFSET_SHARE * mean, 1e-9)
    logs = np.log(values + shift).astype(np.float32)
    inputs = day_profiles.build(logs, grid)
    origins = np.arange(slots, max(0, slots - _FOLD_DAYS * grid.season) - 1, -stride)[::-1]
    refits = np.unique([0, *range(slots, 0, -grid.season)])
    regressed = base_models.regress(inputs, refits)
    pool = _Members(inputs, tuple(extra.values()), shift)
    mix = _mix(pool, logs, origins, refits, regressed, stride)
    point = _present(pool, mix, regressed[:, -1], slots, steps)
    highest = np.where(known, values, -np.inf).max(axis=1, keepdims=True)
    top = np.where(np.isfinite(highest), highest * CEILING_OVER_MAXIMUM, np.nan)
    ages = (slots - origins) / grid.season
    scales = conformal.error_scales(mix.errors, grid.anchors, stride, grid.slots(1))
    leads_days = grid.anchors / grid.season
    spread = conformal.center_on_median(conformal.offsets(mix.errors, ages, scales, wanted, leads_days), wanted)
    spread = conformal.adapted(spread, mix.errors, ages, scales, wanted, leads_days)
    quantiles = _quantiles(point, spread, grid, shift, top, wanted)
    over = conformal.peak_errors(logs, mix.predicted, origins, grid.anchors)
    peaks = _quantiles(
        np.maximum.accumulate(point, axis=1),
        conformal.adapted(
            conformal.offsets(over, ages, scales, wanted, leads_days), over, ages, scales, wanted, leads_days
        ),
        grid,
        shift,
        top,
        wanted,
    )
    constant = (known.sum(axis=1) >= grid.season) & (
        highest[:, 0] == np.nanmin(np.where(known, values, np.inf), axis=1)
    )
    for matrix in (*quantiles.values(), *peaks.values()):
        matrix[constant] = highest[constant]
    for matrix in peaks.values():
        np.maximum.accumulate(matrix, axis=1, out=matrix)
    folds = _folds(mix, slots - origins, shift) if keep_folds else None
    names = (*base_models.NAMES, *extra)
    return Outlook(grid.step, quantiles, peaks, names, mix.weights[:, :, -1], grid.anchors, folds)


@dataclass(frozen=True, slots=True)
class _Mix:
    """Logs at fold origins and anchors: (series, origins, anchors); members and naive forecasts have one more axis."""

    members: Matrix
    weights: Matrix
    guards: Matrix
    predicted: Matrix
    truth: Matrix
    errors: Matrix


@dataclass(frozen=True, slots=True)
class _Members:
    """The base members and the extra ones."""

    inputs: day_profiles.Inputs
    extra: tuple[Sequence[ExtraMember], ...]
    shift: Matrix

    def at(self, origins: Slots, leads: Slots, regressed: Matrix) -> Matrix:
        """Logs (members, series, origins, leads).

        An extra member without a value takes the mean of the base members.
        """
        predicted = base_models.predict(self.inputs, origins, leads, regressed)
        if not self.extra:
            return predicted
        mean = predicted.mean(axis=0)
        outputs = [np.stack([member.at(origins, leads) for member in output]) for output in self.extra]
        logs = [np.log(output + self.shift[:, :, None]) for output in outputs]
        joined = np.stack([np.where(np.isnan(output), mean, output) for output in logs])
        return np.concatenate([predicted, joined.astype(predicted.dtype)])

    def usable(self) -> Matrix:
        """True if a member may take part: (members, series)."""
        usual = base_models.usable(self.inputs)
        return np.concatenate([usual, np.ones((len(self.extra), usual.shape[1]), dtype=bool)])


def _mix(pool: _Members, logs: Matrix, origins: Slots, refits: Slots, regressed: Matrix, stride: int) -> _Mix:
    inputs = pool.inputs
    anchors, season, slots = inputs.grid.anchors, inputs.grid.season, logs.shape[1]
    fit = np.maximum(np.searchsorted(refits, origins, side="right") - 1, 0)
    members = pool.at(origins, anchors, regressed[:, fit])
    padded = np.concatenate([logs, np.full((len(logs), 1), np.nan, logs.dtype)], axis=1)
    truth = padded[:, np.minimum(origins[:, None] + anchors - 1, slots)]
    observed = np.exp(truth)
    losses = forecast_weights.losses(np.exp(members), observed)
    weights = forecast_weights.shares(
        forecast_weights.known_losses(losses, anchors, stride, season, forecast_weights.HALF_LIFE_DAYS), pool.usable()
    )
    mixed = forecast_weights.median(members, weights)
    naive = members[[base_models.LAST, base_models.YESTERDAY]]
    guards = forecast_weights.guards(
        forecast_weights.losses(np.exp(mixed)[None], observed),
        losses[[base_models.LAST, base_models.YESTERDAY]],
        anchors,
        stride,
        season,
    )
    predicted = forecast_weights.guarded(mixed, naive, guards)
    return _Mix(members, weights, guards, predicted, truth, truth - predicted)


def _present(pool: _Members, mix: _Mix, regressed: Matrix, slots: int, steps: int) -> Matrix:
    """The mix at the present for every step: logs (series, steps)."""
    anchors, leads = pool.inputs.grid.anchors, np.arange(1, steps + 1)
    at = _interpolate(anchors, leads)
    coefficients = at(regressed.transpose(0, 2, 1)).transpose(0, 2, 1)[:, None]
    members = pool.at(np.array([slots]), leads, coefficients)[:, :, 0]
    mixed = forecast_weights.median(members, at(mix.weights[:, :, -1]))
    return forecast_weights.guarded(mixed, members[[base_models.LAST, base_models.YESTERDAY]], at(mix.guards[:, :, -1]))


def _interpolate(anchors: Slots, leads: Slots) -> Callable[[Matrix], Matrix]:
    """Interpolates the last axis from anchors to leads; constant beyond both ends."""
    if anchors.size == 1:
        return lambda matrix: np.repeat(matrix, leads.size, axis=-1)
    low = np.clip(np.searchsorted(anchors, leads, side="right") - 1, 0, anchors.size - 2)
    share = np.clip((leads - anchors[low]) / (anchors[low + 1] - anchors[low]), 0.0, 1.0).astype(np.float32)
    return lambda matrix: matrix[..., low] * (1 - share) + matrix[..., low + 1] * share


def _quantiles(
    point: Matrix, offsets: Matrix, grid: Grid, shift: Matrix, top: Matrix, wanted: tuple[float, ...]
) -> dict[float, Matrix]:
    """Quantiles in the units of the values, in rising order."""
    dense = _interpolate(grid.anchors, np.arange(1, point.shape[1] + 1))(offsets)
    logs = np.minimum(point[:, None] + dense, _LOG_LIMIT).astype(np.float64)
    values = np.clip(np.exp(logs) - shift[:, :, None], 0.0, top[:, :, None])
    values = np.maximum.accumulate(values, axis=1)
    return {quantile: values[:, column] for column, quantile in enumerate(wanted)}


def _folds(mix: _Mix, ages: Slots, shift: Matrix) -> Folds:
    truth, predicted, last, naive = (
        np.maximum(np.exp(part.astype(np.float64)) - shift[:, :, None], 0.0)
        for part in (mix.truth, mix.predicted, mix.members[base_models.LAST], mix.members[base_models.YESTERDAY])
    )
    return Folds(ages, truth, predicted, last, naive)


def _concatenate(parts: Sequence[Outlook]) -> Outlook:
    first = parts[0]
    folded = [part.folds for part in parts if part.folds is not None]
    folds = None
    if folded:
        rows = (np.concatenate([getattr(part, name) for part in folded]) for name in Folds.__slots__[1:])
        folds = Folds(folded[0].ages, *rows)
    return Outlook(
        first.step_seconds,
        {q: np.concatenate([part.quantiles[q] for part in parts]) for q in first.quantiles},
        {q: np.concatenate([part.peaks[q] for part in parts]) for q in first.peaks},
        first.members,
        np.concatenate([part.weights for part in parts], axis=1),
        first.anchors,
        folds,
    )
