"""What was forecast, held against what came: how far load and its peaks were off, by how far ahead they were said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from outrider.clock import from_unix
from outrider.documents.serialization import finite
from outrider.model import EntityRef, Floats, ForecastPoint, SignalKey, SignalKind
from outrider.ports import MetricStore, StateReader
from outrider.vocabulary import catalog
from outrider.vocabulary.indicators import wape

STEP = timedelta(minutes=10)
_MEDIAN, _P95 = 0.5, 0.95
_MISSING_IN_PEAK = 0.1


@dataclass(frozen=True, slots=True)
class Came:
    """Forecasts of one horizon against what came. Ratios; None where nothing could be held against it.

    ``peak_exceeds_p95`` is the share of forecasts whose true peak lay above the 95 % quantile of the peak,
    ``over_provision`` the mean of that quantile over the true peak, minus one.
    """

    horizon: timedelta
    forecasts: int
    wape: float | None
    peak_error: float | None
    peak_exceeds_p95: float | None
    over_provision: float | None

    def as_dict(self) -> dict[str, Any]:
        """As the API gives it."""
        figures = ("wape", "peak_error", "peak_exceeds_p95", "over_provision")
        return {
            "horizon_seconds": self.horizon.total_seconds(),
            "forecasts": self.forecasts,
            **{name: finite(getattr(self, name)) for name in figures},
        }


def key_of(signal: str) -> SignalKey:
    """What is read of the metric store for a forecast signal: of a histogram the 99 % quantile."""
    known = catalog.signals().get(signal)
    return SignalKey(signal, quantile=0.99 if known and known.kind is SignalKind.HISTOGRAM else None)


def kept(
    state: StateReader, metrics: MetricStore, service: EntityRef, now: datetime, span: timedelta
) -> tuple[Came, ...]:
    """Forecasts of a service for instants of the last ``span``, by horizon, the nearest first; empty without any.

    Slots of ten minutes that are missing are not held against anything, nor is a peak of which more than a tenth
    is missing.
    """
    over = now - STEP  # of a slot that still runs nobody knows what came
    points = [point for point in state.forecasts(entity=service, since=now - span, until=over) if point.quantiles]
    if not points:
        return ()
    key = key_of(points[0].signal)
    points = [point for point in points if point.signal == points[0].signal]
    step = STEP.total_seconds()
    begin = from_unix(min(point.made_at for point in points).timestamp() // step * step)
    window = metrics.read_windows(service.kind, [key], begin, now, STEP, [service])
    rows = window.column(key)
    values: Floats = rows[0] if len(rows) else np.full(window.times.size, np.nan)
    horizons = sorted({point.horizon for point in points})
    return tuple(_came([each for each in points if each.horizon == one], window.times, values) for one in horizons)


def _came(points: Sequence[ForecastPoint], times: Floats, values: Floats) -> Came:
    """All points are of one horizon. A peak is that of the slots that began at the making or later."""
    step = STEP.total_seconds()
    slots = round(points[0].horizon.total_seconds() / step) + 1
    places = np.searchsorted(times, [point.at.timestamp() - step / 2 for point in points])
    padded = np.concatenate([np.full(slots - 1, np.nan), values, [np.nan]])
    stretches = sliding_window_view(padded, slots)[np.minimum(places, values.size)]
    begun = np.array([[point.at.timestamp() - point.made_at.timestamp()] for point in points])
    spoken = (slots - 1 - np.arange(slots)) * step <= begun
    missing = (np.isnan(stretches) & spoken).sum(axis=1) / spoken.sum(axis=1)
    highest = np.where(np.isnan(stretches) | ~spoken, -np.inf, stretches).max(axis=1)
    peaks = np.where(missing <= _MISSING_IN_PEAK, highest, np.nan)
    truth = stretches[:, -1]
    median, middle, high = (
        _column(points, kind, level) for kind, level in (("quantiles", _MEDIAN), ("peaks", _MEDIAN), ("peaks", _P95))
    )
    known = np.isfinite(peaks) & np.isfinite(high) & (peaks > 0)
    peaks, high = peaks[known], high[known]
    judged = np.isfinite(truth) & np.isfinite(median)
    return Came(
        horizon=points[0].horizon,
        forecasts=int(judged.sum()),
        wape=wape(truth[judged], median[judged]) if judged.any() else None,
        peak_error=float(np.abs(middle[known] - peaks).sum() / peaks.sum()) if known.any() else None,
        peak_exceeds_p95=float((peaks > high).mean()) if known.any() else None,
        over_provision=float((high / peaks).mean() - 1.0) if known.any() else None,
    )


def _column(points: Sequence[ForecastPoint], kind: str, level: float) -> Floats:
    return np.array([getattr(point, kind).get(level, np.nan) for point in points], dtype=np.float64)
