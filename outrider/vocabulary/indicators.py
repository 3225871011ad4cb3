"""Every indicator with its one formula, used by rules, dashboard, reports and benchmarks.

Pure functions over numbers and arrays. Ratios are 0-1, durations seconds. An indicator without data is None, never
100 %. NaN in an array is an unknown value. ``MEASURES`` lists them with unit and default target; their texts are
``reports.measure_<name>`` and ``..._formula``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats, Priority
from outrider.text.i18n import Language, translate
from outrider.vocabulary.catalog import bucket_quantile

Mask = NDArray[np.bool_]

AVAILABILITY_SLOT = timedelta(minutes=1)
SUCCESS_LIMIT_RATIO = 0.99
DECISIVE_REQUESTS = 5
"""Requests of a slot from which their success ratio decides beside the probe: one failure of four is no outage."""
TTFT_LIMIT_SECONDS = 0.2
QUANTILES = (0.5, 0.95, 0.99, 0.999)
ACKNOWLEDGE_WITHIN = {
    Priority.P0: timedelta(minutes=5),
    Priority.P1: timedelta(minutes=15),
    Priority.P2: timedelta(hours=1),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """One indicator. ``target`` None: no target is set; ``good`` is the side of the target that meets it."""

    name: str
    unit: Literal["ratio", "seconds", "hours", "currency", "tokens_per_watt_hour", "factor"]
    target: float | None
    good: Literal["higher", "lower"]

    def title(self, language: Language = "en") -> str:
        """Display name."""
        return translate(f"reports.measure_{self.name}", language)

    def formula(self, language: Language = "en") -> str:
        """Its formula in words."""
        return translate(f"reports.measure_{self.name}_formula", language)

    def kept(self, value: float | None) -> bool | None:
        """True if a value meets the target; None without a value or target."""
        if value is None or self.target is None:
            return None
        return value >= self.target if self.good == "higher" else value <= self.target


_ROWS = (
    Measure("availability", "ratio", 0.999, "higher"),
    Measure("success", "ratio", 0.999, "higher"),
    Measure("sla_attainment", "ratio", 0.995, "higher"),
    Measure("ttft_p99", "seconds", 2.0, "lower"),
    Measure("tpot_p99", "seconds", None, "lower"),
    Measure("e2e_p99", "seconds", None, "lower"),
    Measure("output_validity", "ratio", 0.999, "higher"),
    Measure("error_budget", "ratio", 1.0, "lower"),
    Measure("burn_rate", "factor", 1.0, "lower"),
    Measure("mttd", "seconds", 120.0, "lower"),
    Measure("mtta", "seconds", 300.0, "lower"),
    Measure("mttr", "seconds", 300.0, "lower"),
    Measure("noops", "ratio", 0.9, "higher"),
    Measure("cost_per_1k_tokens", "currency", None, "lower"),
    Measure("tokens_per_watt_hour", "tokens_per_watt_hour", None, "higher"),
    Measure("gpu_utilisation", "ratio", 0.6, "higher"),
    Measure("gpu_hours_idle", "hours", None, "lower"),
    Measure("gpu_hours_lost", "hours", None, "lower"),
    Measure("prefix_hit", "ratio", 0.2, "higher"),
    Measure("scale_out", "seconds", 30.0, "lower"),
    Measure("forecast_error", "ratio", None, "lower"),
    Measure("folded", "ratio", 0.95, "higher"),
    Measure("grouping", "ratio", 0.9, "higher"),
    Measure("pages_per_incident", "factor", None, "lower"),
    Measure("page_precision", "ratio", None, "higher"),
)
MEASURES: dict[str, Measure] = {row.name: row for row in _ROWS}


# --- SLO ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Availability:
    """Slots by their state. ``ratio`` is up / (up + down), None if every slot is unknown."""

    up: int
    down: int
    unknown: int

    @property
    def ratio(self) -> float | None:
        """Share of known slots that were up."""
        return ratio(self.up, self.up + self.down)


@dataclass(frozen=True, slots=True)
class AvailabilitySources:
    """Availability of the users' requests, of the probe, and of the worse of both in each slot."""

    worse: Availability
    requests: Availability
    probe: Availability


