"""What to hold for weeks and what to rent by the hour, and what a fleet's troughs are good for.

A GPU that is held costs ``held`` each hour, one on demand ``burst`` each hour that it is busy. The cheapest number to
hold is the one that is busy for the share held / burst of the hours: the quantile 1 - held / burst of the demand (the
newsvendor's answer). Demand is the last weeks' by hour of the week, grown by what it grew; the interval holds the
growth between the 5th and 95th percentile of resampled weeks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil, isfinite

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats

_WEEK_HOURS = 168
MOST_GPUS = 1e6
_SPIKE_RATIO = 10.0
_LEAST_WEEKS, _MOST_WEEKS = 4, 12
_GROWTH_PRIOR = 0.05
"""Spread of the weekly growth (a ratio) where history is too short to show one."""
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth from one week to the next: .02 is 2 %. ``weeks`` of history told it; the interval is 90 %."""

    middle: float
    low: float
    high: float
    weeks: int


class Unheld(StrEnum):
    """Why no GPU is held."""

    TOO_LATE = "too_late"  # what is ordered now comes when the time is over
    NEVER_PAYS = "never_pays"  # held costs as much as on demand, or more
    QUOTA = "quota"  # it would pay, and the quota has no room for one replica
    SELDOM_BUSY = "seldom_busy"  # no GPU is busy for as many hours as holding it takes to pay


@dataclass(frozen=True, slots=True)
class BuyPlan:
    """GPUs to hold and to burst to, what it costs over the time, and what other plans would.

    ``low`` and ``high`` are the cost when the load grows as little or as much as the interval allows. ``worth`` is what
    would be held without a quota; ``order_by`` is None where nothing is, and ``unheld`` says why.
    """

    held: int
    burst: int
    cost: float
    low: float
    high: float
    all_burst: float
    all_held: float
    busy_ratio: float
    lead_days: float
    weeks: int
    growth: Growth
    order_by: datetime | None
    demand_low: tuple[int, int]
    demand_high: tuple[int, int]
    in_time: bool
    worth: int
    unheld: Unheld | None


def growth(hourly: Floats) -> Growth:
    """Weekly growth of hourly demand, the newest hour last, NaN where unknown.

    Logarithms of whole weeks' means, and their slope; the interval from resampled residuals. With less than three
    weeks nothing is known: no growth, and the prior's spread.
    """
    weeks = hourly.size // _WEEK_HOURS
    sums = np.array([])
    if weeks:
        folded = hourly[-weeks * _WEEK_HOURS :].reshape(weeks, _WEEK_HOURS)
        told = (~np.isnan(folded)).mean(axis=1) > 0.5
        with np.errstate(all="ignore"):
            sums = np.where(told, np.nansum(folded, axis=1) / np.maximum((~np.isnan(folded)).sum(axis=1), 1), np.nan)
    known = np.flatnonzero(~np.isnan(sums) & (sums > 0)) if sums.size else np.array([], dtype=int)
    if known.size < 3:
        return Growth(0.0, -_GROWTH_PRIOR, _GROWTH_PRIOR, int(known.size))
    logs = np.log(sums[known])
    slope, start = np.polyfit(known, logs, 1)
    left = logs - (slope * known + start)
    random = np.random.default_rng(known.size)
    drawn = random.choice(left, size=(_RESAMPLES, known.size)) * np.sqrt(known.size / max(known.size - 2, 1))
    centred = known - known.mean()
    slopes = slope + drawn @ centred / (centred @ centred)
    low, high = np.quantile(slopes, (0.05, 0.95))
    return Growth(float(np.expm1(slope)), float(np.expm1(low)), float(np.expm1(high)), int(known.size))


