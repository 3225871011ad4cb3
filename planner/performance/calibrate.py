"""Learn from running replicas what one of them carries: tokens a request, batch, speed of a sequence.

A figure is measured only where the engines came near their limit: the batch of a fleet at a fifth of
its load says nothing about what a replica can carry. Otherwise what the operator configured is used,
and without that the answer is a refusal with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from outrider.model import Calibration, EntityRef, Floats, Interval, SignalKey, Window
from outrider.text.i18n import Language, translate
from outrider.vocabulary import catalog
from outrider.windows import believed
from planner.performance.block_bootstrap import Estimate, estimate, middle, middles, ratios
from planner.performance.saturation_point import Knee

RUNNING = "engine_requests_running"
WAITING = "engine_requests_waiting"
TOKENS = "engine_generation_tokens_total"
FINISHED = "engine_requests_finished_total"
KV_USED = "engine_kv_cache_usage_ratio"
STARTUP = "engine_startup_seconds"
LENGTHS = catalog.signal("engine_output_length_tokens")
LENGTH_BUCKETS, LENGTH_SUM = LENGTHS.bucket_keys[:-1], LENGTHS.bucket_keys[-1]
KEYS = (
    *(SignalKey(name) for name in (RUNNING, WAITING, TOKENS, FINISHED, KV_USED, STARTUP)),
    *LENGTHS.bucket_keys,
)
"""What the window of replicas should carry; KV use, start-up time and the histogram of lengths may be missing."""

STARTUP_PRIOR_SECONDS = 480.0
STARTUP_PRIOR_SOURCE = "prior: a vLLM pod with image pull takes 2 to 8 min, the upper end"

_LEAST_SAMPLES = 30
_LEAST_FINISHED = 20.0
_KNEE_KV_RATIO = 0.7
_KNEE_SAMPLES = 5
_CALM_WAITING_SHARE = 0.1
_MOST_QUANTILE = 0.99
_ALIKE = 2.0
_NEAR_BATCH = 0.7


LOAD_TEST = "load_test"


@dataclass(frozen=True, slots=True)
class Running:
    """What runs of a service, as far as it is known: a load test of something else says nothing of it."""

    gpu_type: str = ""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    model: str = ""
    engine_version: str = ""


class CalibrationRefusal(StrEnum):
    """Why nothing could be measured."""

    NO_VALUES = "no_values"
    TOO_FEW_SAMPLES = "too_few_samples"
    NO_FINISHED_REQUESTS = "no_finished_requests"
    NOT_ENOUGH_LOAD = "not_enough_load"


@dataclass(frozen=True, slots=True)
class NotCalibrated:
    """The engines did not show what they can do, and nothing was configured."""

    service: EntityRef
    reason: CalibrationRefusal
    samples: int
    arguments: Mapping[str, str] = field(default_factory=dict)

    def text(self, language: Language = "en") -> str:
        """One sentence."""
        return translate(f"plan.refused_{self.reason.value}", language, **self.arguments)


@dataclass(frozen=True, slots=True)
class Configured:
    """What the operator says of a service; None where they say nothing."""

    tokens_per_request: float | None = None
    batch: float | None = None
    tokens_per_second_per_sequence: float | None = None
    startup_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What the engines showed. ``samples`` are (replica, step) cells under load near the batch."""

    tokens_per_request: Estimate
    batch: Estimate
    tokens_per_second_per_sequence: Estimate
    samples: int

    @property
    def intervals(self) -> dict[str, Interval]:
        """The 90 % confidence interval of each figure, by its name."""
        names = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
        found: list[tuple[str, Estimate]] = [(name, getattr(self, name)) for name in names]
        return {name: Interval(estimate.low, estimate.high) for name, estimate in found}


def calibrate(
    window: Window,
    service: EntityRef,
    *,
    gpu_type: str,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    configured: Configured | None = None,
    startup_seconds: float | None = None,
) -> Calibration | NotCalibrated:
    """The calibration of a service from a window of its replicas.

    ``window`` holds the replicas of this service only, with ``KEYS``, in steps of some minutes; deltas are sums
    over the step, gauges best its means (``Statistic.MEAN``): the tokens of a step belong to all that ran in it.
    Measured figures win; where they are refused, ``configured`` ones are used (a missing number of tokens per
    request is still taken from finished requests).
    ``startup_seconds`` is a measured p95 of trigger to first served request; without it the configured
    time counts, else the prior, or the engines' own load time where that alone is longer.
    """
    given = configured or Configured()
    found = measure(window, service)
    intervals: dict[str, Interval] = {}
    startup, source = _startup(window, startup_seconds, given)
    if isinstance(found, Measured):
        tokens, batch, speed = found.tokens_per_request, found.batch, found.tokens_per_second_per_sequence
        figures = (tokens.value, batch.value, speed.value)
        samples, origin = found.samples, "measured"
        intervals = found.intervals
    else:
        tokens_given = given.tokens_per_request or _tokens_per_request(window)
        if tokens_given is None or given.batch is None or given.tokens_per_second_per_sequence is None:
            return found
        figures = (tokens_given, given.batch, given.tokens_per_second_per_sequence)
        samples, origin = found.samples, "configured"
    return Calibration(
        service=service,
        gpu_type=gpu_type,
        tokens_per_request=figures[0],
        batch=figures[1],
        tokens_per_second_per_sequence=figures[2],
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        startup_seconds=startup,
        samples=samples,
        origin="measured" if origin == "measured" else "configured",
        startup_source=source,
        intervals=intervals,
    )


