"""Forecast one signal: the mix of the fast tier, with Prophet in it where that proved to help."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.model import BacktestScore, EntityRef, Floats, Forecast, NoPlanReason, Why
from planner.forecast import judge
from planner.forecast.calendar import NO_CALENDAR, Calendar, by_wall_clock, effects
from planner.forecast.fast import HISTORY_DAYS, NOBODY, QUANTILES, Outlook, forecast_many
from planner.forecast.grid import Slots
from planner.forecast.prophet import ByNight, Fits, nights
from planner.forecast.series import Series

ENSEMBLE, PROPHET = "ensemble", "prophet"
TITLE = "Prophet"
FAST_MODELS = (ENSEMBLE,)
DEFAULT_MODELS = (ENSEMBLE, PROPHET)
STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)

_SHORT_DAYS = 2.0
_PROPHET_FROM_DAYS = 4.0
_NIGHTS = 3
_ROWS = 64
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
    may_fit: bool = True,
    calendar: Calendar = NO_CALENDAR,
) -> Forecast | NoPlanReason:
    """Say what a signal will do from ``now`` to ``now + horizon``.

    ``times`` (unix seconds) and ``values`` are one-dimensional and of one length; NaN is a missing
    slot; what lies at or after ``now`` is not looked at, nor what is older than 15 days. With "prophet"
    among ``models`` it is fitted at the newest midnights, and heard where the mix was better with it;
    ``fits`` keeps those fits between calls on one growing series; without ``may_fit`` only they are
    asked. The ``calendar`` tells of events and of the clock that users live by. Without a single value
    the answer is ``NO_HISTORY``. The same input always gives the same output.
    """
    asked = _asked(times, values, now, horizon, step, calendar)
    if asked is None:
        return NoPlanReason.NO_HISTORY
    chosen = _choose(asked.known, asked.reach, models, fits if fits is not None else Fits(), may_fit=may_fit)
    return _answer(asked, chosen, 0, Subject(signal, entity, now, step))


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
) -> list[Forecast | NoPlanReason]:
    """The same for many signals at once, without Prophet: ``values`` are (entities, times), answers in that order."""
    rows = [_asked(times, row, now, horizon, step, calendar) for row in values]
    found: list[Forecast | NoPlanReason] = [NoPlanReason.NO_HISTORY] * len(rows)
    known = [(place, asked) for place, asked in enumerate(rows) if asked is not None]
    for first in range(0, len(known), _ROWS):
        part = known[first : first + _ROWS]
        matrix = np.full((len(part), max(asked.known.values.size for _, asked in part)), np.nan)
        for row, (_, asked) in enumerate(part):
            matrix[row, matrix.shape[1] - asked.known.values.size :] = asked.known.values
        outlook = forecast_many(
            matrix, step_seconds=step.total_seconds(), steps=max(asked.reach for _, asked in part), keep_folds=True
        )
        verdicts = judge.judge_rows(outlook, [asked.known.days for _, asked in part])
        for row, (place, asked) in enumerate(part):
            choice = _Choice(
                ENSEMBLE, outlook, verdicts[row].score(), _why_plain(asked.known) or (_listened(outlook, row),)
            )
            found[place] = _answer(asked, choice, row, Subject(signal, entities[place], now, step))
    return found


def fit_by_night(
    times: Floats,
    values: Floats,
    *,
    now: datetime,
    horizon: timedelta = HORIZON,
    step: timedelta = STEP,
    fits: Fits | None = None,
    calendar: Calendar = NO_CALENDAR,
) -> Fits:
    """The Prophets that ``forecast`` will listen to until the next midnight; those of ``fits`` are not made again.

    None are made where history is too short to judge them, and the newest stay out where Stan finds no optimum.
    """
    kept = Fits(dict(fits.made), fits.made_count) if fits is not None else Fits()
    asked = _asked(times, values, now, horizon, step, calendar)
    if asked is None or _why_plain(asked.known) or not _judgeable(asked.known):
        return kept
    with suppress(RuntimeError, ValueError):
        kept.prepare(asked.known, _NIGHTS, asked.reach)
    return kept


@dataclass(frozen=True, slots=True)
class Subject:
    """Of what, when and how finely something is said."""

    signal: str
    entity: EntityRef
    now: datetime
    step: timedelta


@dataclass(frozen=True, slots=True)
class _Asked:
    """One series as it came, and ``known``: without the effects of events, by the clock on the wall."""

    series: Series
    known: Series
    ahead: Slots
    after: Floats

    @property
    def reach(self) -> int:
        """Wall slots to forecast."""
        return int(self.ahead.max())


def _asked(
    times: Floats, values: Floats, now: datetime, horizon: timedelta, step: timedelta, calendar: Calendar
) -> _Asked | None:
    series = Series.of(times, values, step, now)
    if not series.values.size:
        return None
    series = series.newest(HISTORY_DAYS)
    steps = max(1, round(horizon / step))
    effect = effects(series, steps, calendar.events)
    plain = Series(series.start, series.step, series.values / np.exp(effect[: series.values.size]))
    wall = by_wall_clock(plain, steps, calendar.clock())
    start = wall.origin - wall.values.size * series.step
    return _Asked(series, Series(start, series.step, wall.values), wall.ahead, np.exp(effect[series.values.size :]))


def _answer(asked: _Asked, chosen: _Choice, row: int, subject: Subject) -> Forecast:
    """In the units and slots of the series. An event to come raises peaks as much as the highest slot so far."""
    raised = np.maximum.accumulate(asked.after)
    places = asked.ahead - 1
    quantiles, peaks = chosen.outlook.quantiles, chosen.outlook.peaks
    return Forecast(
        signal=subject.signal,
        entity=subject.entity,
        made_at=subject.now,
        step=subject.step,
        times=asked.series.future(places.size),
        quantiles={q: found[row][places] * asked.after for q, found in quantiles.items()},
        model=chosen.name,
        score=chosen.score,
        why=chosen.why,
        peaks={q: np.maximum.accumulate(found[row][places] * raised) for q, found in peaks.items()},
        buffers=judge.buffers(chosen.outlook, row),
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    name: str
    outlook: Outlook
    score: BacktestScore
    why: tuple[Why, ...]


def _choose(series: Series, steps: int, models: Sequence[str], fits: Fits, *, may_fit: bool) -> _Choice:
    """The mix alone, or with Prophet where its errors at past origins were smaller with it."""
    alone = _outlook(series, steps, None)
    plain = judge.judge(alone, series.days)
    why = _why_plain(series)
    if not why and PROPHET not in models:
        why = (_listened(alone),)
    if not why and not _judgeable(series):
        why = (_listened(alone), _unjudged(series))
    if why:
        return _Choice(ENSEMBLE, alone, plain.score(), why)
    try:
        if may_fit:
            fits.prepare(series, _NIGHTS, steps)
    except (RuntimeError, ValueError) as error:
        why = (_listened(alone), Why("plan.why_no_fit", {"name": TITLE, "error": str(error)[:120]}))
        return _Choice(ENSEMBLE, alone, plain.score(), why)
    return _with_prophet(series, steps, fits, alone, plain)


def _why_plain(series: Series) -> tuple[Why, ...]:
    """Why there is nothing to choose from, empty where there is."""
    if series.days < _SHORT_DAYS:
        return (Why("plan.why_short", {"days": f"{series.days:.1f}"}),)
    if float(np.ptp(series.values[series.present])) == 0.0:
        return (Why("plan.why_constant"),)
    return ()


def _judgeable(series: Series) -> bool:
    return series.days >= _PROPHET_FROM_DAYS and len(nights(series, _NIGHTS)) > 1


def _unjudged(series: Series) -> Why:
    return Why("plan.why_unjudged", {"name": TITLE, "days": f"{series.days:.1f}"})


def _with_prophet(series: Series, steps: int, fits: Fits, alone: Outlook, plain: judge.Verdict) -> _Choice:
    prophet = ByNight(series, fits.made)
    joined = _outlook(series, steps, prophet)
    before, after, own = judge.compare(alone, joined, prophet, series.values.size)
    if before is None or after is None or own is None:
        return _Choice(ENSEMBLE, alone, plain.score(), (_listened(alone), _unjudged(series)))
    totals = {"error": before.total, "joined": after.total, "own": own.total}
    figures = {"name": TITLE, **{name: f"{total:.3f}" for name, total in totals.items()}}
    if after.total < min(before.total * _WORTH_IT, before.total - _LEAST_GAIN):
        why = (_listened(joined), Why("plan.why_helps", figures))
        return _Choice(f"{ENSEMBLE}+{PROPHET}", joined, judge.judge(joined, series.days).score(), why)
    return _Choice(ENSEMBLE, alone, plain.score(), (_listened(alone), Why("plan.why_refused", figures)))


def _outlook(series: Series, steps: int, prophet: ByNight | None) -> Outlook:
    speakers = {PROPHET: prophet} if prophet is not None else NOBODY
    return forecast_many(
        series.values[None], step_seconds=series.step, steps=steps, wanted=QUANTILES, keep_folds=True, speakers=speakers
    )


def _listened(outlook: Outlook, row: int = 0) -> Why:
    """The members that weigh most over all leads, with their share."""
    shares = outlook.weights[:, row].mean(axis=1)
    best = np.argsort(shares)[::-1][:_LISTENED]
    named = ", ".join(f"{outlook.members[place]} {shares[place]:.0%}" for place in best)
    return Why("plan.why_mix", {"members": named})
