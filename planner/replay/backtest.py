"""Rolling-origin back-test of the forecaster on a traffic trace, reported by ``outrider forecast backtest``.

Every two hours the forecaster runs with only the data known then. Each horizon is scored over all steps from the origin
on. Missing slots are not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from outrider.clock import from_unix
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, Floats, Forecast
from outrider.vocabulary.indicators import wape
from planner.forecast import naive
from planner.forecast.ensemble import MEDIAN, QUANTILES
from planner.forecast.forecaster import DEFAULT_MODELS, PROPHET, forecast
from planner.forecast.nightly_fit import Fits
from planner.forecast.prophet import default_forecast
from planner.forecast.scoring import pinball
from planner.forecast.series import Series
from planner.replay import loads

HORIZONS = (timedelta(minutes=30), timedelta(hours=2), timedelta(hours=24))
_ORIGIN_EVERY = timedelta(hours=2)
_LONG_TRACE_DAYS = 10.0
_SCORED_AFTER_DAYS = (4, 8)
_PEAK = 0.95
_MISSING_IN_PEAK = 0.1


@dataclass(frozen=True, slots=True)
class Trace:
    """A request rate on an even grid; NaN is a missing slot. ``times`` are unix seconds."""

    name: str
    times: Floats
    values: Floats
    step: timedelta


@dataclass(frozen=True, slots=True)
class HorizonScore:
    """Accuracy of forecasts of one horizon. Ratios; None if nothing could be scored.

    ``wape_prophet`` is that of Prophet with default settings, refitted at each origin. ``pinball`` is the loss of all
    quantiles relative to the observed values (for the median alone it is WAPE). ``peak_error`` is that of the peak's
    median relative to the true peak up to the horizon. Forecasters are selected by these two. ``peak_exceeds_p95`` is
    the share of origins whose true peak exceeds the p95 of the peak. ``over_provision`` is the mean of that p95 over
    the true peak, minus one.
    """

    name: str
    horizon: float
    wape: float | None
    wape_last_value: float | None
    wape_seasonal_naive: float | None
    wape_prophet: float | None
    coverage90: float | None
    peak_exceeds_p95: float | None
    over_provision: float | None
    pinball: float | None = None
    peak_error: float | None = None
    models: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForecastBacktest:
    """Scores by trace and horizon. ``seconds_per_refit`` is None without a timer."""

    series: tuple[HorizonScore, ...]
    seconds_per_refit: float | None
    refits: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The keys of ``outrider forecast backtest -o json``."""
        return {"series": [asdict(row) for row in self.series], "seconds_per_refit": self.seconds_per_refit}


def parse_trace(text: str, name: str, source: str = "") -> Trace:
    """Reads CSV in the format of ``planner.replay.loads``. ``source`` names the file in messages, by default ``name``.

    Raises UsageError with the line if a column, a timestamp or a number cannot be read, or if timestamps do not rise.
    """
    source = source or name
    times, values, lines = loads.read(text, source)
    gaps = np.diff(times)
    if gaps.size == 0:
        raise UsageError(f"{source} has only one slot", hint="give days of slots, one line each")
    if (gaps <= 0).any():
        at = lines[int(np.argmax(gaps <= 0)) + 1]
        hint = "sort the file by time_utc; local time repeats an hour at the end of summer time, UTC does not"
        raise UsageError(f"{source}:{at}: timestamps must rise from line to line", hint=hint)
    return Trace(name, times, values, timedelta(seconds=float(np.median(gaps))))


def backtest(
    traces: Sequence[Trace],
    *,
    horizons: Sequence[timedelta] = HORIZONS,
    models: Sequence[str] = DEFAULT_MODELS,
    origin_every: timedelta = _ORIGIN_EVERY,
    timer: Callable[[], float] | None = None,
) -> ForecastBacktest:
    """Scores every trace at every horizon.

    Traces longer than ten days are scored from their ninth day on, shorter ones from their fifth. At each origin the
    forecaster runs on the history alone; Prophet in its mix is fitted at midnights. ``timer`` is a monotonic clock in
    seconds.
    """
    rows: list[HorizonScore] = []
    started, refits = (timer() if timer else 0.0), 0
    for trace in traces:
        scores, count = _backtest_trace(trace, horizons, models, origin_every)
        rows.extend(scores)
        refits += count
    seconds = (timer() - started) / refits if timer and refits else None
    return ForecastBacktest(tuple(rows), seconds, refits)


def merge_backtests(parts: Sequence[ForecastBacktest]) -> ForecastBacktest:
    """Merges back-tests of several traces; the seconds are those of a mean refit."""
    refits = sum(part.refits for part in parts)
    known = [part.seconds_per_refit * part.refits for part in parts if part.seconds_per_refit is not None]
    rows = tuple(row for part in parts for row in part.series)
    return ForecastBacktest(rows, sum(known) / refits if known and refits else None, refits)


