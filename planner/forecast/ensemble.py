"""The fast tier: quantiles of many series at once, from a mix of cheap members weighed by their recent loss.

``forecast_many`` takes a matrix and answers for every row; it keeps no state and reads nothing but the
values. A row gets the same answer alone and among others; leading missing slots change it by less than 1 %.
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
"""``SURE`` is what replicas are planned for."""
HISTORY_DAYS = 15
CEILING_OVER_MAXIMUM = 1.25
"""No quantile lies above 1.25 x the highest value known: no fold of a few days proves more."""

_FOLD_DAYS = 7
_FOLD_TENS = 3
_CHUNK = 16
_LOG_LIMIT = 80.0


class Speaker(Protocol):
    """A further member for one series, such as a Prophet that was fitted at night."""

    def at(self, origins: Slots, leads: Slots) -> Matrix:
        """What it says at origins (slots of the row), at leads from 1 on: (origins, leads), NaN if unknown."""
        ...


NOBODY: Mapping[str, Sequence[Speaker]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Folds:
    """What was said at past origins and what came: (series, origins, anchors), in the units of the values.

    ``ages`` are slots from each origin to the present, falling. ``truth`` is NaN where it is not known yet.
    """

    ages: Slots
    truth: Matrix
    said: Matrix
    last_value: Matrix
    seasonal_naive: Matrix


@dataclass(frozen=True, slots=True)
class Outlook:
    """What will come, for rows of series. Units are those of the values.

    ``quantiles`` maps to (series, steps): the value at each of the next slots. ``peaks`` maps to
    (series, steps): the highest value from now up to and including each slot, a quantile of the maximum
    itself, learned from past maxima. A row without any value is NaN throughout. ``weights`` (members,
    series, anchors) says who was listened to, at the leads ``anchors`` (in slots). ``folds`` is kept when asked
    for.
    """

    step_seconds: float
    quantiles: dict[float, Matrix]
    peaks: dict[float, Matrix]
    members: tuple[str, ...]
    weights: Matrix
    anchors: Slots
    folds: Folds | None

    def only(self, row: int) -> Outlook:
        """Of one series."""
        here, folds = slice(row, row + 1), self.folds
        kept = None if folds is None else (getattr(folds, name)[here] for name in Folds.__slots__[1:])
        return replace(
            self,
            quantiles={q: found[here] for q, found in self.quantiles.items()},
            peaks={q: found[here] for q, found in self.peaks.items()},
            weights=self.weights[:, here],
            folds=None if folds is None or kept is None else Folds(folds.ages, *kept),
        )


def forecast_many(
    values: Matrix,
    *,
    step_seconds: float,
    steps: int,
    wanted: Sequence[float] = QUANTILES,
    keep_folds: bool = False,
    speakers: Mapping[str, Sequence[Speaker]] = NOBODY,
) -> Outlook:
    """Forecast the next ``steps`` slots of every row of ``values`` (series, slots).

    The newest slot is the last column; NaN (also infinite or negative) is a missing slot. At most the
    newest 15 days are read. Row by row the result never crosses, is never negative and never above 1.25 x
    the highest value. What was constant for a day stays so. ``speakers`` join the members by name, one for each
    row.
    """
    if any(len(each) != len(values) for each in speakers.values()):
        raise ValueError("a further member has one speaker for each row")
    grid = Grid(step_seconds)
    kept = np.asarray(values, dtype=np.float64)[:, -HISTORY_DAYS * grid.season :]
    kept = np.where(np.isfinite(kept) & (kept >= 0), kept, np.nan)
    parts = [
        _chunk(
            kept[row : row + _CHUNK],
            grid,
            steps,
            tuple(wanted),
            {name: each[row : row + _CHUNK] for name, each in speakers.items()},
            keep_folds=keep_folds,
        )
        for row in range(0, len(kept), _CHUNK)
    ]
    return parts[0] if len(parts) == 1 else _joined(parts)


def at_origins(
    values: Matrix, origins: Sequence[int], *, step_seconds: float, steps: int, wanted: Sequence[float] = QUANTILES
) -> Outlook:
    """One trace (slots,) as it was known at many ``origins``: row i has seen ``values[:origins[i]]`` alone."""
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
    speakers: Mapping[str, Sequence[Speaker]],
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
    ask = _Asking(inputs, tuple(speakers.values()), shift)
    mix = _mix(ask, logs, origins, refits, regressed, stride)
    point = _now(ask, mix, regressed[:, -1], slots, steps)
    highest = np.where(known, values, -np.inf).max(axis=1, keepdims=True)
    top = np.where(np.isfinite(highest), highest * CEILING_OVER_MAXIMUM, np.nan)
    ages = (slots - origins) / grid.season
    scales = conformal.stirred(mix.errors, grid.anchors, stride, grid.slots(1))
    spread = conformal.around(conformal.offsets(mix.errors, ages, scales, wanted, grid.anchors / grid.season), wanted)
    quantiles = _spread(point, spread, grid, shift, top, wanted)
    over = conformal.peak_errors(logs, mix.said, origins, grid.anchors)
    peaks = _spread(
        np.maximum.accumulate(point, axis=1),
        conformal.offsets(over, ages, scales, wanted, grid.anchors / grid.season),
        grid,
        shift,
        top,
        wanted,
    )
    constant = (known.sum(axis=1) >= grid.season) & (
        highest[:, 0] == np.nanmin(np.where(known, values, np.inf), axis=1)
    )
    for found in (*quantiles.values(), *peaks.values()):
        found[constant] = highest[constant]
    for found in peaks.values():
        np.maximum.accumulate(found, axis=1, out=found)
    folds = _folds(mix, slots - origins, shift) if keep_folds else None
    names = (*base_models.NAMES, *speakers)
    return Outlook(grid.step, quantiles, peaks, names, mix.weights[:, :, -1], grid.anchors, folds)


@dataclass(frozen=True, slots=True)
class _Mix:
    """Logs at fold origins and anchors: (series, origins, anchors); of members and naive ones before that."""

    asked: Matrix
    weights: Matrix
    guards: Matrix
    said: Matrix
    truth: Matrix
    errors: Matrix


@dataclass(frozen=True, slots=True)
class _Asking:
    """The members and those who joined them."""

    inputs: day_profiles.Inputs
    speakers: tuple[Sequence[Speaker], ...]
    shift: Matrix

    def at(self, origins: Slots, leads: Slots, regressed: Matrix) -> Matrix:
        """Logs (members, series, origins, leads). Who joined and does not know says the mean of the others."""
        said = base_models.predict(self.inputs, origins, leads, regressed)
        if not self.speakers:
            return said
        mean = said.mean(axis=0)
        told = [np.stack([one.at(origins, leads) for one in each]) for each in self.speakers]
        logs = [np.log(each + self.shift[:, :, None]) for each in told]
        joined = np.stack([np.where(np.isnan(each), mean, each) for each in logs])
        return np.concatenate([said, joined.astype(said.dtype)])

    def usable(self) -> Matrix:
        """True where a member may speak: (members, series)."""
        usual = base_models.usable(self.inputs)
        return np.concatenate([usual, np.ones((len(self.speakers), usual.shape[1]), dtype=bool)])


def _mix(ask: _Asking, logs: Matrix, origins: Slots, refits: Slots, regressed: Matrix, stride: int) -> _Mix:
    inputs = ask.inputs
    anchors, season, slots = inputs.grid.anchors, inputs.grid.season, logs.shape[1]
    fit = np.maximum(np.searchsorted(refits, origins, side="right") - 1, 0)
    asked = ask.at(origins, anchors, regressed[:, fit])
    padded = np.concatenate([logs, np.full((len(logs), 1), np.nan, logs.dtype)], axis=1)
    truth = padded[:, np.minimum(origins[:, None] + anchors - 1, slots)]
    came = np.exp(truth)
    lost = forecast_weights.losses(np.exp(asked), came)
    weights = forecast_weights.shares(
        forecast_weights.known_losses(lost, anchors, stride, forecast_weights.HALF_LIFE_DAYS * season), ask.usable()
    )
    mixed = forecast_weights.median(asked, weights)
    naive = asked[[base_models.LAST, base_models.YESTERDAY]]
    guards = forecast_weights.guards(
        forecast_weights.losses(np.exp(mixed)[None], came),
        lost[[base_models.LAST, base_models.YESTERDAY]],
        anchors,
        stride,
        season,
    )
    said = forecast_weights.guarded(mixed, naive, guards)
    return _Mix(asked, weights, guards, said, truth, truth - said)


def _now(ask: _Asking, mix: _Mix, regressed: Matrix, slots: int, steps: int) -> Matrix:
    """What the mix says at the present for every step: logs (series, steps)."""
    anchors, leads = ask.inputs.grid.anchors, np.arange(1, steps + 1)
    at = _between(anchors, leads)
    coefficients = at(regressed.transpose(0, 2, 1)).transpose(0, 2, 1)[:, None]
    asked = ask.at(np.array([slots]), leads, coefficients)[:, :, 0]
    mixed = forecast_weights.median(asked, at(mix.weights[:, :, -1]))
    return forecast_weights.guarded(mixed, asked[[base_models.LAST, base_models.YESTERDAY]], at(mix.guards[:, :, -1]))


def _between(anchors: Slots, leads: Slots) -> Callable[[Matrix], Matrix]:
    """Interpolates the last axis from anchors to leads; held beyond both ends."""
    if anchors.size == 1:
        return lambda found: np.repeat(found, leads.size, axis=-1)
    low = np.clip(np.searchsorted(anchors, leads, side="right") - 1, 0, anchors.size - 2)
    share = np.clip((leads - anchors[low]) / (anchors[low + 1] - anchors[low]), 0.0, 1.0).astype(np.float32)
    return lambda found: found[..., low] * (1 - share) + found[..., low + 1] * share


def _spread(
    point: Matrix, offsets: Matrix, grid: Grid, shift: Matrix, top: Matrix, wanted: tuple[float, ...]
) -> dict[float, Matrix]:
    """Quantiles in the units of the values, rising from one to the next."""
    dense = _between(grid.anchors, np.arange(1, point.shape[1] + 1))(offsets)
    logs = np.minimum(point[:, None] + dense, _LOG_LIMIT).astype(np.float64)
    found = np.clip(np.exp(logs) - shift[:, :, None], 0.0, top[:, :, None])
    found = np.maximum.accumulate(found, axis=1)
    return {quantile: found[:, column] for column, quantile in enumerate(wanted)}


def _folds(mix: _Mix, ages: Slots, shift: Matrix) -> Folds:
    truth, said, last, naive = (
        np.maximum(np.exp(each.astype(np.float64)) - shift[:, :, None], 0.0)
        for each in (mix.truth, mix.said, mix.asked[base_models.LAST], mix.asked[base_models.YESTERDAY])
    )
    return Folds(ages, truth, said, last, naive)


def _joined(parts: Sequence[Outlook]) -> Outlook:
    first = parts[0]
    kept = [part.folds for part in parts if part.folds is not None]
    folds = None
    if kept:
        rows = (np.concatenate([getattr(each, name) for each in kept]) for name in Folds.__slots__[1:])
        folds = Folds(kept[0].ages, *rows)
    return Outlook(
        first.step_seconds,
        {q: np.concatenate([part.quantiles[q] for part in parts]) for q in first.quantiles},
        {q: np.concatenate([part.peaks[q] for part in parts]) for q in first.peaks},
        first.members,
        np.concatenate([part.weights for part in parts], axis=1),
        first.anchors,
        folds,
    )
