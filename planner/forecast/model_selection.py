"""Which forecasters of the night join the mix of one series: those with which its past errors were smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from outrider.model import BacktestScore, Floats, Why
from planner.forecast import scoring
from planner.forecast.ensemble import QUANTILES, Outlook, Speaker, forecast_many
from planner.forecast.nightly_fit import ByNight, Fits, nights
from planner.forecast.registry import FORECASTERS
from planner.forecast.series import Series

ENSEMBLE = "ensemble"
NIGHTS = 3
_SHORT_DAYS = 2.0
_JUDGED_FROM_DAYS = 4.0
_LISTENED = 3
_LEAST_GAIN = 0.0005
_WORTH_IT = 0.99
"""A forecaster is heard where it takes at least a hundredth off the error: less is chance."""
NOT_READY: Mapping[tuple[str, ...], Outlook] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choice:
    """Who speaks for one series: the mix, with those who joined it (``heard``), and why.

    ``told`` is the part of ``why`` that is said of the forecasters of the night.
    """

    name: str
    outlook: Outlook
    score: BacktestScore
    why: tuple[Why, ...]
    heard: tuple[str, ...] = ()
    told: tuple[Why, ...] = ()


def choose(
    series: Series,
    steps: int,
    models: Sequence[str],
    fits: Fits,
    *,
    may_fit: bool,
    ready: Mapping[tuple[str, ...], Outlook] = NOT_READY,
) -> Choice:
    """The mix alone, or with those of ``models`` that made its errors at past origins smaller.

    Without ``may_fit`` only fits that are there already are asked. ``ready`` are outlooks of this series that are made
    already, by the names of those who joined the mix (``outlooks``).
    """
    alone = ready.get(()) or _outlook(series, steps, {})
    asked = [name for name in FORECASTERS if name in models]
    why = why_plain(series)
    if not why and not asked:
        why = (listened(alone),)
    if not why and not judgeable(series):
        why = (listened(alone), _unjudged(series, asked))
    if why:
        return Choice(ENSEMBLE, alone, scoring.judge(alone, series.days).score(), why)
    if may_fit:
        fits.prepare([FORECASTERS[name] for name in asked], series, NIGHTS, steps)
    speakers = _speakers(series, asked, fits)
    refused = tuple(fits.refused[name] for name in asked if name in fits.refused)
    return _heard(series, steps, alone, speakers, refused, ready)


def why_plain(series: Series) -> tuple[Why, ...]:
    """Why there is nothing to choose from, empty where there is."""
    if series.days < _SHORT_DAYS:
        return (Why("plan.why_short", {"days": f"{series.days:.1f}"}),)
    if float(np.ptp(series.values[series.present])) == 0.0:
        return (Why("plan.why_constant"),)
    return ()


def judgeable(series: Series) -> bool:
    """True where enough nights are known for a fit and days after it to judge it by."""
    return series.days >= _JUDGED_FROM_DAYS and len(nights(series, NIGHTS)) > 1


def listened(outlook: Outlook, row: int = 0) -> Why:
    """The members that weigh most over all leads, with their share."""
    shares = outlook.weights[:, row].mean(axis=1)
    best = np.argsort(shares)[::-1][:_LISTENED]
    named = ", ".join(f"{outlook.members[place]} {shares[place]:.0%}" for place in best)
    return Why("plan.why_mix", {"members": named})


def _heard(
    series: Series,
    steps: int,
    alone: Outlook,
    speakers: Mapping[str, Speaker],
    refused: tuple[Why, ...],
    ready: Mapping[tuple[str, ...], Outlook],
) -> Choice:
    """Round by round the one that helps most joins, until none of those left does.

    All are judged at the same origins: those at which every one of them had a fit.
    """
    places = series.values.size - scoring.ages(alone)
    own = {name: speaker.at(places, alone.anchors).astype(np.float64) for name, speaker in speakers.items()}
    unknown = np.logical_or.reduce([np.isnan(said) for said in own.values()]) if own else np.zeros(0, dtype=bool)
    now, heard, told = alone, list[str](), dict[str, Why]()
    left = list(speakers)
    while left:
        tried = {
            name: ready.get((*heard, name))
            or _outlook(series, steps, {each: speakers[each] for each in (*heard, name)})
            for name in left
        }
        found = _compared(now, tried, own, unknown)
        if found is None:
            told |= {name: _unjudged(series, [name]) for name in left}
            break
        before, joined, alones = found
        best = min(left, key=lambda name: joined[name])
        helps = joined[best] < min(before * _WORTH_IT, before - _LEAST_GAIN)
        for name in left:
            key = "plan.why_helps" if helps and name == best else "plan.why_refused"
            totals = {"error": before, "joined": joined[name], "own": alones[name]}
            figures = {figure: f"{total:.3f}" for figure, total in totals.items()}
            told[name] = Why(key, {"name": FORECASTERS[name].title, **figures})
        if not helps:
            break
        heard, left, now = [*heard, best], [name for name in left if name != best], tried[best]
    said = (*(told[name] for name in (*heard, *left)), *refused)
    name, score = "+".join([ENSEMBLE, *heard]), scoring.judge(now, series.days).score()
    return Choice(name, now, score, (listened(now), *said), tuple(heard), said)


def _compared(
    now: Outlook, tried: Mapping[str, Outlook], own: Mapping[str, Floats], unknown: np.ndarray
) -> tuple[float, dict[str, float], dict[str, float]] | None:
    """Errors of the mix as it is, with each one tried, and of each alone; None where too little is known."""
    said = [scoring.said(now), *(scoring.said(outlook) for outlook in tried.values()), *(own[name] for name in tried)]
    errors = scoring.compare(now, said, unknown)
    if errors is None:
        return None
    before, *others = (each.total for each in errors)
    names = list(tried)
    return (
        before,
        dict(zip(names, others[: len(names)], strict=True)),
        dict(zip(names, others[len(names) :], strict=True)),
    )


def _unjudged(series: Series, names: Sequence[str]) -> Why:
    titles = ", ".join(FORECASTERS[name].title for name in names)
    return Why("plan.why_unjudged", {"name": titles, "days": f"{series.days:.1f}"})


def outlooks(rows: Sequence[Series], steps: int, fits: Sequence[Fits]) -> list[dict[tuple[str, ...], Outlook]]:
    """For ``choose``, of many series of one length at once: of the mix, and of the mix with each who has fits.

    An entry a series, in their order.
    """
    alone = _outlooks(rows, steps, {})
    found: list[dict[tuple[str, ...], Outlook]] = [{(): alone.only(row)} for row in range(len(rows))]
    speaking = [
        _speakers(series, each.asked, each) if judgeable(series) and not why_plain(series) else {}
        for series, each in zip(rows, fits, strict=True)
    ]
    for name in FORECASTERS:
        mine = [row for row, speakers in enumerate(speaking) if name in speakers]
        if mine:
            joined = _outlooks([rows[row] for row in mine], steps, {name: [speaking[row][name] for row in mine]})
            for place, row in enumerate(mine):
                found[row][name,] = joined.only(place)
    return found


def _speakers(series: Series, asked: Sequence[str], fits: Fits) -> dict[str, Speaker]:
    return {
        name: ByNight(series, fits.made[name]) for name in asked if fits.made.get(name) and name not in fits.refused
    }


def _outlook(series: Series, steps: int, speakers: Mapping[str, Speaker]) -> Outlook:
    return _outlooks([series], steps, {name: [each] for name, each in speakers.items()})


def _outlooks(rows: Sequence[Series], steps: int, speakers: Mapping[str, Sequence[Speaker]]) -> Outlook:
    values = np.stack([series.values for series in rows])
    return forecast_many(
        values, step_seconds=rows[0].step, steps=steps, wanted=QUANTILES, keep_folds=True, speakers=speakers
    )