def from_knee(
    found: Knee,
    service: EntityRef,
    *,
    gpu_type: str,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    startup_seconds: float | None = None,
    source: str = LOAD_TEST,
    model: str = "",
    engine_version: str = "",
    at: datetime | None = None,
    valid: timedelta = timedelta(days=30),
) -> Calibration:
    """The calibration that a load test gives: throughput of the largest step that keeps the promise.

    ``source`` is load_test or the tool; it counts until ``valid`` after ``at``.
    """
    point = found.point
    return Calibration(
        service=service,
        gpu_type=gpu_type,
        tokens_per_request=point.tokens_per_request,
        batch=point.concurrency,
        tokens_per_second_per_sequence=point.per_sequence,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        startup_seconds=STARTUP_PRIOR_SECONDS if startup_seconds is None else startup_seconds,
        samples=point.samples,
        origin="measured",
        startup_source=STARTUP_PRIOR_SOURCE if startup_seconds is None else "configured",
        model=model,
        engine_version=engine_version,
        measured_at=at,
        intervals=found.intervals,
        source=source,
        valid_until=None if at is None else at + valid,
    )


def best_test(
    tests: Sequence[Calibration], service: EntityRef, now: datetime, live: Running
) -> tuple[Calibration | None, tuple[tuple[Calibration, str], ...]]:
    """The load test to count with where running engines show too little, and those that do not fit, each with why.

    Ours come before other testers' results, then the newest. One of another GPU type, TP, PP, model or version, as far
    as both say it, is of another engine.
    """
    fitting, unfit = [], []
    for found in tests:
        if found.service.name != service.name or found.service.namespace not in (None, service.namespace):
            continue
        why = _unfit(found, now, live)
        if why:
            unfit.append((found, why))
        else:
            fitting.append(found)
    fitting.sort(key=lambda one: (one.source == LOAD_TEST, one.measured_at), reverse=True)
    return (fitting[0] if fitting else None), tuple(unfit)


def _unfit(found: Calibration, now: datetime, live: Running) -> str:
    if found.valid_until is None or found.measured_at is None or now >= found.valid_until:
        return "too_old"
    if (found.tensor_parallel, found.pipeline_parallel) != (live.tensor_parallel, live.pipeline_parallel):
        return "other_group"
    if _differ(found.gpu_type, live.gpu_type):
        return "other_gpu"
    if _differ(found.model, live.model):
        return "other_model"
    return "other_version" if _differ(found.engine_version, live.engine_version) else ""


def _differ(tested: str, runs: str) -> bool:
    unknown = ("", "unknown")
    return tested not in unknown and runs not in unknown and tested != runs


def measure(window: Window, service: EntityRef) -> Measured | NotCalibrated:
    """The figures alone, with their intervals, or why there are none.

    Only cells under load speak: a queue, or 70 % of the KV cache in use. The batch is the median of their
    running sequences while the queue is at most a tenth of them, each cell as heavy as the time it covers: just
    below the knee. How much of a window was quiet, and how dense its cells are, thus changes nothing. The speed of a
    sequence is generated tokens over running sequences and the time in which the counter rose by them
    (``_covered``), in cells at 70 % of that batch or more, because sequences slow down as the batch fills.
    """
    running, waiting = window.column(RUNNING), np.nan_to_num(window.column(WAITING), nan=0.0)
    tokens, kv_used = window.column(TOKENS), np.nan_to_num(window.column(KV_USED), nan=0.0)
    loaded = (running > 0) & (tokens > 0)
    samples = int(loaded.sum())
    if not np.isfinite(running).any() or not np.isfinite(tokens).any():
        return NotCalibrated(service, CalibrationRefusal.NO_VALUES, 0)
    if samples < _LEAST_SAMPLES:
        wanted = {"samples": str(samples), "wanted": str(_LEAST_SAMPLES)}
        return NotCalibrated(service, CalibrationRefusal.TOO_FEW_SAMPLES, samples, wanted)
    per_request = _tokens_per_request(window)
    if per_request is None:
        return NotCalibrated(service, CalibrationRefusal.NO_FINISHED_REQUESTS, samples)
    covered = _covered(window)
    loaded &= covered > 0
    under = loaded & (_queued(running, waiting, loaded) | (kv_used >= _KNEE_KV_RATIO))
    if int(under.sum()) < _KNEE_SAMPLES:
        most = float(kv_used.max(initial=0.0))
        return NotCalibrated(service, CalibrationRefusal.NOT_ENOUGH_LOAD, samples, {"kv": f"{most:.0%}"})
    rested = _rested(running, waiting, covered, loaded, under)
    batch = middle(running[rested], covered[rested])
    near = loaded & (running >= _NEAR_BATCH * batch)
    work = np.where(near, running * covered, 0.0)
    generated, finished = _requests(window)
    made = np.where(near, tokens, 0.0)
    return Measured(
        tokens_per_request=estimate(per_request, ratios(generated.sum(axis=0), finished.sum(axis=0))),
        batch=estimate(batch, middles(np.where(rested, running, np.nan), covered)),
        tokens_per_second_per_sequence=estimate(
            float(made.sum() / work.sum()), ratios(made.sum(axis=0), work.sum(axis=0))
        ),
        samples=int(near.sum()),
    )


