"""What services of a call graph show too much of, against a quiet window, in units that add up along calls.

The excess of a step is requests x (latency - its median), requests x (its median success - success), or
the requests that are missing to their median. Weighing by requests is what keeps a nearly noise-free
load balancer, which sees a few of the calls, behind the service that sees them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from outrider.model import Floats, NoVerdictReason

USUAL = 0.95  # what quiet steps stay below in 19 of 20
RANGE = (0.01, 0.99)  # of quiet steps; a level outside it has moved since
FEW = 20  # quiet steps with requests; with fewer, what is usual is hardly known
SECONDS_PER_FAILURE = 1.0  # a call that gives up or is tried again waits about that long


class Symptom(StrEnum):
    """What is wrong at the target."""

    LATENCY = "latency"  # seconds of waiting
    FAILURES = "failures"  # failed requests
    REQUESTS = "requests"  # requests that do not come


@dataclass(frozen=True, slots=True)
class Calls:
    """What n entities served in t steps of equal length; every array has the shape (n, t).

    ``requests`` counts the calls of a step, ``latency_seconds`` is their mean, ``success_ratio`` 0-1.
    NaN is a value that is not known; latency and success of a step without requests are not read.
    """

    requests: Floats
    latency_seconds: Floats
    success_ratio: Floats

    def __post_init__(self) -> None:
        """Raises ValueError when the shapes differ."""
        if not self.requests.shape == self.latency_seconds.shape == self.success_ratio.shape or self.requests.ndim != 2:
            raise ValueError("requests, latency and success need one shape (entities, steps)")


@dataclass(frozen=True, slots=True)
class Excess:
    """Excess over the incident: ``own`` (n, t) of the target's symptom, ``other`` (n, t) of the related one.

    Both are in the unit of the symptom and at least 0, NaN where a value is not known; 0 where there is no
    normal to compare with. ``sure`` and ``other_sure`` (n,) are 0-1: near 0 for what quiet steps show as
    well. ``total`` and ``usual`` (n,) are of ``own``, ``each`` (n, t) is ``own`` a request.
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
    """Medians of the quiet window, (n, 1); NaN where nothing was known."""

    requests: Floats
    latency_seconds: Floats
    success_ratio: Floats


# the symptom that may stand behind one, and what one unit of it comes to
_RELATED = {
    Symptom.LATENCY: (Symptom.FAILURES, SECONDS_PER_FAILURE),
    Symptom.FAILURES: (Symptom.LATENCY, 1.0 / SECONDS_PER_FAILURE),
    Symptom.REQUESTS: (Symptom.FAILURES, 1.0),
}


def measure(
    normal: Calls, incident: Calls, before: Calls | None, target: int, symptom: Symptom
) -> Excess | NoVerdictReason:
    """The excess of every entity, or why the target has none to speak of. Infinite values are not known."""
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
    """The values that a symptom is read from; NaN where there was nothing to measure."""
    if symptom is Symptom.REQUESTS:
        return calls.requests
    values = calls.latency_seconds if symptom is Symptom.LATENCY else calls.success_ratio
    return np.where(calls.requests == 0, np.nan, values)


def _excess(calls: Calls, levels: _Levels, symptom: Symptom) -> Floats:
    """(n, t), below 0 where things are better than their median, NaN where they are not known."""
    values = _read(calls, symptom)
    if symptom is Symptom.REQUESTS:
        found = levels.requests - values
    else:
        requests = np.where(np.isnan(calls.requests), levels.requests, calls.requests)
        if symptom is Symptom.LATENCY:
            found = requests * (values - levels.latency_seconds)
        else:
            found = requests * (levels.success_ratio - values)
    return np.where(np.isfinite(found), found, np.nan)


def _over(
    normal: Calls, incident: Calls, before: Calls | None, levels: _Levels, symptom: Symptom, target: int
) -> tuple[Floats, Floats]:
    """Excess of the incident (n, t), and what is usual in quiet spans of that length (n,)."""
    quiet, found = _excess(normal, levels, symptom), _excess(incident, levels, symptom)
    if before is not None and before.requests.shape[1]:
        found = found - _moved(quiet, _excess(before, levels, symptom), target)[:, None]
    known = np.isfinite(quiet).sum(axis=1)
    nothing = (known == 0)[:, None]  # a service that was not called before is not what broke: who calls it is
    if symptom is not Symptom.REQUESTS:
        nothing = nothing | (incident.requests == 0)
    found = np.where(nothing, 0.0, found)
    usual = quantile(np.maximum(quiet, 0.0), USUAL)
    steps = found.shape[1]
    wide = np.sqrt(steps * (1.0 + FEW / np.maximum(known, 1)))
    return np.maximum(found, 0.0), np.where(known > 0, np.nan_to_num(usual) * wide, 0.0)


def _moved(quiet: Floats, before: Floats, target: int) -> Floats:
    """How far the level just before the incident lay from the quiet one, (n,); 0 inside the quiet range.

    Nothing has moved when the target itself was already bad: then the incident had begun.
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
    found: Floats = np.divide(total**2, scale, out=np.zeros_like(total), where=scale > 0)
    return found


def quantile(values: Floats, share: float) -> Floats:
    """The quantile of each row's known values, linear between neighbours; NaN for a row without any."""
    if not values.shape[1]:
        return np.full(values.shape[0], np.nan)
    ordered = np.sort(values, axis=1)  # NaN last
    place = share * np.maximum(np.isfinite(values).sum(axis=1) - 1, 0)
    low = np.floor(place).astype(np.intp)
    high = np.minimum(low + 1, np.ceil(place).astype(np.intp))
    rows = np.arange(values.shape[0])
    below, above = ordered[rows, low], ordered[rows, high]
    found: Floats = below + (above - below) * (place - low)
    return found