def availability_time(
    success: Floats,
    probe: Floats | None = None,
    requests: Floats | None = None,
    limit_ratio: float = SUCCESS_LIMIT_RATIO,
) -> AvailabilitySources:
    """Slots of one minute in which neither the probe nor the success ratio of the users' requests broke its limit.

    Arrays of any one shape, one value per slot: ``success`` 0-1, ``probe`` 1 or 0, ``requests`` a count. In a slot with
    fewer than five requests the probe alone decides, if it has a value. A slot in which both are NaN (no data, or no
    requests) is unknown.
    """
    by_requests, by_probe = slots_up(success, probe, requests, limit_ratio)
    return AvailabilitySources(*(_count(slots) for slots in (np.fmin(by_requests, by_probe), by_requests, by_probe)))


def slots_up(
    success: Floats,
    probe: Floats | None = None,
    requests: Floats | None = None,
    limit_ratio: float = SUCCESS_LIMIT_RATIO,
) -> tuple[Floats, Floats]:
    """State of each slot by the users' requests and by the probe: 1 up, 0 down, NaN unknown."""
    probed = np.full(success.shape, np.nan) if probe is None else probe
    counted = np.full(success.shape, np.nan) if requests is None else requests
    few = (counted < DECISIVE_REQUESTS) & ~np.isnan(probed)
    by_requests = np.where(np.isnan(success) | few, np.nan, (success >= limit_ratio).astype(np.float64))
    by_probe = np.where(np.isnan(probed), np.nan, (probed > 0.5).astype(np.float64))
    return by_requests, by_probe


def _count(slots: Floats) -> Availability:
    return Availability(int((slots == 1.0).sum()), int((slots == 0.0).sum()), int(np.isnan(slots).sum()))


def success_ratio(requests: float, failed: float) -> float | None:
    """1 - failed / all requests. Client aborts and 4xx are not failures. None without requests."""
    return None if not requests > 0 else 1.0 - min(max(failed, 0.0) / requests, 1.0)


@dataclass(frozen=True, slots=True)
class Attainment:
    """Share of requests within a limit. The true share is in [lower, upper]; both are equal if a bound is the limit."""

    lower: float
    upper: float
    requests: float


def sla_attainment(
    increments: Floats, bounds: Sequence[float], limit_seconds: float = TTFT_LIMIT_SECONDS
) -> Attainment | None:
    """Requests under the limit / all requests, from bucket increments of shape (..., bounds + 1).

    Buckets are summed over all leading axes. Between two bounds (vLLM's are .1 and .25 around 200 ms) only limits are
    known: all requests of the bucket were late, or none was. None without requests.
    """
    counts = np.nan_to_num(increments, nan=0.0).reshape(-1, increments.shape[-1]).sum(axis=0)
    total = float(counts.sum())
    if total <= 0:
        return None
    below = np.concatenate([[0.0], np.cumsum(counts)])
    ladder = np.asarray(bounds, dtype=np.float64)
    tolerance = 1e-9 * limit_seconds
    surely = int((ladder <= limit_seconds + tolerance).sum())
    exact = surely > 0 and abs(ladder[surely - 1] - limit_seconds) <= tolerance
    perhaps = surely if exact else surely + 1
    return Attainment(float(below[surely]) / total, float(below[perhaps]) / total, total)


@dataclass(frozen=True, slots=True)
class Latency:
    """A quantile. ``below`` True: less than ``seconds``, which is the first bound."""

    seconds: float
    below: bool


