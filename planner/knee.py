"""Where a load test bends: what a replica carries at its promise, and how many sequences it should take at most.

Points are steps of rising concurrency. The knee is the last step before throughput stays flat while the time to the
first token rises, or before errors come. What is stored is the throughput of the largest step that keeps the promise:
the offline peak beyond it is several times larger and nobody's answer is on time there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite

import numpy as np

from outrider.errors import UsageError
from planner.queueing import Slo, StepTimes

ERROR_RATIO = 0.01
"""Errors beyond this share end a test: what is refused is not served."""
FLAT_RATIO, RISE_RATIO = 0.05, 1.5
"""Throughput is flat when a step adds less than a twentieth; a first token is late when it takes half as long again."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One step. Latencies are seconds at ``quantile``, None where the tool did not say; rates are per second.

    ``samples`` are the requests that finished.
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

    def __post_init__(self) -> None:
        """Refuse what no test measures."""
        numbers = (self.concurrency, self.requests_per_second, self.tokens_per_second, self.tokens_per_request)
        if not all(isfinite(number) and number >= 0 for number in numbers) or self.concurrency <= 0:
            raise UsageError(
                f"a step at concurrency {self.concurrency:g} with {self.tokens_per_second:g} tokens/s",
                hint="each step needs a concurrency above 0, and rates that are finite and not negative",
            )

    def keeps(self, slo: Slo) -> bool:
        """Whether this step keeps the promise; a latency that was not measured breaks it where one is promised."""
        return (
            self.error_ratio <= ERROR_RATIO
            and (inf if self.ttft is None else self.ttft) <= slo.ttft
            and (inf if self.tpot is None else self.tpot) <= slo.tpot
        )

    @property
    def per_sequence(self) -> float:
        """Tokens a second of one sequence slot."""
        return self.tokens_per_second / self.concurrency


class KneeReason(StrEnum):
    """Why a test ends where it ends, or says nothing."""

    SLO = "slo"  # the next step breaks the promise
    FLAT = "flat"  # the next step adds wait, no throughput
    ERRORS = "errors"
    NOT_REACHED = "not_reached"  # the last step still kept everything: the engine can do more
    SLO_NEVER = "slo_never"  # already the first step breaks the promise
    NO_POINTS = "no_points"


@dataclass(frozen=True, slots=True)
class Knee:
    """The step to count with. ``sequences`` is the proposed maximum of sequences of the engine."""

    point: LoadPoint
    reason: KneeReason
    sequences: int
    peak_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class NoKnee:
    """Nothing to count with, and the step that came nearest."""

    reason: KneeReason
    best: LoadPoint | None = None


def knee(points: Sequence[LoadPoint], slo: Slo | None = None) -> Knee | NoKnee:
    """The largest step that keeps the promise and still pays, over steps in any order."""
    promise = slo or Slo()
    steps = sorted(points, key=lambda point: point.concurrency)
    if not steps:
        return NoKnee(KneeReason.NO_POINTS)
    peak = max(step.tokens_per_second for step in steps)
    if not steps[0].keeps(promise):
        return NoKnee(KneeReason.SLO_NEVER, steps[0])
    last, reason = steps[0], KneeReason.NOT_REACHED
    for step in steps[1:]:
        if step.error_ratio > ERROR_RATIO:
            reason = KneeReason.ERRORS
        elif not step.keeps(promise):
            reason = KneeReason.SLO
        elif _bent(last, step):
            reason = KneeReason.FLAT
        else:
            last = step
            continue
        break
    return Knee(last, reason, max(1, round(last.concurrency)), peak)


def bent(last: LoadPoint, step: LoadPoint, slo: Slo) -> bool:
    """Whether a test may stop after ``step``."""
    return step.error_ratio > ERROR_RATIO or not step.keeps(slo) or _bent(last, step)


def step_times(points: Sequence[LoadPoint], *, prompt: float = 0.0) -> StepTimes | None:
    """The line of step time over batch from the mean TPOT of the steps; None with fewer than two of them.

    The slope holds what sequences, their context and their prompts add, so ``prompt`` seconds a prompt token are
    0 unless measured apart.
    """
    known = [(point.concurrency, point.tpot_mean) for point in points if point.tpot_mean and point.error_ratio < 0.5]
    if len({concurrency for concurrency, _ in known}) < 2:
        return None
    batch, seconds = np.array(known, dtype=np.float64).T
    slope, base = np.polyfit(batch, seconds, 1)
    slope = max(float(slope), 0.0)
    base = max(float(base), float(seconds.min()) * 0.1)
    return StepTimes(base, slope, 0.0, prompt, source=f"measured: line over {len(known)} steps of a load test")


def _bent(last: LoadPoint, step: LoadPoint) -> bool:
    flat = step.tokens_per_second < last.tokens_per_second * (1.0 + FLAT_RATIO)
    if last.ttft is None or step.ttft is None:
        return flat
    return flat and step.ttft > last.ttft * RISE_RATIO
