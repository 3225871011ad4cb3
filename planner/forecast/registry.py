"""The forecasters that compete. A new one is a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider.model import Floats
from planner.forecast import naive, prophet
from planner.forecast.series import Series


class Predictor(Protocol):
    """A fitted forecaster."""

    def predict(self, series: Series, steps: int) -> Floats:
        """The next ``steps`` values of a series whose origin is at or after the end of the fit."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """``fit`` learns from a series and may be asked up to ``ahead`` slots later.

    ``minimum_days`` of history are needed before it may be fitted at all.
    """

    fit: Callable[[Series, int], Predictor]
    minimum_days: float


@dataclass(frozen=True, slots=True)
class _Unfitted:
    """A forecaster that has nothing to learn beforehand."""

    function: Callable[[Series, int], Floats]

    def predict(self, series: Series, steps: int) -> Floats:
        return self.function(series, steps)


def _unfitted(function: Callable[[Series, int], Floats], minimum_days: float) -> Candidate:
    return Candidate(lambda _series, _ahead: _Unfitted(function), minimum_days)


CANDIDATES: dict[str, Candidate] = {
    "prophet": Candidate(prophet.fit, 2.0),
    "seasonal-profile": _unfitted(naive.seasonal_profile, 2.0),
    "seasonal-naive": _unfitted(naive.seasonal_naive, 1.0),
    "last-value": _unfitted(naive.last_value, 0.0),
}
