"""How long the plan of one service takes: two weeks of history, every forecaster competing, Prophet included.

The peer is AIConfigurator's published time for one answer; it is not run here.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Result, main, result
from benchmarks.forecast_speed import NOW, history
from outrider.model import Calibration, EntityKind, EntityRef, FleetService, Recommendation, Window
from planner.forecast.select import STEP
from planner.plan import KEYS, plan

TARGET, PUBLISHED = 2.0, 30.0
TIMES = 5


def run() -> Result:
    """Seconds from history to a recommendation."""
    seconds = []
    for seed in range(TIMES + 1):
        service = EntityRef("bench", EntityKind.SERVICE, "serving", f"service-{seed}")
        times, load = history(seed)
        values = np.stack([load, load * 2.0, load * 0.0], axis=1)[None]
        status = np.zeros(values.shape, dtype=np.uint8)
        window = Window(EntityKind.SERVICE, (service,), times, KEYS, values, status, STEP)
        calibration = Calibration(service, "H100", 250.0, 64.0, 20.0, 1, 1, 210.0, 100, "measured")
        fleet = FleetService(service, "H100", 20, 20, 1, 400, 2.5, "USD")
        begun = time.perf_counter()
        made = plan(window, {service: calibration}, (fleet,), NOW)
        seconds.append(time.perf_counter() - begun)
        assert isinstance(made.recommendations[0], Recommendation), made.recommendations
    median = statistics.median(seconds[1:])  # the first one imports Prophet
    return result(
        "plan_answer",
        median,
        "s",
        TARGET,
        median <= TARGET,
        "AIConfigurator, as published",
        PUBLISHED,
        PUBLISHED / median,
        first_seconds=round(seconds[0], 2),
    )


if __name__ == "__main__":
    main(run)
