"""Forecasters that are fitted by night and asked all day: what they have in common, and their fits by midnight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Protocol

import numpy as np

from outrider.model import Why
from planner.forecast.grid import Matrix, Slots
from planner.forecast.series import DAY_SECONDS, Series

MINIMUM_DAYS = 2.0
_REASON_LETTERS = 120


class Fitted(Protocol):
    """One fit. It depends on nothing but the values before its end, and can be sent to other processes."""

    def at(self, series: Series, origins: Slots, leads: Slots) -> Matrix:
        """What it says at origins of ``series`` (in its slots), none before its end, at leads from 1 on.

        (origins, leads), in the units of the values, never negative; NaN past what it knows.
        """
        ...


class Forecaster(Protocol):
    """A way to make fits."""

    @property
    def name(self) -> str:
        """As the configuration calls it."""

    @property
    def title(self) -> str:
        """As people call it."""

    @property
    def extra(self) -> str:
        """The extra of this package that installs what it needs; empty where that always is."""

    def is_absent(self) -> bool:
        """True where its library is not installed. Imports nothing."""

    def fit(self, series: Series, ahead: int) -> Fitted:
        """Fit on every known slot, to be asked up to ``ahead`` slots past the end.

        Whatever is raised says that there is no fit: an optimum that was not found, a library that does not load.
        """


@dataclass(slots=True)
class Fits:
    """Fits of one series, by forecaster and by the instant they were made at; and who made none, with the reason.

    Hand one in again while the series only grows: a fit that is there is not made again, which changes no result.
    """

    made: dict[str, dict[float, Fitted]] = field(default_factory=dict)
    refused: dict[str, Why] = field(default_factory=dict)
    made_count: int = 0

    @property
    def asked(self) -> tuple[str, ...]:
        """The forecasters that were asked for fits, whether they made any or not."""
        return tuple(dict.fromkeys((*self.made, *self.refused)))

    def prepare(self, forecasters: Iterable[Forecaster], series: Series, days: int, steps: int) -> None:
        """Let each fit at each of the newest ``days`` midnights and the one before, on what was known then.

        One whose library is absent, or that finds no fit for one of these nights, is refused with the reason.
        """
        for each in forecasters:
            self.refused.pop(each.name, None)
            if each.is_absent():
                self.refused[each.name] = Why("plan.why_absent", {"name": each.title, "extra": each.extra})
                continue
            try:
                self._prepare(each, series, days, steps)
            except Exception as error:  # noqa: BLE001 - no library's error may cost other services their night
                self.refused[each.name] = Why("plan.why_no_fit", {"name": each.title, "error": reason_of(error)})

    def _prepare(self, forecaster: Forecaster, series: Series, days: int, steps: int) -> None:
        mine = self.made.setdefault(forecaster.name, {})
        oldest = series.origin - (days + 2) * DAY_SECONDS
        for until in [until for until in mine if until < oldest]:
            del mine[until]
        for until in reversed(nights(series, days)):
            if until not in mine:
                slots = round((until - series.start) / series.step)
                mine[until] = forecaster.fit(series.until(slots), series.season + steps)
                self.made_count += 1

    def copy(self) -> Fits:
        """The same fits, to be added to without changing these."""
        return Fits({name: dict(each) for name, each in self.made.items()}, dict(self.refused), self.made_count)


@dataclass(frozen=True, slots=True)
class Decided:
    """What a night found for one series: its fits, and by name who of them is heard until the next night.

    ``why`` says of each that was asked why it is heard or is not; ``notes`` is what else there is to say.
    """

    fits: Fits
    heard: tuple[str, ...] = ()
    why: tuple[Why, ...] = ()
    notes: tuple[Why, ...] = ()


def reason_of(error: Exception) -> str:
    """An error in a few words for people: what it says, its name where it says nothing."""
    return (str(error).strip() or type(error).__name__)[:_REASON_LETTERS]


def nights(series: Series, days: int) -> list[float]:
    """The midnights (by the series' clock) up to its origin at which there were two days of history to fit on."""
    newest = floor(series.origin / DAY_SECONDS) * DAY_SECONDS
    found = [newest - back * DAY_SECONDS for back in range(days, -1, -1)]
    return [until for until in found if until - series.start >= MINIMUM_DAYS * DAY_SECONDS]


@dataclass(frozen=True, slots=True)
class ByNight:
    """A forecaster as a member of the mix: at each origin the newest fit that was made by then speaks."""

    series: Series
    made: Mapping[float, Fitted]

    def at(self, origins: Slots, leads: Slots) -> Matrix:
        """(origins, leads), NaN where no fit was made yet."""
        found = np.full((origins.size, leads.size), np.nan)
        instants = self.series.start + self.series.step * origins
        ends = sorted(self.made)
        newest = np.searchsorted(ends, instants, side="right") - 1
        for place, until in enumerate(ends):
            mine = newest == place
            if mine.any():
                found[mine] = self.made[until].at(self.series, origins[mine], leads)
        return found
