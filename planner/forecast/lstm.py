"""A small LSTM in log space: trained nightly, evaluated all day by plain array arithmetic.

Its input is the deviation of the newest twelve hours from the mean day, its output the deviation at each lead. There
is one network for each series, trained by Adam on the absolute error. The number of steps is fixed, so the training
time is known beforehand; the seed is fixed too. Only the fit needs JAX.

Limits: a network trained on few days has seen each hour of the day a dozen times. It learns how deviations fade, not
the shape of a Monday. After a level shift it forecasts the old mean day until the deviation has filled its window.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from outrider.model import Floats
from planner.forecast.grid import Grid, Matrix, Slots
from planner.forecast.lstm_weights import Weights
from planner.forecast.series import Series, offset

HIDDEN = 24
WINDOW_TENS = 72
FEATURES = 3
_STRIDE_TENS = 2
_FARTHEST = 2.5
"""Largest deviation from the mean day, in logs: exp(2.5), a factor of twelve."""
_LOG_LIMIT = 80.0


@dataclass(frozen=True, slots=True)
class View:
    """Input of the network: logs minus the mean ``day``, in units of ``scale``; the day begins at ``start``."""

    start: float
    shift: float
    day: Floats
    scale: float

    def windows(self, series: Series, origins: Slots) -> Floats:
        """Returns the inputs known at ``origins``: (origins, slots, features). A missing slot takes the mean day."""
        wide = Grid(series.step).slots(WINDOW_TENS)
        off = np.nan_to_num(
            (np.log(series.values + self.shift) - self._mean_day(series, 0, series.values.size)) / self.scale
        )
        padded = np.concatenate([np.zeros(wide), off])
        # row o ends before slot o
        newest = sliding_window_view(padded, wide)[origins]
        turns = 2 * np.pi * (origins[:, None] + np.arange(-wide, 0) + self._ahead(series)) / self.day.size
        inputs: Floats = np.stack([newest, np.sin(turns), np.cos(turns)], axis=-1)
        return inputs

    def targets(self, series: Series, origins: Slots, leads: Slots) -> Floats:
        """Returns the observed deviations after ``origins``: (origins, leads), NaN if unknown."""
        indices = origins[:, None] + leads[None, :] - 1
        longest = int(indices.max(initial=0)) + 1
        padded = np.concatenate([series.values, np.full(max(0, longest - series.values.size), np.nan)])
        off = (np.log(padded + self.shift) - self._mean_day(series, 0, padded.size)) / self.scale
        deviations: Floats = off[indices]
        return deviations

    def values(self, series: Series, off: Floats, origins: Slots, leads: Slots) -> Matrix:
        """Converts deviations (origins, leads) to the units of the values; never negative."""
        mean_day = self.day[(origins[:, None] + leads[None, :] - 1 + self._ahead(series)) % self.day.size]
        logs = mean_day + np.clip(off * self.scale, -_FARTHEST, _FARTHEST)
        result: Matrix = np.maximum(np.exp(np.minimum(logs, _LOG_LIMIT)) - self.shift, 0.0)
        return result

    def _mean_day(self, series: Series, begin: int, end: int) -> Floats:
        mean_day: Floats = self.day[(np.arange(begin, end) + self._ahead(series)) % self.day.size]
        return mean_day

    def _ahead(self, series: Series) -> int:
        return round((series.start - self.start) / series.step)


@dataclass(frozen=True, slots=True)
class FittedLstm:
    """A trained network. Interpolates between the leads it was trained for, and holds the last one."""

    view: View
    leads: Slots
    weights: Weights

    def at(self, series: Series, origins: Slots, leads: Slots) -> Matrix:
        """Returns forecasts at ``origins`` of ``series``: (origins, leads)."""
        deviations = self.weights.run(self.view.windows(series, origins))
        high = np.clip(np.searchsorted(self.leads, leads), 1, self.leads.size - 1)
        low = high - 1
        share = np.clip((leads - self.leads[low]) / (self.leads[high] - self.leads[low]), 0.0, 1.0)
        off = deviations[:, low] * (1.0 - share) + deviations[:, high] * share
        return self.view.values(series, off, origins, leads)


@dataclass(frozen=True, slots=True)
class Lstm:
    """The LSTM as a nightly forecaster."""

    name: str = "lstm"
    title: str = "LSTM"
    extra: str = "lstm"

    def is_absent(self) -> bool:
        """True if a package of the extra is not installed."""
        return any(find_spec(package) is None for package in ("jax", "equinox", "optax"))

    def fit(self, series: Series, ahead: int) -> FittedLstm:
        """Trains on origins 20 minutes apart. Raises ValueError if no origin has a known window."""
        del ahead  # a network accepts any origin
        from planner.forecast.lstm_training import train  # noqa: PLC0415 - only a fit pays for importing JAX

        grid = Grid(series.step)
        view, leads = _view(series), grid.anchors
        origins = np.arange(grid.slots(WINDOW_TENS), series.values.size, grid.slots(_STRIDE_TENS))
        targets = view.targets(series, origins, leads)
        if not np.isfinite(targets).any():
            raise ValueError("the history is too short for a window")
        return FittedLstm(view, leads, train(view.windows(series, origins), targets, HIDDEN))


def _view(series: Series) -> View:
    shift = offset(series.values)
    logs = np.log(series.values + shift)
    padded = np.concatenate([logs, np.full(-logs.size % series.season, np.nan)]).reshape(-1, series.season)
    known = ~np.isnan(padded)
    total = np.where(known, padded, 0.0).sum(axis=0)
    day = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nanmean(logs))
    spread = float(np.nanstd(logs - np.resize(day, logs.size)))
    return View(series.start, shift, day, max(spread, 1e-6))
