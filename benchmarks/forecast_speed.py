"""How long a forecast takes: 1,000 series of 2,016 points, fast candidates back-tested and chosen, with quantiles.

The fast tier is every candidate but Prophet; a sample of the series is timed on two processes and scaled
to a thousand. The peer is the same with Prophet competing, as the nightly tier has it.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Result, main, result
from outrider.model import EntityKind, EntityRef, Floats, Forecast
from planner.forecast.select import DEFAULT_MODELS, STEP, forecast

TARGET = 5.0  # seconds for a thousand series
SERIES, SAMPLE, PROPHET_SAMPLE, CORES, POINTS = 1000, 120, 3, 2, 2016
FAST = tuple(name for name in DEFAULT_MODELS if name != "prophet")
NOW = datetime(2026, 3, 15, tzinfo=UTC)


def history(seed: int) -> tuple[Floats, Floats]:
    """Two weeks of a service's load in steps of ten minutes: (times, requests a second)."""
    random = np.random.default_rng(seed)
    times = NOW.timestamp() - STEP.total_seconds() * np.arange(POINTS, 0, -1)
    day = 2 * np.pi * times / 86400.0
    shape = 1.0 + 0.6 * np.sin(day + random.uniform(0, 6)) + 0.15 * np.sin(2 * day) + 0.1 * np.sin(day / 7)
    walk = np.cumsum(random.normal(0, 0.01, POINTS))
    values: Floats = random.uniform(5, 500) * np.maximum(0.05, shape + walk * 0.2 + random.normal(0, 0.05, POINTS))
    return times, values


def one(task: tuple[int, Sequence[str]]) -> float:
    """Seconds of one forecast of a day with quantiles."""
    seed, models = task
    times, values = history(seed)
    entity = EntityRef("bench", EntityKind.SERVICE, "serving", f"service-{seed}")
    begun = time.perf_counter()
    said = forecast(times, values, signal="svc_requests_per_second", entity=entity, now=NOW, models=models)
    assert isinstance(said, Forecast)
    return time.perf_counter() - begun


def run() -> list[Result]:
    """Seconds for a thousand series on the fast tier, and for one series with Prophet."""
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        pool.map(one, [(seed, FAST) for seed in range(2 * CORES)])  # imports and caches
        begun = time.perf_counter()
        each = pool.map(one, [(seed, FAST) for seed in range(SAMPLE)], chunksize=4)
        fast = (time.perf_counter() - begun) / SAMPLE
    one((0, DEFAULT_MODELS))
    nightly = statistics.median(one((seed, DEFAULT_MODELS)) for seed in range(PROPHET_SAMPLE))
    total = fast * SERIES
    return [
        result("forecast_speed", total, "s per 1,000 series", TARGET, total <= TARGET, "with Prophet, two cores",
               nightly * SERIES / CORES, nightly / CORES / fast, seconds_a_series=round(statistics.median(each), 5)),
        result("forecast_speed_prophet", nightly, "s per series", None, None),
    ]  # fmt: skip


if __name__ == "__main__":
    main(run)