def latency_quantiles(
    increments: Floats, bounds: Sequence[float], quantiles: Sequence[float] = QUANTILES
) -> dict[float, Latency | None]:
    """Quantiles from merged buckets of shape (..., bounds + 1); None without requests. Never averaged."""
    counts = np.nan_to_num(increments, nan=0.0).reshape(-1, increments.shape[-1]).sum(axis=0)
    result: dict[float, Latency | None] = {}
    for quantile in quantiles:
        value, below = bucket_quantile(counts, tuple(bounds), quantile)
        result[quantile] = None if np.isnan(value) else Latency(float(value), bool(below))
    return result


def output_validity(answers: float, empty: float, repeated: float, garbled: float) -> float | None:
    """1 - (empty + endlessly repeated + garbled) / answers."""
    return None if not answers > 0 else 1.0 - min((empty + repeated + garbled) / answers, 1.0)


def burn_rate(sli: float | None, target: float) -> float | None:
    """(1 - SLI) / (1 - target): 1 uses up the budget exactly at the end of its window.

    Raises ValueError for a target outside (0, 1): such an SLO has no budget.
    """
    if not 0.0 < target < 1.0:
        raise ValueError(f"a target of {target} leaves no error budget")
    return None if sli is None else (1.0 - sli) / (1.0 - target)


def error_budget_left(sli: float | None, target: float) -> float | None:
    """1 - burn rate over the whole window: the remaining share of the budget, below 0 if overspent."""
    spent = burn_rate(sli, target)
    return None if spent is None else 1.0 - spent


# --- incidents ------------------------------------------------------------------------------------


def mttd(starts: Floats, detections: Floats) -> float | None:
    """Mean of detection - start, over incidents with both times (unix seconds) known."""
    return mean_duration(starts, detections)


def mtta(paged: Floats, acknowledged: Floats) -> float | None:
    """Mean of acknowledged - paged, over incidents that were paged and acknowledged."""
    return mean_duration(paged, acknowledged)


def mttr(starts: Floats, recovered: Floats) -> float | None:
    """Sum of (recovered - start) / number of recovered incidents; open ones are not counted."""
    return mean_duration(starts, recovered)


def mean_duration(starts: Floats, ends: Floats) -> float | None:
    """Mean of end - start over pairs without NaN; None without any. A negative pair counts as 0."""
    spans = np.maximum(ends - starts, 0.0)
    spans = spans[~np.isnan(spans)]
    return float(spans.mean()) if spans.size else None


def noops_share(automatic: int, changes: int) -> float | None:
    """Automated changes / all changes; None without changes."""
    return ratio(automatic, changes)


def folded_share(pages: int, alerts: int) -> float | None:
    """1 - pages / alerts that fired; None without alerts."""
    return None if alerts <= 0 else max(0.0, 1.0 - pages / alerts)


def pairwise_f1(both: int, placed: int, true: int) -> float | None:
    """F1 over pairs of alerts: 2 x both / (placed + true); None if there are no pairs.

    ``placed`` counts the pairs in one incident, ``true`` those of one event, ``both`` the pairs that are both. It is
    the harmonic mean of both / placed and both / true. Raises ValueError if ``both`` exceeds one of them.
    """
    if not 0 <= both <= min(placed, true):
        raise ValueError(f"{both} pairs in both of {placed} placed and {true} true ones")
    return ratio(2 * both, placed + true)


def pages_per_incident(pages: int, incidents: int) -> float | None:
    """Pages / incidents; None without incidents."""
    return ratio(pages, incidents)


def page_precision(useful: int, judged: int) -> float | None:
    """Justified pages / judged pages; a page with a wrong cause counts as justified."""
    return ratio(useful, judged)