def _covered(window: Window) -> Floats:
    """Seconds in which the counters of each cell rose by what it holds, shape (replicas, steps); 0 where unknown.

    An increase is counted from the scrape before, so that a cell covers the time since the last one that was read:
    five minutes of a history written every five, two steps after a step without a scrape. Where the spacing
    changes (the ends of an outage, of a roll-up and of a replica's life) nobody can tell, and the cell counts not.
    """
    read = np.isfinite(believed(window, RUNNING)) | np.isfinite(believed(window, TOKENS))
    replicas, steps = read.shape
    place = np.arange(steps)
    last = np.maximum.accumulate(np.where(read, place, -1), axis=1)
    following = np.minimum.accumulate(np.where(read, place, steps)[:, ::-1], axis=1)[:, ::-1]
    edge = np.full((replicas, 1), -1)
    before = np.concatenate([edge, last], axis=1)[:, :steps]
    after = np.concatenate([following, edge + steps + 1], axis=1)[:, 1:]
    gap, ahead = place - before, after - place
    newest = after == steps
    # the window ends here, not the replica's life, where its next value is not due yet
    ahead = np.where(newest & (steps - place <= gap), gap, ahead)
    ends = newest & (steps - place > gap)
    alike = (gap <= _ALIKE * ahead) & (ahead <= _ALIKE * gap)
    return np.where(read & (before >= 0) & alike & ~ends, gap * window.step.total_seconds(), 0.0)


def _queued(running: Floats, waiting: Floats, loaded: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Cells whose queue tells of a full engine; before half of what it once ran it is a burst being taken in."""
    most = float(np.quantile(running[loaded], _MOST_QUANTILE)) if loaded.any() else 0.0
    found: NDArray[np.bool_] = (waiting >= 1.0) & (running >= most / 2.0)
    return found


def _rested(
    running: Floats, waiting: Floats, covered: Floats, loaded: NDArray[np.bool_], under: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The cells that tell the batch: under load with a short queue, else nearly so, else all that are under load."""
    calm = loaded & (waiting <= np.maximum(1.0, _CALM_WAITING_SHARE * running))
    near = calm & (running >= _NEAR_BATCH * middle(running[under], covered[under]))
    for cells in (calm & under, near):
        if int(cells.sum()) >= _KNEE_SAMPLES:
            return cells
    return under


def _requests(window: Window) -> tuple[Floats, Floats]:
    """Generated tokens and finished requests of each cell, shape (replicas, steps), 0 where either is unknown.

    The engines' own histogram of answer lengths where it is told: it counts whole answers only. Counters otherwise,
    which set tokens of unfinished answers against finished requests.
    """
    counts = np.stack([window.column(key) for key in LENGTH_BUCKETS])
    told = ~np.isnan(counts).all(axis=0) & ~np.isnan(window.column(LENGTH_SUM))
    if np.nansum(counts[:, told]) >= _LEAST_FINISHED:
        finished = np.where(told, np.nansum(counts, axis=0), 0.0)
        return np.where(told, window.column(LENGTH_SUM), 0.0), finished
    tokens, ended = window.column(TOKENS), window.column(FINISHED)
    both = ~np.isnan(tokens) & ~np.isnan(ended)
    return np.where(both, tokens, 0.0), np.where(both, ended, 0.0)


def _tokens_per_request(window: Window) -> float | None:
    """Tokens over finished requests, over all of the window; None with fewer than 20 finished."""
    generated, finished = _requests(window)
    count, tokens = float(finished.sum()), float(generated.sum())
    return tokens / count if count >= _LEAST_FINISHED and tokens > 0 else None


def _startup(window: Window, measured: float | None, given: Configured) -> tuple[float, str]:
    if measured is not None:
        return measured, "measured: p95 of trigger to first served request"
    if given.startup_seconds is not None:
        return given.startup_seconds, "configured"
    seen = window.column(STARTUP)
    seen = seen[np.isfinite(seen) & (seen > 0)]
    if seen.size:
        load = float(np.quantile(seen, 0.95))
        if load > STARTUP_PRIOR_SECONDS:
            return load, "measured: p95 of the engines' own load time"
    return STARTUP_PRIOR_SECONDS, STARTUP_PRIOR_SOURCE
