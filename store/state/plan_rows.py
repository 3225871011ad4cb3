"""A plan as rows: forecasts at a few horizons, one recommendation per service, the newest calibration of each shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from outrider.errors import StoreError
from outrider.model import (
    LIVE,
    Calibration,
    EntityRef,
    Floats,
    Forecast,
    ForecastPoint,
    Interval,
    NoRecommendation,
    Plan,
    Recommendation,
)
from outrider.ports import CycleCommit
from store.schema import json_codec, metadata
from store.schema.metadata import instant, micros
from store.sql.backend import put

HORIZONS: Final = tuple(timedelta(minutes=minutes) for minutes in (10, 30, 60, 120, 360, 720, 1440))
"""Stored steps of a forecast: a whole day in 10-min steps would be twenty times the rows."""

_NO_FORECASTS: Final = '{"forecasts":[],'

QUANTILES: Final = {0.05: "q05", 0.5: "q50", 0.8: "q80", 0.9: "q90", 0.95: "q95"}
PEAKS: Final = {level: f"peak_{column}" for level, column in QUANTILES.items()}


class PlanEncoder:
    """Encodes plans as JSON. A revised plan has the forecasts of the scheduled one, which are encoded once."""

    def __init__(self) -> None:
        self._forecasts: tuple[Forecast, ...] | None = None
        self._text = ""

    def text(self, plan: Plan) -> str:
        """Returns the text that ``json_codec.loads`` reads as a plan."""
        if plan.forecasts is not self._forecasts:
            self._forecasts, self._text = plan.forecasts, json_codec.dumps(plan.forecasts)
        others = json_codec.dumps(replace(plan, forecasts=()))
        return f'{{"forecasts":{self._text},{others.removeprefix(_NO_FORECASTS)}'


def write(connection: sa.Connection, commit: CycleCommit) -> None:
    """Writes a plan into its query tables."""
    plan = commit.plan or Plan()
    # a revised plan has the forecasts and calibrations of the scheduled one, which are stored
    made = plan if plan.revised is None else Plan()
    points = [of_point(point) for forecast in made.forecasts for point in points_of(forecast)]
    if points:
        connection.execute(sa.insert(metadata.forecast), points)
    answers = [of_recommendation(item, commit.cycle.id) for item in plan.new_recommendations]
    if answers:
        connection.execute(sa.insert(metadata.recommendation), answers)
    measured = [of_calibration(calibration) for calibration in made.calibrations if is_baseline(calibration)]
    if measured:
        put(connection, metadata.baseline, *measured)


def points_of(forecast: Forecast) -> Iterator[ForecastPoint]:
    """The forecast at ``HORIZONS``; unreachable horizons and unknown quantiles are left out."""
    half = forecast.step.total_seconds() / 2
    for horizon in HORIZONS:
        wanted = forecast.made_at.timestamp() + horizon.total_seconds()
        index = int(np.searchsorted(forecast.times, wanted - half))
        if index < forecast.times.size and forecast.times[index] < wanted + half:
            yield ForecastPoint(
                made_at=forecast.made_at,
                entity=forecast.entity,
                signal=forecast.signal,
                model=forecast.model,
                horizon=horizon,
                at=instant(round(float(forecast.times[index]) * 1e6)),
                quantiles=_known(forecast.quantiles, index),
                peaks=_known(forecast.peaks, index),
            )


def _known(quantiles: Mapping[float, Floats], index: int) -> dict[float, float]:
    values = {level: quantile for level, quantile in quantiles.items() if level in QUANTILES}
    return {level: float(quantile[index]) for level, quantile in values.items() if np.isfinite(quantile[index])}


def of_point(point: ForecastPoint) -> dict[str, Any]:
    """Columns of table ``forecast``."""
    return {
        "made_at_us": micros(point.made_at),
        "entity": point.entity.key,
        "signal": point.signal,
        "model": point.model,
        "horizon_seconds": int(point.horizon.total_seconds()),
        "at_us": micros(point.at),
        **{column: point.quantiles.get(level) for level, column in QUANTILES.items()},
        **{column: point.peaks.get(level) for level, column in PEAKS.items()},
    }


def point(row: Any) -> ForecastPoint:
    """Reads the columns written by ``of_point``."""
    return ForecastPoint(
        made_at=instant(row.made_at_us),
        entity=EntityRef.from_key(row.entity),
        signal=row.signal,
        model=row.model,
        horizon=timedelta(seconds=row.horizon_seconds),
        at=instant(row.at_us),
        quantiles=_read(row, QUANTILES),
        peaks=_read(row, PEAKS),
    )


def _read(row: Any, columns: Mapping[float, str]) -> dict[float, float]:
    values = {level: getattr(row, column) for level, column in columns.items()}
    return {level: value for level, value in values.items() if value is not None}


def of_recommendation(item: Recommendation | NoRecommendation, cycle: str) -> dict[str, Any]:
    """Columns of table ``recommendation``; without a recommendation all but the reason are NULL."""
    recommendation = item if isinstance(item, Recommendation) else None
    plain = ("gpu_type", "current_replicas", "target_replicas", "gpus", "floor", "ceiling", "binding", "cost_per_hour")
    return {
        "made_at_us": micros(item.made_at),
        "cycle": cycle,
        "service": item.service.key,
        "reason": item.reason.value,
        **{name: getattr(recommendation, name, None) for name in (*plain, "currency")},
        "need_at_us": micros(recommendation.need_at) if recommendation and recommendation.need_at else None,
        "needed_by_us": micros(recommendation.needed_by) if recommendation and recommendation.needed_by else None,
        "lead_time_seconds": recommendation.lead_time.total_seconds() if recommendation else None,
    }


def is_baseline(calibration: Calibration) -> bool:
    """True for measurements of running engines; load tests are stored separately, configured values not at all."""
    return calibration.measured_at is not None and calibration.source == LIVE


def of_load_test(calibration: Calibration) -> dict[str, Any]:
    """Columns of table ``load_test``. Raises StoreError without a time, or for a live measurement."""
    if calibration.measured_at is None or calibration.valid_until is None or calibration.source == LIVE:
        raise StoreError("a load test needs a source, a time and an end", hint="set measured_at and valid_until")
    row = of_calibration(calibration)
    for column in ("startup_seconds", "startup_source"):
        row.pop(column)
    return row | {"source": calibration.source, "valid_until_us": micros(calibration.valid_until)}


def shape_of(calibration: Calibration) -> tuple[str | int, ...]:
    """Key of a baseline: a new measurement of the same shape replaces the previous one."""
    parallel = (calibration.tensor_parallel, calibration.pipeline_parallel)
    return (calibration.service.key, calibration.model, calibration.gpu_type, calibration.engine_version, *parallel)


def of_calibration(calibration: Calibration) -> dict[str, Any]:
    """Columns of table ``baseline``."""
    row: dict[str, Any] = {
        "service": calibration.service.key,
        "model": calibration.model,
        "gpu_type": calibration.gpu_type,
        "engine_version": calibration.engine_version,
        "tensor_parallel": calibration.tensor_parallel,
        "pipeline_parallel": calibration.pipeline_parallel,
        "measured_at_us": micros(calibration.measured_at) if calibration.measured_at else None,
        "samples": calibration.samples,
        "startup_seconds": calibration.startup_seconds,
        "startup_source": calibration.startup_source,
        "body": json_codec.dumps(calibration),
    }
    for name, column in (
        ("tokens_per_request", "tokens_per_request"),
        ("batch", "batch"),
        ("tokens_per_second_per_sequence", "tokens_per_second"),
    ):
        span = calibration.intervals.get(name, Interval(None, None))
        row |= {column: getattr(calibration, name), f"{column}_low": span.low, f"{column}_high": span.high}
    return row
