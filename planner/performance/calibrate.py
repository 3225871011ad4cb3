"""Calibration from running replicas: tokens per request, batch and speed of a sequence.

Figures are measured only if the engines came near their limit: the batch of a fleet at a fifth of its load does not
show the capacity of a replica. Otherwise configured figures are used, and without them the result is a refusal with its
reason.
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
from planner.performance.saturation_point import SaturationPoint

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
"""Signals of the window of replicas; KV use, start-up time and the length histogram may be missing."""

STARTUP_PRIOR_SECONDS = 480.0
STARTUP_PRIOR_SOURCE = "prior: a vLLM pod with image pull takes 2 to 8 min, the upper end"

_LEAST_SAMPLES = 30
_LEAST_FINISHED = 20.0
_SATURATED_KV_RATIO = 0.7
_SATURATED_SAMPLES = 5
_CALM_WAITING_SHARE = 0.1
_MOST_QUANTILE = 0.99
_ALIKE = 2.0
_NEAR_BATCH = 0.7


LOAD_TEST = "load_test"


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """The running engine of a service as far as known: load tests of other engines do not apply to it."""

    gpu_type: str = ""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    model: str = ""
    engine_version: str = ""


class CalibrationRefusal(StrEnum):
    """Reasons why nothing could be measured."""

    NO_VALUES = "no_values"
    TOO_FEW_SAMPLES = "too_few_samples"
    NO_FINISHED_REQUESTS = "no_finished_requests"
    NOT_ENOUGH_LOAD = "not_enough_load"


@dataclass(frozen=True, slots=True)
class NoCalibration:
    """The engines did not reach their limit, and no figures are configured."""

    service: EntityRef
    reason: CalibrationRefusal
    samples: int
    arguments: Mapping[str, str] = field(default_factory=dict)

    def text(self, language: Language = "en") -> str:
        """One sentence."""
        return translate(f"plan.refused_{self.reason.value}", language, **self.arguments)


@dataclass(frozen=True, slots=True)
class ConfiguredFigures:
    """Configured figures of a service; None if not configured."""

    tokens_per_request: float | None = None
    batch: float | None = None
    tokens_per_second_per_sequence: float | None = None
    startup_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredFigures:
    """Measured figures. ``samples`` are (replica, step) cells under load near the batch."""

    tokens_per_request: Estimate
    batch: Estimate
    tokens_per_second_per_sequence: Estimate
    samples: int

    @property
    def intervals(self) -> dict[str, Interval]:
        """The 90 % confidence interval of each figure, by its name."""
        names = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
        figures: list[tuple[str, Estimate]] = [(name, getattr(self, name)) for name in names]
        return {name: Interval(estimate.low, estimate.high) for name, estimate in figures}


def calibrate(
    window: Window,
    service: EntityRef,
    *,
    gpu_type: str,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    configured: ConfiguredFigures | None = None,
    startup_seconds: float | None = None,
) -> Calibration | NoCalibration:
    """Calibrates a service from a window of its replicas.

    ``window`` holds only the replicas of this service, with ``KEYS``, in steps of some minutes. Deltas are sums over
    the step. Gauges are best its means (``Statistic.MEAN``): the tokens of a step belong to all sequences that ran in
    it. Measured figures take precedence; if they are refused, ``configured`` ones are used, with missing tokens per
    request taken from finished requests. ``startup_seconds`` is a measured p95 from trigger to first served request.
    Without it the configured time counts, otherwise the prior, or the engines' own load time if that alone is longer.
    """
    fallback = configured or ConfiguredFigures()
    result = measure(window, service)
    intervals: dict[str, Interval] = {}
    startup, source = _startup(window, startup_seconds, fallback)
    if isinstance(result, MeasuredFigures):
        tokens, batch, speed = result.tokens_per_request, result.batch, result.tokens_per_second_per_sequence
        figures = (tokens.value, batch.value, speed.value)
        samples, origin = result.samples, "measured"
        intervals = result.intervals
    else:
        per_request = fallback.tokens_per_request or _tokens_per_request(window)
        if per_request is None or fallback.batch is None or fallback.tokens_per_second_per_sequence is None:
            return result
        figures = (per_request, fallback.batch, fallback.tokens_per_second_per_sequence)
        samples, origin = result.samples, "configured"
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


def from_saturation_point(
    test: SaturationPoint,
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
    """Returns the calibration of a load test: throughput of the largest step that meets the SLO.

    ``source`` is load_test or the tool; it is valid for ``valid`` after ``at``.
    """
    point = test.point
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
        intervals=test.intervals,
        source=source,
        valid_until=None if at is None else at + valid,
    )


def best_test(
    tests: Sequence[Calibration], service: EntityRef, now: datetime, live: RunningEngine
) -> tuple[Calibration | None, tuple[tuple[Calibration, str], ...]]:
    """Returns the load test to use if running engines show too little, and the rejected tests with reasons.

    Our own tests come before those of other tools, then the newest. A test does not apply if its GPU type, TP, PP,
    model or version is known and differs.
    """
    fitting, unfit = [], []
    for test in tests:
        if test.service.name != service.name or test.service.namespace not in (None, service.namespace):
            continue
        reason = _unfit(test, now, live)
        if reason:
            unfit.append((test, reason))
        else:
            fitting.append(test)
    fitting.sort(key=lambda test: (test.source == LOAD_TEST, test.measured_at), reverse=True)
    return (fitting[0] if fitting else None), tuple(unfit)


def _unfit(test: Calibration, now: datetime, live: RunningEngine) -> str:
    if test.valid_until is None or test.measured_at is None or now >= test.valid_until:
        return "too_old"
    if (test.tensor_parallel, test.pipeline_parallel) != (live.tensor_parallel, live.pipeline_parallel):
        return "other_group"
    if _differ(test.gpu_type, live.gpu_type):
        return "other_gpu"
    if _differ(test.model, live.model):
        return "other_model"
    return "other_version" if _differ(test.engine_version, live.engine_version) else ""


def _differ(tested: str, running: str) -> bool:
    unknown = ("", "unknown")
    return tested not in unknown and running not in unknown and tested != running


def measure(window: Window, service: EntityRef) -> MeasuredFigures | NoCalibration:
    """Measures the figures with their intervals, or returns the refusal.

    Only cells under load count: a queue, or 70 % of the KV cache in use. The batch is the median of their running
    sequences while the queue is at most a tenth of them, each cell weighted by the time it covers: just below
    saturation. So quiet periods of a window and the density of its cells have no effect. The speed of a sequence is
    generated tokens over running sequences and the time of the counter's increase (``_covered``), in cells at 70 % of
    that batch or more: sequences slow down as the batch fills.
    """
    running, waiting = window.column(RUNNING), np.nan_to_num(window.column(WAITING), nan=0.0)
    tokens, kv_used = window.column(TOKENS), np.nan_to_num(window.column(KV_USED), nan=0.0)
    loaded = (running > 0) & (tokens > 0)
    samples = int(loaded.sum())
    if not np.isfinite(running).any() or not np.isfinite(tokens).any():
        return NoCalibration(service, CalibrationRefusal.NO_VALUES, 0)
    if samples < _LEAST_SAMPLES:
        wanted = {"samples": str(samples), "wanted": str(_LEAST_SAMPLES)}
        return NoCalibration(service, CalibrationRefusal.TOO_FEW_SAMPLES, samples, wanted)
    per_request = _tokens_per_request(window)
    if per_request is None:
        return NoCalibration(service, CalibrationRefusal.NO_FINISHED_REQUESTS, samples)
    covered = _covered(window)
    loaded &= covered > 0
    under = loaded & (_full_engines(running, waiting, loaded) | (kv_used >= _SATURATED_KV_RATIO))
    if int(under.sum()) < _SATURATED_SAMPLES:
        most = float(kv_used.max(initial=0.0))
        return NoCalibration(service, CalibrationRefusal.NOT_ENOUGH_LOAD, samples, {"kv": f"{most:.0%}"})
    at_batch = _batch_cells(running, waiting, covered, loaded, under)
    batch = middle(running[at_batch], covered[at_batch])
    near = loaded & (running >= _NEAR_BATCH * batch)
    work = np.where(near, running * covered, 0.0)
    generated, finished = _requests(window)
    generated_near = np.where(near, tokens, 0.0)
    return MeasuredFigures(
        tokens_per_request=estimate(per_request, ratios(generated.sum(axis=0), finished.sum(axis=0))),
        batch=estimate(batch, middles(np.where(at_batch, running, np.nan), covered)),
        tokens_per_second_per_sequence=estimate(
            float(generated_near.sum() / work.sum()), ratios(generated_near.sum(axis=0), work.sum(axis=0))
        ),
        samples=int(near.sum()),
    )


def _covered(window: Window) -> Floats:
    """Seconds in which the counters of each cell increased, shape (replicas, steps); 0 if unknown.

    An increase counts from the previous scrape, so a cell covers the time since the last one read: five minutes of a
    history written every five, two steps after a step without a scrape. If the spacing changes (the ends of an outage,
    of a roll-up and of a replica's life) the time is unknown, and the cell does not count.
    """
    read = np.isfinite(believed(window, RUNNING)) | np.isfinite(believed(window, TOKENS))
    replicas, steps = read.shape
    step = np.arange(steps)
    last = np.maximum.accumulate(np.where(read, step, -1), axis=1)
    following = np.minimum.accumulate(np.where(read, step, steps)[:, ::-1], axis=1)[:, ::-1]
    edge = np.full((replicas, 1), -1)
    before = np.concatenate([edge, last], axis=1)[:, :steps]
    after = np.concatenate([following, edge + steps + 1], axis=1)[:, 1:]
    gap, ahead = step - before, after - step
    newest = after == steps
    # if the next value is not due yet, the window ends here, not the replica's life
    ahead = np.where(newest & (steps - step <= gap), gap, ahead)
    ends = newest & (steps - step > gap)
    regular = (gap <= _ALIKE * ahead) & (ahead <= _ALIKE * gap)
    return np.where(read & (before >= 0) & regular & ~ends, gap * window.step.total_seconds(), 0.0)


def _full_engines(running: Floats, waiting: Floats, loaded: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Cells whose queue shows a full engine; below half of the highest batch it is a burst being admitted."""
    most = float(np.quantile(running[loaded], _MOST_QUANTILE)) if loaded.any() else 0.0
    cells: NDArray[np.bool_] = (waiting >= 1.0) & (running >= most / 2.0)
    return cells


def _batch_cells(
    running: Floats, waiting: Floats, covered: Floats, loaded: NDArray[np.bool_], under: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Cells that show the batch: under load with a short queue, else nearly so, else all under load."""
    calm = loaded & (waiting <= np.maximum(1.0, _CALM_WAITING_SHARE * running))
    near = calm & (running >= _NEAR_BATCH * middle(running[under], covered[under]))
    for cells in (calm & under, near):
        if int(cells.sum()) >= _SATURATED_SAMPLES:
            return cells
    return under


def _requests(window: Window) -> tuple[Floats, Floats]:
    """Generated tokens and finished requests of each cell, shape (replicas, steps), 0 if either is unknown.

    Uses the engines' own histogram of output lengths if available: it counts only complete answers. Otherwise it uses
    counters, which relate tokens of unfinished answers to finished requests.
    """
    counts = np.stack([window.column(key) for key in LENGTH_BUCKETS])
    reported = ~np.isnan(counts).all(axis=0) & ~np.isnan(window.column(LENGTH_SUM))
    if np.nansum(counts[:, reported]) >= _LEAST_FINISHED:
        finished = np.where(reported, np.nansum(counts, axis=0), 0.0)
        return np.where(reported, window.column(LENGTH_SUM), 0.0), finished
    tokens, ended = window.column(TOKENS), window.column(FINISHED)
    both = ~np.isnan(tokens) & ~np.isnan(ended)
    return np.where(both, tokens, 0.0), np.where(both, ended, 0.0)


def _tokens_per_request(window: Window) -> float | None:
    """Tokens over finished requests, over the whole window; None with fewer than 20 finished requests."""
    generated, finished = _requests(window)
    count, tokens = float(finished.sum()), float(generated.sum())
    return tokens / count if count >= _LEAST_FINISHED and tokens > 0 else None


def _startup(window: Window, measured: float | None, configured: ConfiguredFigures) -> tuple[float, str]:
    if measured is not None:
        return measured, "measured: p95 of trigger to first served request"
    if configured.startup_seconds is not None:
        return configured.startup_seconds, "configured"
    load_times = window.column(STARTUP)
    load_times = load_times[np.isfinite(load_times) & (load_times > 0)]
    if load_times.size:
        load = float(np.quantile(load_times, 0.95))
        if load > STARTUP_PRIOR_SECONDS:
            return load, "measured: p95 of the engines' own load time"
    return STARTUP_PRIOR_SECONDS, STARTUP_PRIOR_SOURCE