def wilson_interval(hits: int, tries: int, z: float = 1.959964) -> tuple[float, float]:
    """Confidence interval of a share, 95 % by default; (0, 1) without tries.

    The score interval of E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22
    (1927) 209-212: unlike the normal one it stays within 0-1 and holds for few tries. Raises ValueError for hits
    outside 0 to tries.
    """
    if not 0 <= hits <= tries:
        raise ValueError(f"{hits} hits in {tries} tries")
    if tries == 0:
        return 0.0, 1.0
    share, square = hits / tries, z * z
    middle = (share + square / (2 * tries)) / (1 + square / tries)
    half = z / (1 + square / tries) * math.sqrt(share * (1 - share) / tries + square / (4 * tries * tries))
    return (middle - half if hits else 0.0), (middle + half if hits < tries else 1.0)


# --- cost and use ---------------------------------------------------------------------------------


def cost_per_1k_tokens(price_per_gpu_hour: float | None, gpu_hours: float, tokens: float) -> float | None:
    """Price x all GPU-hours held (including idle, starting, cordoned) / generated tokens x 1000."""
    if price_per_gpu_hour is None or not tokens > 0:
        return None
    return price_per_gpu_hour * gpu_hours / tokens * 1000.0


def tokens_per_watt_hour(tokens: float, joules: float) -> float | None:
    """Generated tokens / energy of the GPUs held; a watt-hour is 3,600 joules."""
    return tokens / (joules / 3600.0) if joules > 0 else None


def gpu_utilisation(active: Floats, utilisation: Floats, allocated: Mask | None = None) -> float | None:
    """Mean over allocated GPU slots of the tensor- or SM-active share, else of utilization.

    Arrays of one shape (GPUs, slots), 0-1; ``active`` is NaN if not published. A slot without either is left out.
    """
    best = np.where(np.isnan(active), utilisation, active)
    held = ~np.isnan(best) if allocated is None else ~np.isnan(best) & allocated
    return float(best[held].mean()) if held.any() else None


def gpu_hours(mask: Mask, step: timedelta) -> float:
    """Hours in a state: slots in which ``mask`` (GPUs, slots) holds x slot length."""
    return float(mask.sum()) * step.total_seconds() / 3600.0


def gpu_hours_idle(allocated: Mask, running: Floats, step: timedelta) -> float:
    """GPU-hours allocated without running requests. A slot with an unknown number of requests is not idle."""
    return gpu_hours(allocated & (running == 0), step)


def gpu_hours_lost(schedulable: Floats, step: timedelta) -> float:
    """GPU-hours unschedulable due to a fault or cordon: slots in which ``schedulable`` is 0; NaN is unknown."""
    return gpu_hours(schedulable == 0, step)


def prefix_hit_ratio(hits: float, queries: float) -> float | None:
    """Hits / queries, both in tokens."""
    return ratio(hits, queries)


def wape(truth: Floats, predicted: Floats) -> float | None:
    """Sum of absolute errors / sum of observed values, over slots known in both; None without traffic."""
    scored = ~np.isnan(truth) & ~np.isnan(predicted)
    total = float(np.abs(truth[scored]).sum())
    return float(np.abs(truth - predicted)[scored].sum()) / total if total > 0 else None


# --- rules ----------------------------------------------------------------------------------------


def memory_rule(memory: Floats, reserved: Floats, kv_used: Floats, waiting: Floats) -> Mask:
    """True if device memory > max(90 %, reservation + 5 points), or KV cache > 95 % with requests waiting.

    Arrays of one shape, ratios 0-1; ``reserved`` is the engine's own setting, NaN if not published.
    NaN never makes it true. The rule fires when it holds for ten minutes.
    """
    limit = np.maximum(0.90, np.nan_to_num(reserved, nan=0.0) + 0.05)
    crowded = (np.nan_to_num(kv_used, nan=0.0) > 0.95) & (np.nan_to_num(waiting, nan=0.0) > 0)
    result: Mask = (np.nan_to_num(memory, nan=0.0) > limit) | crowded
    return result


def ratio(part: float, whole: float) -> float | None:
    """Part / whole; None if the whole is 0."""
    return part / whole if whole > 0 else None