def plan(
    hourly_gpus: Floats,
    now: datetime,
    *,
    held_price: float,
    burst_price: float,
    weeks: int = 8,
    lead: timedelta = timedelta(days=14),
    quota: int | None = None,
    group: int = 1,
) -> BuyPlan:
    """Buy or burst over the next ``weeks`` (4 to 12).

    ``hourly_gpus`` is the GPUs needed in each past hour, the newest last, NaN where unknown, a week of it at least.
    Until ``lead`` is over everything is on demand. ``quota`` is the most that can be held. GPUs are counted in whole
    replicas of ``group``: part of one serves nothing.
    """
    if not _LEAST_WEEKS <= weeks <= _MOST_WEEKS:
        raise UsageError(
            f"a plan over {weeks} {'week' if weeks == 1 else 'weeks'}",
            hint=f"give {_LEAST_WEEKS} to {_MOST_WEEKS} weeks",
        )
    _check_prices(held_price, burst_price)
    if hourly_gpus.size < _WEEK_HOURS or np.isnan(hourly_gpus[-_WEEK_HOURS:]).all():
        raise UsageError("less than a week of history", hint="collect a week of load before buying for months")
    if np.nanmin(hourly_gpus) < 0:
        raise UsageError("a need of less than no GPUs", hint="give the GPUs needed in each hour")
    if np.nanmax(hourly_gpus) > MOST_GPUS:
        said = f"{np.nanmax(hourly_gpus):.3g} GPUs are needed in an hour, more than anyone has"
        raise UsageError(said, hint="check the loads, and what one GPU carries (--per-gpu)")
    if group < 1:
        raise UsageError(f"a replica of {group} GPUs", hint="give 1 or more")
    grows = growth(hourly_gpus)
    middle, low, high = (_ahead(hourly_gpus, rate, weeks, group) for rate in (grows.middle, grows.low, grows.high))
    first = min(ceil(lead.total_seconds() / 3600.0), middle.size)
    ratio = min(held_price / burst_price, 1.0)
    worth = _hold(middle[first:], ratio)
    held = worth if quota is None else min(worth, quota // group * group)
    return BuyPlan(
        held=held,
        burst=int(middle.max(initial=0)),
        cost=_cost(middle, first, held, held_price, burst_price),
        low=_cost(low, first, held, held_price, burst_price),
        high=_cost(high, first, held, held_price, burst_price),
        all_burst=float(middle.sum() * burst_price),
        all_held=_cost(middle, first, int(middle[first:].max(initial=0)), held_price, burst_price),
        busy_ratio=ratio,
        lead_days=lead.total_seconds() / 86400.0,
        weeks=weeks,
        growth=grows,
        order_by=now if held else None,
        demand_low=(int(low.min(initial=0)), int(low.max(initial=0))),
        demand_high=(int(high.min(initial=0)), int(high.max(initial=0))),
        in_time=first < middle.size,
        worth=worth,
        unheld=None if held else _unheld(first < middle.size, ratio, worth),
    )


def _check_prices(held: float, burst: float) -> None:
    """Raises UsageError naming the price that nobody pays."""
    for option, price, least in (("--burst-price", burst, "above 0"), ("--held-price", held, "0 or more")):
        if not isfinite(price) or price < 0 or (price == 0 and least == "above 0"):
            raise UsageError(f"{option} must be {least}, not {price:g}", hint="give what one GPU costs an hour")


def _unheld(in_time: bool, ratio: float, worth: int) -> Unheld:
    if not in_time:
        return Unheld.TOO_LATE
    if ratio >= 1.0:
        return Unheld.NEVER_PAYS
    return Unheld.QUOTA if worth else Unheld.SELDOM_BUSY


def spikes(hourly_gpus: Floats) -> list[int]:
    """Places of hours that need ten times what all but one in a hundred do: an error of the history, or an event.

    They raise what is bought on demand and its cost; what is held hardly moves.
    """
    known = hourly_gpus[~np.isnan(hourly_gpus)]
    if not known.size:
        return []
    usual = max(float(np.quantile(known, 0.99)), 1.0)
    return [int(place) for place in np.flatnonzero(np.nan_to_num(hourly_gpus) > _SPIKE_RATIO * usual)]


@dataclass(frozen=True, slots=True)
class Trough:
    """GPUs that online work leaves from ``start``; at ``back_by`` they must be free again to serve at the next rise.

    ``back_by`` lies the start-up time before the need.
    """

    start: datetime
    back_by: datetime
    gpus: int

    @property
    def gpu_hours(self) -> float:
        """What it is good for."""
        return self.gpus * (self.back_by - self.start).total_seconds() / 3600.0


def troughs(
    times: Floats,
    needed_gpus: Sequence[float],
    fleet: int,
    *,
    startup: timedelta,
    least: timedelta = timedelta(hours=1),
    group: int = 1,
) -> list[Trough]:
    """The windows in which GPUs of a fleet are free for offline work, layer by layer of ``group`` GPUs.

    ``times`` are unix seconds in even steps, ``needed_gpus`` the upper quantile of the need in each; NaN counts as
    the whole fleet. A layer is free while the need leaves it; it ends the start-up time before the need returns. Equal
    windows of neighbouring layers are one.
    """
    if times.size < 2 or fleet < 1 or group < 1:
        return []
    step = float(times[1] - times[0])
    need = np.nan_to_num(np.asarray(needed_gpus, dtype=np.float64), nan=float(fleet))
    found: dict[tuple[float, float], int] = {}
    for level in range(fleet // group):
        free = need <= fleet - (level + 1) * group + 1e-9
        edges = np.flatnonzero(np.diff(np.concatenate([[0], free.astype(int), [0]])))
        for begin, end in edges.reshape(-1, 2):
            returns = end < times.size
            until = float(times[begin] + (end - begin) * step) - (startup.total_seconds() if returns else 0.0)
            if until - times[begin] >= least.total_seconds():
                window = (float(times[begin]), until)
                found[window] = found.get(window, 0) + group
    return [
        Trough(datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(until, UTC), gpus)
        for (begin, until), gpus in sorted(found.items())
    ]


def coming_day(hourly_gpus: Floats, grows: Growth, group: int = 1) -> Floats:
    """The most GPUs that each of the coming 24 hours may need: the highest of these hours of the last four weeks.

    Past weeks are brought to the coming one's level where the load grows; a load that shrinks is not trusted to go on.
    NaN where no week knows the hour. ``hourly_gpus`` ends now and has a week at least; counts are whole replicas.
    """
    level = _levelled(hourly_gpus, max(grows.middle, 0.0))[:, :24]
    most = np.where(np.isnan(level), -np.inf, level).max(axis=0)
    return np.where(np.isfinite(most), _whole(most, group), np.nan)


def _levelled(hourly: Floats, rate: float) -> Floats:
    """The last four weeks, a row each, at the level that the coming one has when they grow by ``rate`` a week."""
    known = hourly[-(hourly.size // _WEEK_HOURS) * _WEEK_HOURS :].reshape(-1, _WEEK_HOURS)[-4:]
    back = np.arange(known.shape[0])[::-1] + 1.0
    return np.asarray(known * (1.0 + rate) ** back[:, None], dtype=np.float64)


def _whole(gpus: Floats, group: int) -> Floats:
    return np.asarray(np.ceil(gpus / group - 1e-9) * group, dtype=np.float64)


def _ahead(hourly: Floats, rate: float, weeks: int, group: int) -> Floats:
    """GPUs of each coming hour: the usual hour of the week, grown week by week, in whole replicas."""
    level = _levelled(hourly, rate)
    count = np.maximum((~np.isnan(level)).sum(axis=0), 1)
    usual = np.nansum(level, axis=0) / count
    usual = np.where(np.isnan(level).all(axis=0), np.nanmean(level), usual)
    grown = usual[None, :] * (1.0 + rate) ** np.arange(weeks)[:, None]
    return _whole(grown.ravel(), group)


def _hold(demand: Floats, ratio: float) -> int:
    """The number that is busy for ``ratio`` of the hours: exact for whole replicas."""
    if demand.size == 0 or ratio >= 1.0:
        return 0
    ordered = np.sort(demand)[::-1]
    return int(ordered[min(ceil(ratio * demand.size - 1e-9), demand.size) - 1]) if ratio > 0 else int(ordered[0])


def _cost(demand: Floats, first: int, held: int, held_price: float, burst_price: float) -> float:
    before, after = demand[:first], demand[first:]
    beyond = np.maximum(after - held, 0.0)
    return float(before.sum() * burst_price + held * held_price * after.size + beyond.sum() * burst_price)
