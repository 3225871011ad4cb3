"""Forecast accuracy per horizon: the error of load and of peak load against the observed load."""

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
class ObservedLoad:
    """Errors of the forecasts of one horizon against the observed load. Ratios; None without observed load.

    ``peak_exceeds_p95`` is the share of forecasts whose observed peak exceeded the 95 % quantile of the peak.
    ``over_provision`` is the mean of that quantile over the observed peak, minus one.
    """

    horizon: timedelta
    forecasts: int
    wape: float | None
    peak_error: float | None
    peak_exceeds_p95: float | None
    over_provision: float | None

    def as_dict(self) -> dict[str, Any]:
        """The keys of the API response."""
        figures = ("wape", "peak_error", "peak_exceeds_p95", "over_provision")
        return {
            "horizon_seconds": self.horizon.total_seconds(),
            "forecasts": self.forecasts,
            **{name: finite(getattr(self, name)) for name in figures},
        }


def key_of(signal: str) -> SignalKey:
    """Returns the metric store key of a forecast signal; for a histogram, its 99 % quantile."""
    known = catalog.signals().get(signal)
    return SignalKey(signal, quantile=0.99 if known and known.kind is SignalKind.HISTOGRAM else None)


def accuracy_by_horizon(
    state: StateReader, metrics: MetricStore, service: EntityRef, now: datetime, span: timedelta
) -> tuple[ObservedLoad, ...]:
    """Returns the accuracy of a service's forecasts for the last ``span``, shortest horizon first.

    Empty without forecasts. Missing slots of ten minutes are skipped, and peaks with more than a tenth missing.
    """
    last_slot = now - STEP  # the load of the current slot is incomplete
    points = [point for point in state.forecasts(entity=service, since=now - span, until=last_slot) if point.quantiles]
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
    return tuple(
        _compare([point for point in points if point.horizon == horizon], window.times, values) for horizon in horizons
    )


def _compare(points: Sequence[ForecastPoint], times: Floats, values: Floats) -> ObservedLoad:
    """All points have one horizon. A peak covers the slots that began at the time of the forecast or later."""
    step = STEP.total_seconds()
    slots = round(points[0].horizon.total_seconds() / step) + 1
    ends = np.searchsorted(times, [point.at.timestamp() - step / 2 for point in points])
    padded = np.concatenate([np.full(slots - 1, np.nan), values, [np.nan]])
    stretches = sliding_window_view(padded, slots)[np.minimum(ends, values.size)]
    elapsed = np.array([[point.at.timestamp() - point.made_at.timestamp()] for point in points])
    covered = (slots - 1 - np.arange(slots)) * step <= elapsed
    missing = (np.isnan(stretches) & covered).sum(axis=1) / covered.sum(axis=1)
    highest = np.where(np.isnan(stretches) | ~covered, -np.inf, stretches).max(axis=1)
    peaks = np.where(missing <= _MISSING_IN_PEAK, highest, np.nan)
    truth = stretches[:, -1]
    median, middle, high = (
        _column(points, kind, level) for kind, level in (("quantiles", _MEDIAN), ("peaks", _MEDIAN), ("peaks", _P95))
    )
    known = np.isfinite(peaks) & np.isfinite(high) & (peaks > 0)
    peaks, high = peaks[known], high[known]
    comparable = np.isfinite(truth) & np.isfinite(median)
    return ObservedLoad(
        horizon=points[0].horizon,
        forecasts=int(comparable.sum()),
        wape=wape(truth[comparable], median[comparable]) if comparable.any() else None,
        peak_error=float(np.abs(middle[known] - peaks).sum() / peaks.sum()) if known.any() else None,
        peak_exceeds_p95=float((peaks > high).mean()) if known.any() else None,
        over_provision=float((high / peaks).mean() - 1.0) if known.any() else None,
    )


def _column(points: Sequence[ForecastPoint], kind: str, level: float) -> Floats:
    return np.array([getattr(point, kind).get(level, np.nan) for point in points], dtype=np.float64)
