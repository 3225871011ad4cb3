"""Forecast one signal: the mix of the fast tier, with Prophet in it where that proved to help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.i18n import translate
from outrider.model import BacktestScore, EntityRef, Floats, Forecast, NoPlanReason
from planner.forecast import judge
from planner.forecast.calendar import NO_CALENDAR, Calendar, WallClock, by_wall_clock, effects
from planner.forecast.fast import HISTORY_DAYS, NOBODY, QUANTILES, Outlook, forecast_many
from planner.forecast.prophet import ByNight, Fits, nights
from planner.forecast.series import Series

ENSEMBLE, PROPHET = "ensemble", "prophet"
FAST_MODELS = (ENSEMBLE,)
DEFAULT_MODELS = (ENSEMBLE, PROPHET)
STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)

_SHORT_DAYS = 2.0
_PROPHET_FROM_DAYS = 4.0
_NIGHTS = 3
_LISTENED = 3
_LEAST_GAIN = 0.0005
_WORTH_IT = 0.99
"""Prophet is heard where it takes at least a hundredth off the error: less is chance."""


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
    calendar: Calendar = NO_CALENDAR,
) -> Forecast | NoPlanReason:
    """Say what a signal will do from ``now`` to ``now + horizon``.

    ``times`` (unix seconds) and ``values`` are one-dimensional and of one length; NaN is a missing
    slot; what lies at or after ``now`` is not looked at, nor what is older than 15 days. With "prophet"
    among ``models`` it is fitted at the newest midnights, and heard where the mix was better with it;
    ``fits`` keeps those fits between calls on one growing series. Without a single value the answer is
    ``NO_HISTORY``. The same input always gives the same output.
    """
    series = Series.of(times, values, step, now)
    if not series.values.size:
        return NoPlanReason.NO_HISTORY
    series = series.newest(HISTORY_DAYS)
    steps = max(1, round(horizon / step))
    effect = effects(series, steps, calendar.events)
    plain = Series(series.start, series.step, series.values / np.exp(effect[: series.values.size]))
    wall = by_wall_clock(plain, steps, calendar.clock())
    known = Series(series.start, series.step, wall.values)
    chosen = _choose(known, int(wall.ahead.max()), models, fits if fits is not None else Fits())
    after = np.exp(effect[series.values.size :])
    return Forecast(
        signal=signal,
        entity=entity,
        made_at=now,
        step=step,
        times=series.future(steps),
        quantiles={q: found[0][wall.ahead - 1] * after for q, found in chosen.outlook.quantiles.items()},
        model=chosen.name,
        score=chosen.score,
        why_model=chosen.why,
        peaks=_peaks(chosen.outlook, wall, after),
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    name: str
    outlook: Outlook
    score: BacktestScore
    why: str


def _choose(series: Series, steps: int, models: Sequence[str], fits: Fits) -> _Choice:
    """The mix alone, or with Prophet where its errors at past origins were smaller with it."""
    alone = _outlook(series, steps, None)
    plain = judge.judge(alone, series.days)
    if series.days < _SHORT_DAYS:
        why = translate("plan.why_short", "en", days=f"{series.days:.1f}")
    elif float(np.ptp(series.values[series.present])) == 0.0:
        why = translate("plan.why_constant", "en")
    elif PROPHET not in models:
        why = _listened(alone)
    elif len(nights(series, _NIGHTS)) < 2 or series.days < _PROPHET_FROM_DAYS:
        why = translate("plan.why_unjudged", "en", days=f"{series.days:.1f}", mix=_listened(alone))
    else:
        return _with_prophet(series, steps, fits, alone, plain)
    return _Choice(ENSEMBLE, alone, plain.score(), why)


def _with_prophet(series: Series, steps: int, fits: Fits, alone: Outlook, plain: judge.Verdict) -> _Choice:
    try:
        fits.prepare(series, _NIGHTS, steps)
    except (RuntimeError, ValueError) as error:
        why = translate("plan.why_no_fit", "en", error=str(error)[:120], mix=_listened(alone))
        return _Choice(ENSEMBLE, alone, plain.score(), why)
    prophet = ByNight(series, fits.made)
    joined = _outlook(series, steps, prophet)
    before, after, own = judge.compare(alone, joined, prophet, series.values.size)
    figures = {"error": f"{before:.3f}", "joined": f"{after:.3f}", "own": f"{own:.3f}"}
    if after < min(before * _WORTH_IT, before - _LEAST_GAIN):
        why = translate("plan.why_prophet_helps", "en", **figures, mix=_listened(joined))
        return _Choice(f"{ENSEMBLE}+{PROPHET}", joined, judge.judge(joined, series.days).score(), why)
    why = translate("plan.why_prophet_refused", "en", **figures, mix=_listened(alone))
    return _Choice(ENSEMBLE, alone, plain.score(), why)


def _outlook(series: Series, steps: int, prophet: ByNight | None) -> Outlook:
    speakers = {PROPHET: prophet} if prophet is not None else NOBODY
    return forecast_many(
        series.values[None], step_seconds=series.step, steps=steps, wanted=QUANTILES, keep_folds=True, speakers=speakers
    )


def _listened(outlook: Outlook) -> str:
    """The members that weigh most over all leads, with their share."""
    shares = outlook.weights[:, 0].mean(axis=1)
    best = np.argsort(shares)[::-1][:_LISTENED]
    named = ", ".join(f"{outlook.members[row]} {shares[row]:.0%}" for row in best)
    return translate("plan.why_mix", "en", members=named)


def _peaks(outlook: Outlook, wall: WallClock, after: Floats) -> dict[float, Floats]:
    """Peaks up to each step. An event to come raises them by as much as it raises the highest slot so far."""
    raised = np.maximum.accumulate(after)
    return {q: np.maximum.accumulate(found[0][wall.ahead - 1] * raised) for q, found in outlook.peaks.items()}
