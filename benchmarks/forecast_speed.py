"""Forecast duration: 1,000 series of 2,016 points, one day ahead with quantiles and peaks, on two processes.

The fast tier forecasts all thousand. Its peers run on a few of the same series, scaled to a thousand on two processes:
statsforecast's AutoETS and MSTL, if installed, and Prophet with default settings. The nightly tier (one Prophet fit a
night in log space) is timed as well.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one thread per process: the target is for two processes
os.environ.setdefault("NIXTLA_ID_AS_COL", "1")

import numpy as np

from benchmarks.common import Result, main, result
from outrider.model import Floats
from planner.forecast.ensemble import forecast_many
from planner.forecast.prophet import default_forecast, fit
from planner.forecast.series import Series

TARGET = 5.0  # seconds for a thousand series
SERIES, CORES, POINTS, STEPS, SEASON, STEP = 1000, 2, 2016, 144, 144, 600.0
PART = 100
PEER_SERIES = {"AutoETS": 20, "MSTL": 6, "Prophet": 3}


def history(seed: int) -> Floats:
    """Returns two weeks of a service's load in steps of ten minutes, requests/s."""
    random = np.random.default_rng(seed)
    day = 2 * np.pi * np.arange(POINTS) / SEASON
    shape = 1.0 + 0.6 * np.sin(day + random.uniform(0, 6)) + 0.15 * np.sin(2 * day) + 0.1 * np.sin(day / 7)
    walk = np.cumsum(random.normal(0, 0.01, POINTS))
    values: Floats = random.uniform(5, 500) * np.maximum(0.05, shape + walk * 0.2 + random.normal(0, 0.05, POINTS))
    return values


def part(first: int) -> float:
    """Forecasts a hundred series from ``first`` on and returns the sum of their medians, so that nothing is skipped."""
    rows = np.stack([history(seed) for seed in range(first, first + PART)])
    results = forecast_many(rows, step_seconds=STEP, steps=STEPS)
    return float(results.quantiles[0.5].sum())


def fast() -> float:
    """Returns the seconds for a thousand series on two warm processes, without creating the series."""
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        pool.map(part, [0] * CORES)
        begun = time.perf_counter()
        pool.map(rows_alone, range(0, SERIES, PART), chunksize=1)
        making = time.perf_counter() - begun
        begun = time.perf_counter()
        sums = pool.map(part, range(0, SERIES, PART), chunksize=1)
        elapsed = time.perf_counter() - begun - making
    assert np.isfinite(sums).all()
    return elapsed


def rows_alone(first: int) -> float:
    """Runs the work of ``part`` that precedes the forecast."""
    return float(np.stack([history(seed) for seed in range(first, first + PART)]).sum())


def seconds(ask: Callable[[Series], object], count: int) -> float:
    """Returns seconds per series in one process, after a warm-up series."""
    ask(Series(0.0, STEP, history(SERIES)))
    begun = time.perf_counter()
    for seed in range(count):
        ask(Series(0.0, STEP, history(seed)))
    return (time.perf_counter() - begun) / count


def peers() -> dict[str, float]:
    """Returns seconds per series of each available peer."""
    results = {"Prophet": seconds(lambda series: default_forecast(series, STEPS), PEER_SERIES["Prophet"])}
    try:
        from statsforecast.models import MSTL, AutoETS  # noqa: PLC0415 - an extra
    except ImportError:
        print("statsforecast is not installed: AutoETS and MSTL are skipped", file=sys.stderr)
        return results
    ets = AutoETS(season_length=1, model="ZZN")
    both = MSTL(season_length=[SEASON], trend_forecaster=AutoETS(season_length=1, model="ZZN"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results["AutoETS"] = seconds(
            lambda series: ets.forecast(series.values, STEPS, level=[90]), PEER_SERIES["AutoETS"]
        )
        results["MSTL"] = seconds(lambda series: both.forecast(series.values, STEPS, level=[90]), PEER_SERIES["MSTL"])
    return results


def run() -> list[Result]:
    """Returns seconds per thousand series of the fast tier and each peer, and per series of the nightly tier."""
    fast_s = fast()
    lines = []
    for name, per_series in peers().items():
        total = per_series * SERIES / CORES
        label = "forecast_speed" if name == "Prophet" else f"forecast_speed_against_{name.lower()}"
        lines.append(result(label, fast_s, "s per 1,000 series", TARGET, fast_s <= TARGET, f"{name}, two processes",
                            total, total / fast_s))  # fmt: skip
    nightly = seconds(lambda series: fit(series, 2 * SEASON), PEER_SERIES["Prophet"])
    return [*lines, result("forecast_speed_prophet", nightly, "s per series and night", None, None)]


if __name__ == "__main__":
    main(run)
