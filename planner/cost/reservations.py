"""Reservations: GPUs to reserve for weeks, GPUs to rent by the hour, and uses of a fleet's troughs.

A reserved GPU costs ``held`` each hour, one on demand ``burst`` each hour that it is busy. The cheapest reservation is
the number of GPUs busy for the share held / burst of the hours: the quantile 1 - held / burst of the demand (the
newsvendor problem). Demand is that of the last weeks by hour of the week, with its growth; the interval covers growth
between the 5th and 95th percentile of resampled weeks.
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
"""Spread of the weekly growth (a ratio) if the history is too short."""
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth from one week to the next: 0.02 is 2 %. ``weeks`` is the history behind it; the interval is 90 %."""

    middle: float
    low: float
    high: float
    weeks: int


class NoReservation(StrEnum):
    """Reasons why no GPU is reserved."""

    TOO_LATE = "too_late"  # a reservation made now starts after the period
    NEVER_PAYS = "never_pays"  # reserved GPUs cost as much as on demand, or more
    QUOTA = "quota"  # it would pay, but the quota has no room for one replica
    SELDOM_BUSY = "seldom_busy"  # no GPU is busy for enough hours


@dataclass(frozen=True, slots=True)
class BuyPlan:
    """GPUs to reserve and to burst to, the cost over the period, and the cost of alternatives.

    ``low`` and ``high`` are the cost at the bounds of the growth interval. ``worth`` is the reservation without a
    quota. ``order_by`` is None without a reservation, and ``unheld`` is the reason.
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
    unheld: NoReservation | None


def growth(hourly: Floats) -> Growth:
    """Weekly growth of hourly demand, the newest hour last, NaN if unknown.

    The slope of the logarithms of weekly means; the interval is from resampled residuals. With less than three weeks
    growth is zero with the prior's spread.
    """
    weeks = hourly.size // _WEEK_HOURS
    sums = np.array([])
    if weeks:
        folded = hourly[-weeks * _WEEK_HOURS :].reshape(weeks, _WEEK_HOURS)
        is_known = (~np.isnan(folded)).mean(axis=1) > 0.5
        with np.errstate(all="ignore"):
            sums = np.where(
                is_known, np.nansum(folded, axis=1) / np.maximum((~np.isnan(folded)).sum(axis=1), 1), np.nan
            )
    known = np.flatnonzero(~np.isnan(sums) & (sums > 0)) if sums.size else np.array([], dtype=int)
    if known.size < 3:
        return Growth(0.0, -_GROWTH_PRIOR, _GROWTH_PRIOR, int(known.size))
    logs = np.log(sums[known])
    slope, start = np.polyfit(known, logs, 1)
    deviations = logs - (slope * known + start)
    random = np.random.default_rng(known.size)
    residuals = random.choice(deviations, size=(_RESAMPLES, known.size)) * np.sqrt(known.size / max(known.size - 2, 1))
    centered = known - known.mean()
    slopes = slope + residuals @ centered / (centered @ centered)
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
    """Plans reserved and on-demand GPUs over the next ``weeks`` (4 to 12).

    ``hourly_gpus`` is the GPUs needed in each past hour, the newest last, NaN if unknown, at least a week of them.
    Until ``lead`` is over everything is on demand. ``quota`` is the most that can be reserved. GPUs come in whole
    replicas of ``group``: part of a replica serves nothing.
    """
    if not _LEAST_WEEKS <= weeks <= _MOST_WEEKS:
        raise UsageError(
            f"invalid period: {weeks} {'week' if weeks == 1 else 'weeks'}",
            hint=f"give {_LEAST_WEEKS} to {_MOST_WEEKS} weeks",
        )
    _check_prices(held_price, burst_price)
    if hourly_gpus.size < _WEEK_HOURS or np.isnan(hourly_gpus[-_WEEK_HOURS:]).all():
        raise UsageError("less than a week of history", hint="collect a week of load before buying for months")
    if np.nanmin(hourly_gpus) < 0:
        raise UsageError("the need must not be negative", hint="give the GPUs needed in each hour")
    if np.nanmax(hourly_gpus) > MOST_GPUS:
        message = f"{np.nanmax(hourly_gpus):.3g} GPUs are needed in one hour; the limit is {MOST_GPUS:.0e}"
        raise UsageError(message, hint="check the loads, and the capacity of one GPU (--per-gpu)")
    if group < 1:
        raise UsageError(f"invalid replica size: {group} GPUs", hint="give 1 or more")
    grows = growth(hourly_gpus)
    middle, low, high = (
        _future_need(hourly_gpus, rate, weeks, group) for rate in (grows.middle, grows.low, grows.high)
    )
    first = min(ceil(lead.total_seconds() / 3600.0), middle.size)
    ratio = min(held_price / burst_price, 1.0)
    worth = _reservation(middle[first:], ratio)
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
        unheld=None if held else _refusal(first < middle.size, ratio, worth),
    )


def _check_prices(held: float, burst: float) -> None:
    """Raises UsageError with the invalid price."""
    for option, price, least in (("--burst-price", burst, "above 0"), ("--held-price", held, "0 or more")):
        if not isfinite(price) or price < 0 or (price == 0 and least == "above 0"):
            raise UsageError(f"{option} must be {least}, not {price:g}", hint="give the price of one GPU-hour")


def _refusal(in_time: bool, ratio: float, worth: int) -> NoReservation:
    if not in_time:
        return NoReservation.TOO_LATE
    if ratio >= 1.0:
        return NoReservation.NEVER_PAYS
    return NoReservation.QUOTA if worth else NoReservation.SELDOM_BUSY


def spikes(hourly_gpus: Floats) -> list[int]:
    """Indices of hours with ten times the need of all but 1 % of hours: an error of the history, or an event.

    They raise on-demand GPUs and their cost; the reservation hardly changes.
    """
    known = hourly_gpus[~np.isnan(hourly_gpus)]
    if not known.size:
        return []
    typical = max(float(np.quantile(known, 0.99)), 1.0)
    return [int(index) for index in np.flatnonzero(np.nan_to_num(hourly_gpus) > _SPIKE_RATIO * typical)]


@dataclass(frozen=True, slots=True)
class Trough:
    """GPUs free from ``start``; at ``back_by`` they must be free again for the next rise of online load.

    ``back_by`` is the start-up time before the need.
    """

    start: datetime
    back_by: datetime
    gpus: int

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the window."""
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
    """Finds the windows in which GPUs of a fleet are free for offline work, layer by layer of ``group`` GPUs.

    ``times`` are unix seconds in even steps, ``needed_gpus`` the upper quantile of the need in each; NaN counts as the
    whole fleet. A layer is free while it is not needed; it ends the start-up time before the need returns. Equal
    windows of adjacent layers are merged.
    """
    if times.size < 2 or fleet < 1 or group < 1:
        return []
    step = float(times[1] - times[0])
    need = np.nan_to_num(np.asarray(needed_gpus, dtype=np.float64), nan=float(fleet))
    windows: dict[tuple[float, float], int] = {}
    for level in range(fleet // group):
        free = need <= fleet - (level + 1) * group + 1e-9
        edges = np.flatnonzero(np.diff(np.concatenate([[0], free.astype(int), [0]])))
        for begin, end in edges.reshape(-1, 2):
            returns = end < times.size
            until = float(times[begin] + (end - begin) * step) - (startup.total_seconds() if returns else 0.0)
            if until - times[begin] >= least.total_seconds():
                window = (float(times[begin]), until)
                windows[window] = windows.get(window, 0) + group
    return [
        Trough(datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(until, UTC), gpus)
        for (begin, until), gpus in sorted(windows.items())
    ]


def coming_day(hourly_gpus: Floats, grows: Growth, group: int = 1) -> Floats:
    """The highest need of each of the next 24 hours: the maximum of these hours over the last four weeks.

    Past weeks are scaled to the coming one if the load grows; a decline is not extrapolated. NaN if no week has the
    hour. ``hourly_gpus`` ends now and has at least a week; counts are whole replicas.
    """
    level = _scale_weeks(hourly_gpus, max(grows.middle, 0.0))[:, :24]
    most = np.where(np.isnan(level), -np.inf, level).max(axis=0)
    return np.where(np.isfinite(most), _whole(most, group), np.nan)


def _scale_weeks(hourly: Floats, rate: float) -> Floats:
    """The last four weeks, a row each, scaled to the coming one at a growth of ``rate`` a week."""
    known = hourly[-(hourly.size // _WEEK_HOURS) * _WEEK_HOURS :].reshape(-1, _WEEK_HOURS)[-4:]
    back = np.arange(known.shape[0])[::-1] + 1.0
    return np.asarray(known * (1.0 + rate) ** back[:, None], dtype=np.float64)


def _whole(gpus: Floats, group: int) -> Floats:
    return np.asarray(np.ceil(gpus / group - 1e-9) * group, dtype=np.float64)


def _future_need(hourly: Floats, rate: float, weeks: int, group: int) -> Floats:
    """GPUs of each future hour: the mean hour of the week, grown week by week, in whole replicas."""
    level = _scale_weeks(hourly, rate)
    count = np.maximum((~np.isnan(level)).sum(axis=0), 1)
    mean_hour = np.nansum(level, axis=0) / count
    mean_hour = np.where(np.isnan(level).all(axis=0), np.nanmean(level), mean_hour)
    grown = mean_hour[None, :] * (1.0 + rate) ** np.arange(weeks)[:, None]
    return _whole(grown.ravel(), group)


def _reservation(demand: Floats, ratio: float) -> int:
    """The number busy for ``ratio`` of the hours: exact for whole replicas."""
    if demand.size == 0 or ratio >= 1.0:
        return 0
    ordered = np.sort(demand)[::-1]
    return int(ordered[min(ceil(ratio * demand.size - 1e-9), demand.size) - 1]) if ratio > 0 else int(ordered[0])


def _cost(demand: Floats, first: int, held: int, held_price: float, burst_price: float) -> float:
    before, after = demand[:first], demand[first:]
    beyond = np.maximum(after - held, 0.0)
    return float(before.sum() * burst_price + held * held_price * after.size + beyond.sum() * burst_price)
