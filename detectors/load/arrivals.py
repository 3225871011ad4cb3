"""Arrival rate of requests at a service and its earlier level, shared by all detectors of demand.

Arrivals are responses plus growth of requests in flight, so that a queue hides none of them.
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from detectors.base.condition_durations import Flags, gaps, previous_index
from detectors.base.state_arrays import Arrays
from outrider import windows
from outrider.model import Floats, Window, signal_keys

KEYS = signal_keys("svc_requests_total", "svc_inflight_requests")
RECENT = timedelta(minutes=2)
LEVEL_SECONDS = 1800.0  # earlier level: half an hour of memory, short relative to daily patterns
LEVEL_KNOWN_SECONDS = 30.0
JUMP_SIGMAS = 5.0  # one page in a million by chance


def arrivals(window: Window, stopped: Flags | None = None) -> Floats:
    """Requests arriving per second, (entities, times); NaN if the previous page is unknown.

    ``stopped`` marks pages of a service that does not move: their requests count on the first page after them.
    """
    answered = window.column("svc_requests_total")
    inflight = window.column("svc_inflight_requests")
    seen = ~np.isnan(answered) if stopped is None else ~np.isnan(answered) & ~stopped
    between = gaps(seen, window.times)
    held = np.where(seen, np.nan_to_num(inflight), np.nan)
    earlier = np.take_along_axis(held, np.maximum(previous_index(seen), 0), axis=1)
    rate: Floats = np.maximum(0.0, (answered + held - earlier) / between)
    return rate


def recent(window: Window, values: Floats, span: timedelta = RECENT) -> Floats:
    """The mean of the newest ``span``, shape (entities,)."""
    return windows.mean_by_row(values[:, windows.recent(window, span)])


def recent_without_jump(window: Window, rate: Floats) -> Floats:
    """The mean rate of the recent minutes, with the largest value limited to what chance allows beside the others.

    A replica that hung reports all requests that reached it meanwhile on its first page. They arrived over a long time.
    The limit is ``JUMP_SIGMAS`` standard deviations of a Poisson count above the mean of the others.
    """
    values = rate[:, windows.recent(window, RECENT)]
    known = ~np.isnan(values)
    count, total = known.sum(axis=1), np.nansum(values, axis=1)
    largest = np.where(known, values, 0.0).max(axis=1, initial=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        others = (total - largest) / (count - 1)
        limit = others + JUMP_SIGMAS * np.sqrt(others / window.step.total_seconds())
        mean = (total - largest + np.minimum(largest, limit)) / count
    result: Floats = np.where(count > 1, mean, windows.mean_by_row(values))
    return result


def earlier(window: Window, values: Floats, span: timedelta = RECENT) -> Floats:
    """The mean of the window before the newest ``span``; NaN for less than half a minute of it."""
    before = values[:, : windows.recent(window, span).start]
    known = (~np.isnan(before)).sum(axis=1) * window.step.total_seconds()
    return np.where(known >= LEVEL_KNOWN_SECONDS, windows.mean_by_row(before), np.nan)


def level(window: Window, values: Floats, held: Floats, weight: Floats) -> Floats:
    """The level before the recent minutes: the stored one, while that is young the lower of it and the window's.

    The window of an outage has fewer arrivals, and their return is no rise: the service has served them before. A young
    stored level already follows the rise.
    """
    stored = remembered(held, weight)
    lower: Floats = np.fmin(earlier(window, values), stored)
    return np.where(weight >= LEVEL_SECONDS / 2, stored, lower)


def remembered(held: Floats, weight: Floats) -> Floats:
    """The stored level if it covers more than the recent minutes, else NaN."""
    return np.where(weight >= RECENT.total_seconds() + LEVEL_KNOWN_SECONDS, held, np.nan)


def follow(memory: Arrays, name: str, value: Floats, step_seconds: float, frozen: Flags) -> None:
    """Moves the stored level ``name`` towards the newest value, unless ``frozen``.

    Its weight, the seconds it covers up to half an hour, is ``<name>_weight``.
    """
    weight_name = f"{name}_weight"
    use = ~np.isnan(value) & ~frozen
    weight = np.minimum(memory[weight_name] + step_seconds, LEVEL_SECONDS)
    share = step_seconds / np.maximum(weight, step_seconds)
    moved = np.where(np.isnan(memory[name]), value, memory[name] + share * (value - memory[name]))
    memory[name] = np.where(use, moved, memory[name])
    memory[weight_name] = np.where(use, weight, memory[weight_name])


def per_first_token(window: Window, amount: str, count: Floats, span: timedelta) -> Floats:
    """``amount`` of the span per ``count`` requests, NaN for fewer than ten."""
    total = np.nan_to_num(windows.total(window, amount, span))
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Floats = np.where(count >= 10.0, total / count, np.nan)
    return result
