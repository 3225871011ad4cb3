"""Excess of services in a call graph over a quiet window, in units that add up along calls.

The excess of a step is requests x (latency - its median), requests x (its median success - success), or the requests
missing to their median. Weighting by requests ranks a nearly noise-free load balancer, which sees few of the calls,
behind the service that sees them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from outrider.model import Floats, NoVerdictReason

USUAL = 0.95  # quantile of quiet steps
RANGE = (0.01, 0.99)  # quantiles of quiet steps; a level outside has shifted since
FEW = 20  # quiet steps with requests; fewer give a weak baseline
SECONDS_PER_FAILURE = 1.0  # waiting time of a call that fails or is retried


class Symptom(StrEnum):
    """Symptom at the target."""

    LATENCY = "latency"  # seconds of waiting
    FAILURES = "failures"  # failed requests
    REQUESTS = "requests"  # missing requests


@dataclass(frozen=True, slots=True)
class Calls:
    """Traffic of n entities in t steps of equal length; every array has the shape (n, t).

    ``requests`` counts the calls of a step, ``latency_seconds`` is their mean, ``success_ratio`` 0-1. NaN is unknown;
    latency and success of a step without requests are ignored.
    """

    requests: Floats
    latency_seconds: Floats
    success_ratio: Floats

    def __post_init__(self) -> None:
        """Raises ValueError if the shapes differ."""
        if not self.requests.shape == self.latency_seconds.shape == self.success_ratio.shape or self.requests.ndim != 2:
            raise ValueError("requests, latency and success must have the same shape (entities, steps)")


@dataclass(frozen=True, slots=True)
class Excess:
    """Excess over the incident: ``own`` (n, t) of the target's symptom, ``other`` (n, t) of the related one.

    Both are in the unit of the symptom and at least 0, NaN if unknown; 0 without a baseline. ``sure`` and
    ``other_sure`` (n,) are 0-1: near 0 for an excess that quiet steps show as well. ``total`` and ``usual`` (n,) are
    of ``own``; ``each`` (n, t) is ``own`` per request.
    """

    own: Floats
    each: Floats
    other: Floats
    sure: Floats
    other_sure: Floats
    total: Floats
    usual: Floats


@dataclass(frozen=True, slots=True)
class _Levels:
    """Medians of the quiet window, (n, 1); NaN if nothing was known."""

    requests: Floats
    latency_seconds: Floats
    success_ratio: Floats


# the symptom that may cause another one, and the conversion of its unit
_RELATED = {
    Symptom.LATENCY: (Symptom.FAILURES, SECONDS_PER_FAILURE),
    Symptom.FAILURES: (Symptom.LATENCY, 1.0 / SECONDS_PER_FAILURE),
    Symptom.REQUESTS: (Symptom.FAILURES, 1.0),
}


def measure(
    normal: Calls, incident: Calls, before: Calls | None, target: int, symptom: Symptom
) -> Excess | NoVerdictReason:
    """The excess of every entity, or the reason that the target has none. Infinite values are unknown."""
    normal, incident = _finite(normal), _finite(incident)
    before = None if before is None else _finite(before)
    levels = _levels(normal)
    if not np.isfinite(_excess(incident, levels, symptom)[target]).any():
        known = np.isfinite(_read(incident, symptom)[target]).any()
        return NoVerdictReason.NO_EXPECTATION if known else NoVerdictReason.NO_VALUES
    own, usual = _over(normal, incident, before, levels, symptom, target)
    related, rate = _RELATED[symptom]
    other, other_usual = _over(normal, incident, before, levels, related, target)
    each = np.where(own > 0, own / np.where(incident.requests > 0, incident.requests, np.nan), own)
    return Excess(own, each, rate * other, _sure(own, usual), _sure(other, other_usual), np.nansum(own, axis=1), usual)


def _finite(calls: Calls) -> Calls:
    kept = (
        np.where(np.isfinite(values), values, np.nan)
        for values in (calls.requests, calls.latency_seconds, calls.success_ratio)
    )
    return Calls(*kept)


def _levels(normal: Calls) -> _Levels:
    served = normal.requests > 0
    return _Levels(
        quantile(normal.requests, 0.5)[:, None],
        quantile(np.where(served, normal.latency_seconds, np.nan), 0.5)[:, None],
        quantile(np.where(served, normal.success_ratio, np.nan), 0.5)[:, None],
    )


def _read(calls: Calls, symptom: Symptom) -> Floats:
    """The values of a symptom; NaN if there was nothing to measure."""
    if symptom is Symptom.REQUESTS:
        return calls.requests
    values = calls.latency_seconds if symptom is Symptom.LATENCY else calls.success_ratio
    return np.where(calls.requests == 0, np.nan, values)


def _excess(calls: Calls, levels: _Levels, symptom: Symptom) -> Floats:
    """(n, t), negative if better than the median, NaN if unknown."""
    values = _read(calls, symptom)
    if symptom is Symptom.REQUESTS:
        result = levels.requests - values
    else:
        requests = np.where(np.isnan(calls.requests), levels.requests, calls.requests)
        if symptom is Symptom.LATENCY:
            result = requests * (values - levels.latency_seconds)
        else:
            result = requests * (levels.success_ratio - values)
    return np.where(np.isfinite(result), result, np.nan)


def _over(
    normal: Calls, incident: Calls, before: Calls | None, levels: _Levels, symptom: Symptom, target: int
) -> tuple[Floats, Floats]:
    """Excess of the incident (n, t), and the usual excess of quiet spans of that length (n,)."""
    quiet, result = _excess(normal, levels, symptom), _excess(incident, levels, symptom)
    if before is not None and before.requests.shape[1]:
        result = result - _moved(quiet, _excess(before, levels, symptom), target)[:, None]
    known = np.isfinite(quiet).sum(axis=1)
    nothing = (known == 0)[:, None]  # a service that was not called before is not the cause; its caller is
    if symptom is not Symptom.REQUESTS:
        nothing = nothing | (incident.requests == 0)
    result = np.where(nothing, 0.0, result)
    usual = quantile(np.maximum(quiet, 0.0), USUAL)
    steps = result.shape[1]
    wide = np.sqrt(steps * (1.0 + FEW / np.maximum(known, 1)))
    return np.maximum(result, 0.0), np.where(known > 0, np.nan_to_num(usual) * wide, 0.0)


def _moved(quiet: Floats, before: Floats, target: int) -> Floats:
    """Shift of the level just before the incident from the quiet one, (n,); 0 inside the quiet range.

    Zero if the target itself was already bad: then the incident had begun.
    """
    level = quantile(before, 0.5)
    low, high = quantile(quiet, RANGE[0]), quantile(quiet, RANGE[1])
    if level[target] > high[target]:
        return np.zeros_like(level)
    outside = (level < low) | (level > high)
    return np.where(outside, level, 0.0)


def _sure(excess: Floats, usual: Floats) -> Floats:
    total = np.nansum(excess, axis=1)
    scale = total**2 + usual**2
    result: Floats = np.divide(total**2, scale, out=np.zeros_like(total), where=scale > 0)
    return result


def quantile(values: Floats, share: float) -> Floats:
    """The quantile of each row's known values, linearly interpolated; NaN for a row without any."""
    if not values.shape[1]:
        return np.full(values.shape[0], np.nan)
    ordered = np.sort(values, axis=1)  # NaN last
    place = share * np.maximum(np.isfinite(values).sum(axis=1) - 1, 0)
    low = np.floor(place).astype(np.intp)
    high = np.minimum(low + 1, np.ceil(place).astype(np.intp))
    rows = np.arange(values.shape[0])
    below, above = ordered[rows, low], ordered[rows, high]
    result: Floats = below + (above - below) * (place - low)
    return result