def _backtest_trace(
    trace: Trace, horizons: Sequence[timedelta], models: Sequence[str], origin_every: timedelta
) -> tuple[list[HorizonScore], int]:
    seconds = trace.step.total_seconds()
    end = from_unix(float(trace.times[-1]) + seconds)
    series = Series.of(trace.times, trace.values, trace.step, end)
    steps = max(1, round(max(horizons) / trace.step))
    origins = _origins(series, origin_every)
    if not origins:
        raise UsageError(
            f"{trace.name}: {series.days:.1f} days are not enough to score",
            hint="a back-test needs more than 4 days of history before the first origin",
        )
    fits, forecasts = Fits(), {}
    for origin in origins:
        forecasts[origin] = _forecast_at(series, origin, steps, models, fits)
    rows = [_score(trace.name, series, forecasts, horizon, trace.step) for horizon in horizons]
    return rows, len(origins)


def origins_of(trace: Trace) -> range:
    """Origins of a back-test, as indices of ``trace.values``; the trace must not omit slots."""
    end = from_unix(float(trace.times[-1]) + trace.step.total_seconds())
    return _origins(Series.of(trace.times, trace.values, trace.step, end), _ORIGIN_EVERY)


def _origins(series: Series, every: timedelta) -> range:
    first = _SCORED_AFTER_DAYS[series.days > _LONG_TRACE_DAYS] * series.season
    return range(first, series.values.size, max(1, round(every.total_seconds() / series.step)))


@dataclass(frozen=True, slots=True)
class _OriginForecasts:
    """The forecast at one origin, and those of the reference models."""

    forecast: Forecast
    last_value: Floats
    seasonal_naive: Floats
    prophet: Floats | None


def _forecast_at(series: Series, origin: int, steps: int, models: Sequence[str], fits: Fits) -> _OriginForecasts:
    known = series.until(origin)
    result = forecast(
        known.times,
        known.values,
        signal="svc_requests_per_second",
        entity=EntityRef("backtest", EntityKind.SERVICE, None, "trace"),
        now=from_unix(known.origin),
        horizon=timedelta(seconds=steps * series.step),
        step=timedelta(seconds=series.step),
        models=models,
        fits=fits,
    )
    if not isinstance(result, Forecast):
        raise UsageError("a trace without any value cannot be scored", hint="check the column requests_per_second")
    prophet = None
    if PROPHET in models and float(np.nanstd(known.values)) > 0:
        with suppress(RuntimeError, ValueError):  # Stan found no optimum: no reference forecast
            prophet = default_forecast(known, steps)
    return _OriginForecasts(result, naive.last_value(known, steps), naive.seasonal_naive(known, steps), prophet)


def _score(
    name: str, series: Series, forecasts: dict[int, _OriginForecasts], horizon: timedelta, step: timedelta
) -> HorizonScore:
    steps = max(1, round(horizon / step))
    truth = np.full((len(forecasts), steps), np.nan)
    for row, origin in enumerate(forecasts):
        known = series.values[origin : origin + steps]
        truth[row, : known.size] = known
    results = list(forecasts.values())
    quantile = {q: np.stack([result.forecast.quantiles[q][:steps] for result in results]) for q in QUANTILES}
    scored = ~np.isnan(truth)
    inside = (truth >= quantile[0.05]) & (truth <= quantile[0.95])
    highest = {q: np.stack([result.forecast.peaks[q][steps - 1] for result in results]) for q in (MEDIAN, _PEAK)}
    exceeds, over = _peaks(truth, highest[_PEAK])
    counts: dict[str, int] = {}
    for result in results:
        counts[result.forecast.model] = counts.get(result.forecast.model, 0) + 1
    prophets = [result.prophet[:steps] for result in results if result.prophet is not None]
    return HorizonScore(
        name=name,
        horizon=horizon.total_seconds(),
        wape=wape(truth, quantile[0.5]),
        wape_last_value=wape(truth, np.stack([result.last_value[:steps] for result in results])),
        wape_seasonal_naive=wape(truth, np.stack([result.seasonal_naive[:steps] for result in results])),
        wape_prophet=wape(truth, np.stack(prophets)) if len(prophets) == len(results) else None,
        coverage90=float(inside[scored].mean()) if scored.any() else None,
        peak_exceeds_p95=exceeds,
        over_provision=over,
        pinball=float(pinball(truth[None], np.stack(list(quantile.values()))[:, None])[0]) if scored.any() else None,
        peak_error=_peak_error(truth, highest[MEDIAN]),
        models=counts,
    )


def _peaks(truth: Floats, bound: Floats) -> tuple[float | None, float | None]:
    peak, bound = _true_peaks(truth, bound)
    if not peak.size:
        return None, None
    return float((peak > bound).mean()), float((bound / peak).mean() - 1.0)


def _peak_error(truth: Floats, predicted: Floats) -> float | None:
    peak, predicted = _true_peaks(truth, predicted)
    return float(np.abs(predicted - peak).sum() / peak.sum()) if peak.size else None


def _true_peaks(truth: Floats, predicted: Floats) -> tuple[Floats, Floats]:
    """True peaks and their forecasts, only of windows fully inside the trace with traffic."""
    whole = ~np.isnan(truth[:, -1]) & (np.isnan(truth).mean(axis=1) < _MISSING_IN_PEAK)
    peak = np.nanmax(truth[whole], axis=1) if whole.any() else np.empty(0)
    return peak[peak > 0], predicted[whole][peak > 0]
