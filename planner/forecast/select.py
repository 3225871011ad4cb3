"""Choose a forecaster by back-test, and forecast with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.i18n import translate
from outrider.model import BacktestScore, EntityRef, Floats, Forecast, NoPlanReason
from planner.forecast.folds import Fits, Folds, run_folds
from planner.forecast.intervals import coverage, quantiles
from planner.forecast.registry import CANDIDATES, Predictor
from planner.forecast.series import Series, offset

QUANTILES = (0.05, 0.5, 0.8, 0.9, 0.95)
DEFAULT_MODELS = tuple(CANDIDATES)
STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)

_JUDGED_SECONDS = (1800.0, 7200.0, 86400.0)
_SHORT_DAYS = 2.0
_TIE = 1.01


@dataclass(frozen=True, slots=True)
class _Choice:
    name: str
    score: BacktestScore
    why: str


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
) -> Forecast | NoPlanReason:
    """Say what a signal will do from ``now`` to ``now + horizon``.

    ``times`` (unix seconds) and ``values`` are one-dimensional and of one length; NaN is a missing
    slot; what lies at or after ``now`` is not looked at. Less than two days of history, or a constant,
    is carried on by its last value. ``models`` limits who may compete; ``fits`` keeps fits between
    calls on one growing series. Without a single value the answer is ``NO_HISTORY``. The same input
    always gives the same output.
    """
    series = Series.of(times, values, step, now)
    if not series.values.size:
        return NoPlanReason.NO_HISTORY
    steps = max(1, round(horizon / step))
    kept = fits if fits is not None else Fits()
    names, refused = _entrants(series, models)
    folds, names, refused = _judge(series, names, refused, steps, kept)
    choice = _choose(folds, names, refused, series)
    point = _point(series, choice.name, steps, kept)
    highest = float(np.nanmax(series.values))
    spread = quantiles(
        point,
        folds.truth,
        folds.predicted[choice.name],
        shift=offset(series.values),
        step_seconds=series.step,
        highest=highest,
        wanted=QUANTILES,
    )
    return Forecast(
        signal=signal,
        entity=entity,
        made_at=now,
        step=step,
        times=series.future(steps),
        quantiles=spread,
        model=choice.name,
        score=choice.score,
        why_model=choice.why,
    )


def _entrants(series: Series, models: Sequence[str]) -> tuple[list[str], str]:
    """Who may compete, and why Prophet may not (empty when it may)."""
    if series.days < _SHORT_DAYS:
        return ["last-value"], translate("plan.why_short", "en", days=f"{series.days:.1f}")
    if float(np.ptp(series.values[series.present])) == 0.0:
        return ["last-value"], translate("plan.why_constant", "en")
    names = [name for name in models if series.days >= CANDIDATES[name].minimum_days + 1.0]
    if "prophet" in models and "prophet" not in names:
        return names or ["last-value"], translate("plan.why_unjudged", "en", days=f"{series.days:.1f}")
    return names or ["last-value"], ""


def _judge(series: Series, names: list[str], refused: str, steps: int, fits: Fits) -> tuple[Folds, list[str], str]:
    """Run the folds; a Prophet that finds no fit leaves the competition with that reason."""
    try:
        return run_folds(series, names, steps, fits), names, refused
    except (RuntimeError, ValueError) as error:
        if "prophet" not in names:
            raise
        left = [name for name in names if name != "prophet"] or ["last-value"]
        reason = translate("plan.why_no_fit", "en", error=str(error)[:120])
        return run_folds(series, left, steps, fits), left, reason


def _choose(folds: Folds, names: list[str], refused: str, series: Series) -> _Choice:
    """The least mean WAPE over 30 min, 2 h and 24 h; Prophet where it is level with the best."""
    steps = folds.truth.shape[1]
    leads = sorted({min(steps, max(1, round(seconds / series.step))) for seconds in _JUDGED_SECONDS})
    scores = {name: _mean([folds.wape(name, lead, names) for lead in leads]) for name in names}
    judged = {name: score for name, score in scores.items() if score is not None}
    if len(names) == 1 or not judged:
        name = names[0] if len(names) == 1 else "last-value" if "last-value" in names else names[-1]
        why = refused or translate("plan.why_only", "en", model=name)
        return _Choice(name, _score(folds, name, None, names, series), why)
    best = min(judged, key=lambda name: judged[name])
    name = "prophet" if judged.get("prophet", np.inf) <= judged[best] * _TIE else best
    rivals = {other: score for other, score in judged.items() if other != name}
    rival = min(rivals, key=lambda other: rivals[other]) if rivals else None
    return _Choice(
        name, _score(folds, name, rival, names, series), _why(name, judged, rival, refused, len(folds.origins))
    )


def _why(name: str, judged: dict[str, float], rival: str | None, refused: str, folds: int) -> str:
    if rival is None:
        return refused
    if refused:
        key = "plan.why_best_unjudged"
    elif name == "prophet":
        key = "plan.why_prophet_wins"
    else:
        key, rival = "plan.why_prophet_loses", "prophet" if "prophet" in judged else rival
    return translate(
        key,
        "en",
        model=name,
        wape=f"{judged[name]:.3f}",
        rival=rival,
        rival_wape=f"{judged[rival]:.3f}",
        folds=folds,
        refused=refused,
    )


def _score(folds: Folds, name: str, rival: str | None, names: list[str], series: Series) -> BacktestScore:
    """WAPE over the whole horizon, of the winner and of its best rival; coverage of its 90 % interval."""
    steps = folds.truth.shape[1]
    shift = offset(series.values)
    return BacktestScore(
        wape=folds.wape(name, steps, names),
        wape_rival=folds.wape(rival, steps, names) if rival else None,
        coverage90=coverage(folds.truth, folds.predicted[name], shift=shift, step_seconds=series.step),
        folds=len(folds.origins),
    )


def _point(series: Series, name: str, steps: int, fits: Fits) -> Floats:
    ahead = series.season + steps
    fitted: Predictor = fits.get(name, series, series.values.size, ahead)
    return fitted.predict(series, steps)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
