"""Selects the nightly models that join the mix of one series: those that reduce its past errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from outrider.model import BacktestScore, Floats, ReasonText
from planner.forecast import scoring
from planner.forecast.ensemble import QUANTILES, ExtraMember, Outlook, forecast_many
from planner.forecast.nightly_fit import Fits, NightlyMember, nights
from planner.forecast.registry import FORECASTERS
from planner.forecast.series import Series

ENSEMBLE = "ensemble"
NIGHTS = 3
_SHORT_DAYS = 2.0
_JUDGED_FROM_DAYS = 4.0
_NAMED_MEMBERS = 3
_LEAST_GAIN = 0.0005
_WORTH_IT = 0.99
"""A model is selected if it takes at least 1 % off the error: less is chance."""
NOT_READY: Mapping[tuple[str, ...], Outlook] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choice:
    """The model of one series: the mix, the models that joined it (``selected``), and the reasons.

    ``member_reasons`` is the part of ``why`` about the nightly models.
    """

    name: str
    outlook: Outlook
    score: BacktestScore
    why: tuple[ReasonText, ...]
    selected: tuple[str, ...] = ()
    member_reasons: tuple[ReasonText, ...] = ()


def select_models(
    series: Series,
    steps: int,
    models: Sequence[str],
    fits: Fits,
    *,
    may_fit: bool,
    ready: Mapping[tuple[str, ...], Outlook] = NOT_READY,
) -> Choice:
    """Returns the mix alone, or with those of ``models`` that reduced its errors at past origins.

    Without ``may_fit`` only existing fits are used. ``ready`` holds outlooks of this series that are computed already,
    by the names of the members that joined the mix (``build_outlooks``).
    """
    alone = ready.get(()) or _outlook(series, steps, {})
    requested = [name for name in FORECASTERS if name in models]
    reasons = plain_reason(series)
    if not reasons and not requested:
        reasons = (mix_reason(alone),)
    if not reasons and not is_judgeable(series):
        reasons = (mix_reason(alone), _unjudged(series, requested))
    if reasons:
        return Choice(ENSEMBLE, alone, scoring.judge(alone, series.days).score(), reasons)
    if may_fit:
        fits.prepare([FORECASTERS[name] for name in requested], series, NIGHTS, steps)
    extra = _extra_members(series, requested, fits)
    refused = tuple(fits.refused[name] for name in requested if name in fits.refused)
    return _select(series, steps, alone, extra, refused, ready)


def plain_reason(series: Series) -> tuple[ReasonText, ...]:
    """Reasons why there is nothing to select from, empty if there is."""
    if series.days < _SHORT_DAYS:
        return (ReasonText("plan.why_short", {"days": f"{series.days:.1f}"}),)
    if float(np.ptp(series.values[series.present])) == 0.0:
        return (ReasonText("plan.why_constant"),)
    return ()


def is_judgeable(series: Series) -> bool:
    """True if there are enough nights for a fit, and days after it to judge it by."""
    return series.days >= _JUDGED_FROM_DAYS and len(nights(series, NIGHTS)) > 1


def mix_reason(outlook: Outlook, row: int = 0) -> ReasonText:
    """The members with the largest weights over all leads, with their share."""
    shares = outlook.weights[:, row].mean(axis=1)
    best = np.argsort(shares)[::-1][:_NAMED_MEMBERS]
    named = ", ".join(f"{outlook.members[index]} {shares[index]:.0%}" for index in best)
    return ReasonText("plan.why_mix", {"members": named})


def _select(
    series: Series,
    steps: int,
    alone: Outlook,
    extra: Mapping[str, ExtraMember],
    refused: tuple[ReasonText, ...],
    ready: Mapping[tuple[str, ...], Outlook],
) -> Choice:
    """Adds the model that helps most, round by round, until none of the others helps.

    All are judged at the same origins: those at which every one of them had a fit.
    """
    origins = series.values.size - scoring.ages(alone)
    own = {name: member.at(origins, alone.anchors).astype(np.float64) for name, member in extra.items()}
    unknown = (
        np.logical_or.reduce([np.isnan(predictions) for predictions in own.values()])
        if own
        else np.zeros(0, dtype=bool)
    )
    current, selected, member_reasons = alone, list[str](), dict[str, ReasonText]()
    remaining = list(extra)
    while remaining:
        tried = {
            name: ready.get((*selected, name))
            or _outlook(series, steps, {member: extra[member] for member in (*selected, name)})
            for name in remaining
        }
        compared = _compare_errors(current, tried, own, unknown)
        if compared is None:
            member_reasons |= {name: _unjudged(series, [name]) for name in remaining}
            break
        before, errors_joined, errors_alone = compared
        best = min(remaining, key=lambda name: errors_joined[name])
        helps = errors_joined[best] < min(before * _WORTH_IT, before - _LEAST_GAIN)
        for name in remaining:
            key = "plan.why_helps" if helps and name == best else "plan.why_refused"
            totals = {"error": before, "joined": errors_joined[name], "own": errors_alone[name]}
            figures = {figure: f"{total:.3f}" for figure, total in totals.items()}
            member_reasons[name] = ReasonText(key, {"name": FORECASTERS[name].title, **figures})
        if not helps:
            break
        remaining = [name for name in remaining if name != best]
        selected, current = [*selected, best], tried[best]
    reasons = (*(member_reasons[name] for name in (*selected, *remaining)), *refused)
    name, score = "+".join([ENSEMBLE, *selected]), scoring.judge(current, series.days).score()
    return Choice(name, current, score, (mix_reason(current), *reasons), tuple(selected), reasons)


def _compare_errors(
    current: Outlook, tried: Mapping[str, Outlook], own: Mapping[str, Floats], unknown: np.ndarray
) -> tuple[float, dict[str, float], dict[str, float]] | None:
    """Errors of the mix as it is, with each trial, and of each model alone; None if too little is known."""
    predictions = [
        scoring.predictions(current),
        *(scoring.predictions(outlook) for outlook in tried.values()),
        *(own[name] for name in tried),
    ]
    errors = scoring.compare(current, predictions, unknown)
    if errors is None:
        return None
    before, *others = (error.total for error in errors)
    names = list(tried)
    return (
        before,
        dict(zip(names, others[: len(names)], strict=True)),
        dict(zip(names, others[len(names) :], strict=True)),
    )


def _unjudged(series: Series, names: Sequence[str]) -> ReasonText:
    titles = ", ".join(FORECASTERS[name].title for name in names)
    return ReasonText("plan.why_unjudged", {"name": titles, "days": f"{series.days:.1f}"})


def build_outlooks(rows: Sequence[Series], steps: int, fits: Sequence[Fits]) -> list[dict[tuple[str, ...], Outlook]]:
    """Outlooks for ``select_models``, of many series of one length at once, one entry a series.

    They are those of the mix, and of the mix with each model that has fits.
    """
    alone = _outlooks(rows, steps, {})
    results: list[dict[tuple[str, ...], Outlook]] = [{(): alone.only(row)} for row in range(len(rows))]
    members = [
        _extra_members(series, own_fits.requested, own_fits)
        if is_judgeable(series) and not plain_reason(series)
        else {}
        for series, own_fits in zip(rows, fits, strict=True)
    ]
    for name in FORECASTERS:
        with_fits = [row for row, extra in enumerate(members) if name in extra]
        if with_fits:
            joined = _outlooks(
                [rows[row] for row in with_fits], steps, {name: [members[row][name] for row in with_fits]}
            )
            for index, row in enumerate(with_fits):
                results[row][name,] = joined.only(index)
    return results


def _extra_members(series: Series, requested: Sequence[str], fits: Fits) -> dict[str, ExtraMember]:
    return {
        name: NightlyMember(series, fits.made[name])
        for name in requested
        if fits.made.get(name) and name not in fits.refused
    }


def _outlook(series: Series, steps: int, extra: Mapping[str, ExtraMember]) -> Outlook:
    return _outlooks([series], steps, {name: [member] for name, member in extra.items()})


def _outlooks(rows: Sequence[Series], steps: int, extra: Mapping[str, Sequence[ExtraMember]]) -> Outlook:
    values = np.stack([series.values for series in rows])
    return forecast_many(values, step_seconds=rows[0].step, steps=steps, wanted=QUANTILES, keep_folds=True, extra=extra)
