"""A small LSTM in log space: learned by night, asked all day by plain array arithmetic.

It reads how far the newest twelve hours lay off the mean day and says how far each lead will. One network a series,
trained by Adam on the absolute error for a fixed number of steps, so that the time it takes is known beforehand;
the seed is fixed. JAX is asked by the fit alone: who listens to a fit needs none of it.

Misleads: a network of so few days has seen each hour of the day a dozen times. It learns how deviations fade, not
what a Monday is; after a level shift it says the old mean day until the deviation has filled its window.
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
"""It never says more than exp(2.5), a factor of twelve, off the mean day."""
_LOG_LIMIT = 80.0


@dataclass(frozen=True, slots=True)
class View:
    """A series as the network sees it: logs off the ``day`` that begins at instant ``start``, in units of ``scale``."""

    start: float
    shift: float
    day: Floats
    scale: float

    def windows(self, series: Series, origins: Slots) -> Floats:
        """What is known at origins: (origins, slots, features). A missing slot lies on the mean day."""
        wide = Grid(series.step).slots(WINDOW_TENS)
        off = np.nan_to_num(
            (np.log(series.values + self.shift) - self._usual(series, 0, series.values.size)) / self.scale
        )
        padded = np.concatenate([np.zeros(wide), off])
        # row o ends before slot o
        newest = sliding_window_view(padded, wide)[origins]
        turns = 2 * np.pi * (origins[:, None] + np.arange(-wide, 0) + self._ahead(series)) / self.day.size
        found: Floats = np.stack([newest, np.sin(turns), np.cos(turns)], axis=-1)
        return found

    def targets(self, series: Series, origins: Slots, leads: Slots) -> Floats:
        """What came after origins, NaN where that is not known: (origins, leads)."""
        places = origins[:, None] + leads[None, :] - 1
        longest = int(places.max(initial=0)) + 1
        padded = np.concatenate([series.values, np.full(max(0, longest - series.values.size), np.nan)])
        off = (np.log(padded + self.shift) - self._usual(series, 0, padded.size)) / self.scale
        found: Floats = off[places]
        return found

    def values(self, series: Series, off: Floats, origins: Slots, leads: Slots) -> Matrix:
        """Deviations (origins, leads) back in the units of the values, never negative."""
        usual = self.day[(origins[:, None] + leads[None, :] - 1 + self._ahead(series)) % self.day.size]
        logs = usual + np.clip(off * self.scale, -_FARTHEST, _FARTHEST)
        found: Matrix = np.maximum(np.exp(np.minimum(logs, _LOG_LIMIT)) - self.shift, 0.0)
        return found

    def _usual(self, series: Series, begin: int, end: int) -> Floats:
        found: Floats = self.day[(np.arange(begin, end) + self._ahead(series)) % self.day.size]
        return found

    def _ahead(self, series: Series) -> int:
        return round((series.start - self.start) / series.step)


@dataclass(frozen=True, slots=True)
class FittedLstm:
    """A trained network. Between the leads it was trained for, straight lines; past the last one, that."""

    view: View
    leads: Slots
    weights: Weights

    def at(self, series: Series, origins: Slots, leads: Slots) -> Matrix:
        """What it says at origins of ``series``: (origins, leads)."""
        said = self.weights.run(self.view.windows(series, origins))
        high = np.clip(np.searchsorted(self.leads, leads), 1, self.leads.size - 1)
        low = high - 1
        share = np.clip((leads - self.leads[low]) / (self.leads[high] - self.leads[low]), 0.0, 1.0)
        off = said[:, low] * (1.0 - share) + said[:, high] * share
        return self.view.values(series, off, origins, leads)


@dataclass(frozen=True, slots=True)
class Lstm:
    """The LSTM as one of the forecasters of the night."""

    name: str = "lstm"
    title: str = "LSTM"
    extra: str = "lstm"

    def is_absent(self) -> bool:
        """True where one of the packages of the extra is not installed."""
        return any(find_spec(package) is None for package in ("jax", "equinox", "optax"))

    def fit(self, series: Series, ahead: int) -> FittedLstm:
        """Train on every origin of the history, each twenty minutes. Raises ValueError where none is known whole."""
        del ahead  # a network is asked at any origin
        from planner.forecast.lstm_training import train  # noqa: PLC0415 - JAX, which only a fit should cost

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
