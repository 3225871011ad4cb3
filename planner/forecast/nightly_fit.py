"""Forecasters fitted nightly and evaluated all day: their protocols, and their fits by midnight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Protocol

import numpy as np

from outrider.model import ReasonText
from planner.forecast.grid import Matrix, Slots
from planner.forecast.series import DAY_SECONDS, Series

MINIMUM_DAYS = 2.0
_REASON_LETTERS = 120


class FittedModel(Protocol):
    """One fit. It depends only on the values before its end, and can be pickled."""

    def at(self, series: Series, origins: Slots, leads: Slots) -> Matrix:
        """Returns forecasts at ``origins`` (slots of ``series``), none before its end, at leads from 1.

        (origins, leads), in the units of the values, never negative; NaN past its reach.
        """
        ...


class Forecaster(Protocol):
    """Makes fits of a series."""

    @property
    def name(self) -> str:
        """Name in the configuration."""

    @property
    def title(self) -> str:
        """Display name."""

    @property
    def extra(self) -> str:
        """Extra of this package that installs its library; empty if always installed."""

    def is_absent(self) -> bool:
        """True if its library is not installed. Imports nothing."""

    def fit(self, series: Series, ahead: int) -> FittedModel:
        """Fits on every known slot, for forecasts up to ``ahead`` slots past the end.

        Any exception means that there is no fit, such as a missing optimum or a library that does not load.
        """


@dataclass(slots=True)
class Fits:
    """Fits of one series, by forecaster and by the time they were made at; and the reasons of forecasters without one.

    Can be passed in again while the series only grows: existing fits are not made again, which changes no result.
    """

    made: dict[str, dict[float, FittedModel]] = field(default_factory=dict)
    refused: dict[str, ReasonText] = field(default_factory=dict)
    made_count: int = 0

    @property
    def requested(self) -> tuple[str, ...]:
        """The forecasters that fits were requested from, with or without success."""
        return tuple(dict.fromkeys((*self.made, *self.refused)))

    def prepare(self, forecasters: Iterable[Forecaster], series: Series, days: int, steps: int) -> None:
        """Fits each forecaster at each of the newest ``days`` midnights and the one before, on the data known then.

        A forecaster is refused with the reason if its library is absent or one of these fits fails.
        """
        for forecaster in forecasters:
            name, title = forecaster.name, forecaster.title
            self.refused.pop(name, None)
            if forecaster.is_absent():
                self.refused[name] = ReasonText("plan.why_absent", {"name": title, "extra": forecaster.extra})
                continue
            try:
                self._prepare(forecaster, series, days, steps)
            except Exception as error:  # noqa: BLE001 - an error of one library must not cost other services their fits
                self.refused[name] = ReasonText("plan.why_no_fit", {"name": title, "error": reason_of(error)})

    def _prepare(self, forecaster: Forecaster, series: Series, days: int, steps: int) -> None:
        fits = self.made.setdefault(forecaster.name, {})
        oldest = series.origin - (days + 2) * DAY_SECONDS
        for until in [until for until in fits if until < oldest]:
            del fits[until]
        for until in reversed(nights(series, days)):
            if until not in fits:
                slots = round((until - series.start) / series.step)
                fits[until] = forecaster.fit(series.until(slots), series.season + steps)
                self.made_count += 1

    def copy(self) -> Fits:
        """Returns a copy; adding fits to it does not change this one."""
        return Fits({name: dict(fits) for name, fits in self.made.items()}, dict(self.refused), self.made_count)


@dataclass(frozen=True, slots=True)
class NightlyDecision:
    """Nightly result of one series: its fits, and the names of the models selected until the next night.

    ``why`` holds a reason for each requested model; ``notes`` are further remarks.
    """

    fits: Fits
    selected: tuple[str, ...] = ()
    why: tuple[ReasonText, ...] = ()
    notes: tuple[ReasonText, ...] = ()


def reason_of(error: Exception) -> str:
    """Short text of an error: its message, or its type without one."""
    return (str(error).strip() or type(error).__name__)[:_REASON_LETTERS]


def nights(series: Series, days: int) -> list[float]:
    """The midnights (by the series' clock) up to its origin with two days of history to fit on."""
    newest = floor(series.origin / DAY_SECONDS) * DAY_SECONDS
    midnights = [newest - back * DAY_SECONDS for back in range(days, -1, -1)]
    return [until for until in midnights if until - series.start >= MINIMUM_DAYS * DAY_SECONDS]


@dataclass(frozen=True, slots=True)
class NightlyMember:
    """A forecaster as a member of the mix: at each origin the newest fit made by then."""

    series: Series
    made: Mapping[float, FittedModel]

    def at(self, origins: Slots, leads: Slots) -> Matrix:
        """(origins, leads), NaN before the first fit."""
        result = np.full((origins.size, leads.size), np.nan)
        instants = self.series.start + self.series.step * origins
        ends = sorted(self.made)
        newest = np.searchsorted(ends, instants, side="right") - 1
        for index, until in enumerate(ends):
            covered = newest == index
            if covered.any():
                result[covered] = self.made[until].at(self.series, origins[covered], leads)
        return result
