"""Saturation point of a load test: capacity of a replica under its SLO, and its maximum number of sequences.

Points are steps of rising concurrency. The saturation point is the last step before throughput stays flat while TTFT
rises, or before errors start. The stored figure is the throughput of the largest step that meets the SLO: the offline
peak beyond it is several times larger, but no answer is in time there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite

import numpy as np

from outrider.errors import UsageError
from outrider.model import Interval
from outrider.text.i18n import fill
from planner.performance.queueing import Slo, StepTimes

ERROR_RATIO = 0.01
"""A larger share of errors ends a test: failed requests are not served."""
_LEAST_VALUES, _RESAMPLES = 10, 500
FLAT_RATIO, RISE_RATIO = 0.05, 1.5
"""Throughput is flat if a step adds less than 5 %; TTFT has risen if it is 50 % longer."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One step. Latencies are seconds at ``quantile``, None if the tool does not report them; rates are per second.

    ``samples`` are the finished requests. ``intervals`` are 90 % confidence intervals of fields, by name, if the tool
    kept single requests or the step was repeated.
    """

    concurrency: float
    requests_per_second: float
    tokens_per_second: float
    tokens_per_request: float
    samples: int
    ttft: float | None = None
    tpot: float | None = None
    tpot_mean: float | None = None
    error_ratio: float = 0.0
    prompt_tokens: float | None = None
    quantile: float = 0.95
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses impossible figures."""
        numbers = (self.concurrency, self.requests_per_second, self.tokens_per_second, self.tokens_per_request)
        if not all(isfinite(number) and number >= 0 for number in numbers) or self.concurrency <= 0:
            raise UsageError(
                f"invalid step: concurrency {self.concurrency:g}, {self.tokens_per_second:g} tokens/s",
                hint="each step needs a concurrency above 0, and rates that are finite and not negative",
            )

    def meets(self, slo: Slo) -> bool:
        """True if this step meets the SLO; an unmeasured latency violates its objective."""
        return (
            self.error_ratio <= ERROR_RATIO
            and (inf if self.ttft is None else self.ttft) <= slo.ttft
            and (inf if self.tpot is None else self.tpot) <= slo.tpot
        )

    @property
    def per_sequence(self) -> float:
        """Tokens per second of one sequence slot."""
        return self.tokens_per_second / self.concurrency


class SaturationReason(StrEnum):
    """Reasons why a test ends, or has no result."""

    SLO = "slo"  # the next step violates the SLO
    FLAT = "flat"  # the next step adds wait, no throughput
    ERRORS = "errors"
    NOT_REACHED = "not_reached"  # the last step still met everything: the engine has more capacity
    SLO_NEVER = "slo_never"  # the first step already violates the SLO
    NO_POINTS = "no_points"


@dataclass(frozen=True, slots=True)
class SaturationPoint:
    """The step to use. ``sequences`` is the proposed maximum number of sequences of the engine."""

    point: LoadPoint
    reason: SaturationReason
    sequences: int
    peak_tokens_per_second: float
    following: LoadPoint | None = None

    @property
    def intervals(self) -> dict[str, Interval]:
        """90 % intervals of a calibration's figures; the batch lies between this step and the next, which is too much.

        Figures that the test cannot give are left out: single results without requests or repeats have no interval.
        """
        result, point = {}, self.point
        if "tokens_per_request" in point.intervals:
            result["tokens_per_request"] = point.intervals["tokens_per_request"]
        if self.following is not None:
            result["batch"] = Interval(point.concurrency, self.following.concurrency)
        rate = point.intervals.get("tokens_per_second")
        if rate is not None and rate.low is not None and rate.high is not None:
            low, high = rate.low / point.concurrency, rate.high / point.concurrency
            result["tokens_per_second_per_sequence"] = Interval(low, high)
        return result


@dataclass(frozen=True, slots=True)
class NoSaturationPoint:
    """No usable step, and the step that came nearest."""

    reason: SaturationReason
    best: LoadPoint | None = None


