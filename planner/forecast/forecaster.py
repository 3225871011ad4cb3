"""Forecast one signal: the mix of the fast tier, with forecasters of the night in it where they proved to help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

import numpy as np

from outrider.model import EntityRef, Floats, Forecast, NoPlanReason, Why
from planner.forecast import scoring
from planner.forecast.calendar import NO_CALENDAR, Calendar, by_wall_clock, effects
from planner.forecast.ensemble import HISTORY_DAYS, forecast_many
from planner.forecast.grid import Slots
from planner.forecast.model_selection import ENSEMBLE, NIGHTS, Choice, choose, judgeable, listened, outlooks, why_plain
from planner.forecast.nightly_fit import Decided, Fits
from planner.forecast.registry import FORECASTERS
from planner.forecast.series import Series

PROPHET = "prophet"
FAST_MODELS = (ENSEMBLE,)
DEFAULT_MODELS = (ENSEMBLE, PROPHET)
STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)

NOTHING_TOLD: Mapping[EntityRef, tuple[Why, ...]] = MappingProxyType({})
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
    """Say what a signal will do from ``now`` to ``now + horizon``.

    ``times`` (unix seconds) and ``values`` are one-dimensional and of one length; NaN is a missing
    slot; what lies at or after ``now`` is not looked at, nor what is older than 15 days. Those of
    ``FORECASTERS`` among ``models`` are fitted at the newest midnights, and heard where the mix was better with
    them; ``fits`` keeps those fits between calls on one growing series; without ``may_fit`` only they are
    asked. The ``calendar`` tells of events and of the clock that users live by. Without a single value
    the answer is ``NO_HISTORY``. The same input always gives the same output.
    """
    asked = _asked(times, values, now, horizon, step, calendar)
    if asked is None:
        return NoPlanReason.NO_HISTORY
    chosen = choose(asked.known, asked.reach, models, fits if fits is not None else Fits(), may_fit=may_fit)
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
    told: Mapping[EntityRef, tuple[Why, ...]] = NOTHING_TOLD,
) -> list[Forecast | NoPlanReason]:
    """The same for many signals at once, without Prophet: ``values`` are (entities, times), answers in that order.

    ``told`` is what a night said of its forecasters where none of them is heard.
    """
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
        verdicts = scoring.judge_rows(outlook, [asked.known.days for _, asked in part])
        for row, (place, asked) in enumerate(part):
            why = why_plain(asked.known) or (listened(outlook, row), *told.get(entities[place], ()))
            choice = Choice(ENSEMBLE, outlook, verdicts[row].score(), why)
            found[place] = _answer(asked, choice, row, Subject(signal, entities[place], now, step))
    return found


def forecast_heard(
    times: Floats,
    values: Floats,
    *,
    signal: str,
    entities: Sequence[EntityRef],
    nights: Sequence[Decided],
    now: datetime,
    horizon: timedelta = HORIZON,
    step: timedelta = STEP,
    calendar: Calendar = NO_CALENDAR,
) -> list[Forecast | NoPlanReason]:
    """``forecast`` for many signals with the fits of their nights and no new ones, in one stroke where lengths agree.

    ``values`` are (entities, times); ``nights`` and the answers are in that order.
    """
    rows = [_asked(times, row, now, horizon, step, calendar) for row in values]
    found: list[Forecast | NoPlanReason] = [NoPlanReason.NO_HISTORY] * len(rows)
    alike: dict[tuple[int, int], list[int]] = {}
    for place, asked in enumerate(rows):
        if asked is not None:
            alike.setdefault((asked.known.values.size, asked.reach), []).append(place)
    for (_, reach), places in alike.items():
        for first in range(0, len(places), _ROWS):
            part = [(place, asked) for place in places[first : first + _ROWS] if (asked := rows[place]) is not None]
            fits = [nights[place].fits for place, _ in part]
            made = outlooks([asked.known for _, asked in part], reach, fits)
            for (place, asked), ready, each in zip(part, made, fits, strict=True):
                models = (*FAST_MODELS, *each.asked)
                chosen = choose(asked.known, reach, models, each, may_fit=False, ready=ready)
                found[place] = _answer(asked, chosen, 0, Subject(signal, entities[place], now, step))
    return found


def by_night(
    times: Floats,
    values: Floats,
    *,
    now: datetime,
    horizon: timedelta = HORIZON,
    step: timedelta = STEP,
    models: Sequence[str] = DEFAULT_MODELS,
    fits: Fits | None = None,
    calendar: Calendar = NO_CALENDAR,
) -> Decided:
    """The fits that ``forecast`` will listen to until the next midnight, and who of those asked is heard until then.

    Those of ``fits`` are not made again. None are made where history is too short to judge them.
    """
    found = fits.copy() if fits is not None else Fits()
    asked = _asked(times, values, now, horizon, step, calendar)
    if asked is not None and not why_plain(asked.known) and judgeable(asked.known):
        wanted = [each for name, each in FORECASTERS.items() if name in models]
        found.prepare(wanted, asked.known, NIGHTS, asked.reach)
    if asked is None or not found.asked:
        return Decided(found)
    chosen = choose(asked.known, asked.reach, (*FAST_MODELS, *found.asked), found, may_fit=False)
    return Decided(found, chosen.heard, chosen.told)


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


def _answer(asked: _Asked, chosen: Choice, row: int, subject: Subject) -> Forecast:
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
        buffers=scoring.buffers(chosen.outlook, row),
    )
