"""Forecast of one signal: the ensemble, joined by nightly models that reduce its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

import numpy as np

from outrider.model import EntityRef, Floats, Forecast, NoPlanReason, ReasonText
from planner.forecast import scoring
from planner.forecast.calendar import NO_CALENDAR, Calendar, by_wall_clock, effects
from planner.forecast.ensemble import HISTORY_DAYS, forecast_many
from planner.forecast.grid import Slots
from planner.forecast.model_selection import (
    ENSEMBLE,
    NIGHTS,
    Choice,
    build_outlooks,
    is_judgeable,
    mix_reason,
    plain_reason,
    select_models,
)
from planner.forecast.nightly_fit import Fits, NightlyDecision
from planner.forecast.registry import FORECASTERS
from planner.forecast.series import Series

PROPHET = "prophet"
FAST_MODELS = (ENSEMBLE,)
DEFAULT_MODELS = (ENSEMBLE, PROPHET)
STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)

NO_REASONS: Mapping[EntityRef, tuple[ReasonText, ...]] = MappingProxyType({})
_ROWS = 64


def forecast(
    times: Floats,
    values: Floats,
    *,
    signal: str,
    entity: EntityRef,
    now: datetime,
    horizon: timedelta = HORIZON,
    step: timedelta = STEP,
    models: Sequence[str] = DEFAULT_MODELS,
    fits: Fits | None = None,
    may_fit: bool = True,
    calendar: Calendar = NO_CALENDAR,
) -> Forecast | NoPlanReason:
    """Forecasts a signal from ``now`` to ``now + horizon``.

    ``times`` (unix seconds) and ``values`` are one-dimensional and of equal length; NaN is a missing slot. Values at or
    after ``now`` and those older than 15 days are ignored. Those of ``FORECASTERS`` among ``models`` are fitted at the
    newest midnights. They join the mix if it had smaller errors with them. ``fits`` keeps these fits between calls on
    one growing series; without ``may_fit`` only they are used. The ``calendar`` holds events and the users' time zone.
    Returns ``NO_HISTORY`` without a single value. Deterministic.
    """
    prepared = _prepare(times, values, now, horizon, step, calendar)
    if prepared is None:
        return NoPlanReason.NO_HISTORY
    choice = select_models(
        prepared.known, prepared.reach, models, fits if fits is not None else Fits(), may_fit=may_fit
    )
    return _to_forecast(prepared, choice, 0, Subject(signal, entity, now, step))


def forecast_rows(
    times: Floats,
    values: Floats,
    *,
    signal: str,
    entities: Sequence[EntityRef],
    now: datetime,
    horizon: timedelta = HORIZON,
    step: timedelta = STEP,
    calendar: Calendar = NO_CALENDAR,
    reasons: Mapping[EntityRef, tuple[ReasonText, ...]] = NO_REASONS,
) -> list[Forecast | NoPlanReason]:
    """Forecasts many signals at once, without nightly models: ``values`` are (entities, times), results in that order.

    ``reasons`` are the nightly reasons of entities whose nightly models were not selected.
    """
    rows = [_prepare(times, row, now, horizon, step, calendar) for row in values]
    forecasts: list[Forecast | NoPlanReason] = [NoPlanReason.NO_HISTORY] * len(rows)
    known = [(index, prepared) for index, prepared in enumerate(rows) if prepared is not None]
    for first in range(0, len(known), _ROWS):
        part = known[first : first + _ROWS]
        matrix = np.full((len(part), max(prepared.known.values.size for _, prepared in part)), np.nan)
        for row, (_, prepared) in enumerate(part):
            matrix[row, matrix.shape[1] - prepared.known.values.size :] = prepared.known.values
        outlook = forecast_many(
            matrix,
            step_seconds=step.total_seconds(),
            steps=max(prepared.reach for _, prepared in part),
            keep_folds=True,
        )
        verdicts = scoring.judge_rows(outlook, [prepared.known.days for _, prepared in part])
        for row, (index, prepared) in enumerate(part):
            row_reasons = plain_reason(prepared.known) or (mix_reason(outlook, row), *reasons.get(entities[index], ()))
            choice = Choice(ENSEMBLE, outlook, verdicts[row].score(), row_reasons)
            forecasts[index] = _to_forecast(prepared, choice, row, Subject(signal, entities[index], now, step))
    return forecasts


def forecast_selected(
    times: Floats,
    values: Floats,
    *,
    signal: str,
    entities: Sequence[EntityRef],
    nights: Sequence[NightlyDecision],
    now: datetime,
    horizon: timedelta = HORIZON,
    step: timedelta = STEP,
    calendar: Calendar = NO_CALENDAR,
) -> list[Forecast | NoPlanReason]:
    """``forecast`` for many signals with their nightly fits and no new ones, batched by length.

    ``values`` are (entities, times); ``nights`` and the results are in that order.
    """
    rows = [_prepare(times, row, now, horizon, step, calendar) for row in values]
    forecasts: list[Forecast | NoPlanReason] = [NoPlanReason.NO_HISTORY] * len(rows)
    by_length: dict[tuple[int, int], list[int]] = {}
    for index, prepared in enumerate(rows):
        if prepared is not None:
            by_length.setdefault((prepared.known.values.size, prepared.reach), []).append(index)
    for (_, reach), indices in by_length.items():
        for first in range(0, len(indices), _ROWS):
            part = [
                (index, prepared) for index in indices[first : first + _ROWS] if (prepared := rows[index]) is not None
            ]
            fits = [nights[index].fits for index, _ in part]
            built = build_outlooks([prepared.known for _, prepared in part], reach, fits)
            for (index, prepared), ready, own_fits in zip(part, built, fits, strict=True):
                models = (*FAST_MODELS, *own_fits.requested)
                choice = select_models(prepared.known, reach, models, own_fits, may_fit=False, ready=ready)
                forecasts[index] = _to_forecast(prepared, choice, 0, Subject(signal, entities[index], now, step))
    return forecasts


def fit_nightly(
    times: Floats,
    values: Floats,
    *,
    now: datetime,
    horizon: timedelta = HORIZON,
    step: timedelta = STEP,
    models: Sequence[str] = DEFAULT_MODELS,
    fits: Fits | None = None,
    calendar: Calendar = NO_CALENDAR,
) -> NightlyDecision:
    """Fits the models that ``forecast`` uses until the next midnight, and selects those that join the mix.

    Existing ``fits`` are not made again. No fit is made if the history is too short to judge it.
    """
    updated = fits.copy() if fits is not None else Fits()
    prepared = _prepare(times, values, now, horizon, step, calendar)
    if prepared is not None and not plain_reason(prepared.known) and is_judgeable(prepared.known):
        wanted = [forecaster for name, forecaster in FORECASTERS.items() if name in models]
        updated.prepare(wanted, prepared.known, NIGHTS, prepared.reach)
    if prepared is None or not updated.requested:
        return NightlyDecision(updated)
    choice = select_models(prepared.known, prepared.reach, (*FAST_MODELS, *updated.requested), updated, may_fit=False)
    return NightlyDecision(updated, choice.selected, choice.member_reasons)


@dataclass(frozen=True, slots=True)
class Subject:
    """Signal, entity, time and step of a forecast."""

    signal: str
    entity: EntityRef
    now: datetime
    step: timedelta


@dataclass(frozen=True, slots=True)
class _PreparedSeries:
    """The input series, and ``known``: without event effects, on the wall clock of the time zone."""

    series: Series
    known: Series
    ahead: Slots
    after: Floats

    @property
    def reach(self) -> int:
        """Wall slots to forecast."""
        return int(self.ahead.max())


def _prepare(
    times: Floats, values: Floats, now: datetime, horizon: timedelta, step: timedelta, calendar: Calendar
) -> _PreparedSeries | None:
    series = Series.of(times, values, step, now)
    if not series.values.size:
        return None
    series = series.newest(HISTORY_DAYS)
    steps = max(1, round(horizon / step))
    effect = effects(series, steps, calendar.events, calendar.clock())
    plain = Series(series.start, series.step, series.values / np.exp(effect[: series.values.size]))
    wall = by_wall_clock(plain, steps, calendar.clock())
    start = wall.origin - wall.values.size * series.step
    return _PreparedSeries(
        series, Series(start, series.step, wall.values), wall.ahead, np.exp(effect[series.values.size :])
    )


def _to_forecast(prepared: _PreparedSeries, choice: Choice, row: int, subject: Subject) -> Forecast:
    """Converts to the units and slots of the series. A coming event raises peaks by its highest slot so far."""
    raised = np.maximum.accumulate(prepared.after)
    indices = prepared.ahead - 1
    quantiles, peaks = choice.outlook.quantiles, choice.outlook.peaks
    return Forecast(
        signal=subject.signal,
        entity=subject.entity,
        made_at=subject.now,
        step=subject.step,
        times=prepared.series.future(indices.size),
        quantiles={q: rows[row][indices] * prepared.after for q, rows in quantiles.items()},
        model=choice.name,
        score=choice.score,
        why=choice.why,
        peaks={q: np.maximum.accumulate(rows[row][indices] * raised) for q, rows in peaks.items()},
        buffers=scoring.buffers(choice.outlook, row),
    )