def saturation_point(points: Sequence[LoadPoint], slo: Slo | None = None) -> SaturationPoint | NoSaturationPoint:
    """Returns the largest step that meets the SLO and still adds throughput; steps may be in any order."""
    objective = slo or Slo()
    steps = merge_points(points)
    if not steps:
        return NoSaturationPoint(SaturationReason.NO_POINTS)
    peak = max(step.tokens_per_second for step in steps)
    if not steps[0].meets(objective):
        return NoSaturationPoint(SaturationReason.SLO_NEVER, steps[0])
    last, reason, following = steps[0], SaturationReason.NOT_REACHED, None
    for step in steps[1:]:
        if step.error_ratio > ERROR_RATIO:
            reason = SaturationReason.ERRORS
        elif not step.meets(objective):
            reason = SaturationReason.SLO
        elif _is_flat(last, step):
            reason = SaturationReason.FLAT
        else:
            last = step
            continue
        following = step
        break
    return SaturationPoint(last, reason, max(1, round(last.concurrency)), peak, following)


def merge_points(points: Sequence[LoadPoint]) -> list[LoadPoint]:
    """Sorts steps by concurrency and merges repeats, with intervals from their differences (Student's t).

    The worst repeat counts for latencies, the mean for rates.
    """
    groups: dict[float, list[LoadPoint]] = {}
    for point in sorted(points, key=lambda point: point.concurrency):
        groups.setdefault(point.concurrency, []).append(point)
    return [group[0] if len(group) == 1 else _merge_group(group) for group in groups.values()]


def _merge_group(group: Sequence[LoadPoint]) -> LoadPoint:
    def mean(name: str) -> float:
        return float(np.mean([getattr(point, name) for point in group]))

    def worst(name: str) -> float | None:
        known = [getattr(point, name) for point in group]
        return None if None in known else max(known)

    names = ("tokens_per_request", "tokens_per_second")
    return replace(
        group[0],
        requests_per_second=mean("requests_per_second"),
        tokens_per_second=mean("tokens_per_second"),
        tokens_per_request=mean("tokens_per_request"),
        samples=sum(point.samples for point in group),
        ttft=worst("ttft"),
        tpot=worst("tpot"),
        tpot_mean=worst("tpot_mean"),
        error_ratio=mean("error_ratio"),
        intervals={name: _student([getattr(point, name) for point in group]) for name in names},
    )


def _student(values: Sequence[float]) -> Interval:
    """90 % confidence interval of a mean from a few repeats, not below 0."""
    from scipy.special import stdtrit  # noqa: PLC0415 - a third of a second to import

    mean, count = float(np.mean(values)), len(values)
    reach = float(stdtrit(count - 1, 0.95)) * float(np.std(values, ddof=1)) / count**0.5
    return Interval(max(0.0, mean - reach), mean + reach)


def bootstrap_mean(values: Sequence[float]) -> Interval | None:
    """90 % confidence interval of a mean by the bootstrap; None with fewer than ten values."""
    known = np.asarray(values, dtype=np.float64)
    if known.size < _LEAST_VALUES:
        return None
    random = np.random.default_rng(known.size)
    means = np.array([known[random.integers(0, known.size, known.size)].mean() for _ in range(_RESAMPLES)])
    low, high = np.quantile(means, (0.05, 0.95))
    return Interval(float(low), float(high))


def is_saturated(last: LoadPoint, step: LoadPoint, slo: Slo) -> bool:
    """True if a test may stop after ``step``."""
    return step.error_ratio > ERROR_RATIO or not step.meets(slo) or _is_flat(last, step)


def step_times(points: Sequence[LoadPoint], *, prompt: float = 0.0) -> StepTimes | None:
    """Fits the line of step time over batch to the mean TPOT of the steps; None with fewer than two of them.

    The slope includes sequences, their context and their prompts, so ``prompt`` seconds a prompt token are 0 unless
    measured separately.
    """
    known = [(point.concurrency, point.tpot_mean) for point in points if point.tpot_mean and point.error_ratio < 0.5]
    if len({concurrency for concurrency, _ in known}) < 2:
        return None
    batch, seconds = np.array(known, dtype=np.float64).T
    slope, base = np.polyfit(batch, seconds, 1)
    slope = max(float(slope), 0.0)
    base = max(float(base), float(seconds.min()) * 0.1)
    return StepTimes(
        base, slope, 0.0, prompt, source=fill("measured: line over {n} [step|steps] of a load test", n=len(known))
    )


def _is_flat(last: LoadPoint, step: LoadPoint) -> bool:
    flat = step.tokens_per_second < last.tokens_per_second * (1.0 + FLAT_RATIO)
    if last.ttft is None or step.ttft is None:
        return flat
    return flat and step.ttft > last.ttft * RISE_RATIO
