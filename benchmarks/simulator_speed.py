"""Speed of a simulated fleet relative to real time, in steps of 15 s on one core.

Two fleets: 1,000 replicas in 2 services on H100s, and 10,000 GPUs of six types with seven services and five engines.
Each has its usual load of a weekday afternoon and no faults. Timed in CPU seconds. The peer is real time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the target is for one core

import statistics
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, result
from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec, PoolSpec, default_spec, spec_of

TARGET = 100.0  # times real time
STEP = timedelta(seconds=15)
WARM_UP, STEPS = 3, 16
START = datetime(2026, 11, 18, 14, tzinfo=UTC)


def thousand_replicas() -> FleetSpec:
    """Returns the demo's two services with 500 replicas each; one tick per step."""
    spec = default_spec()
    services = tuple(replace(service, replicas=500, ceiling=520) for service in spec.services)
    pools = (PoolSpec("h100", spec.pools[0].gpu_type, 400),)
    return replace(spec, pools=pools, services=services, slice_seconds=15.0, tick_seconds=15.0)


def _measure(name: str, spec: FleetSpec, target: float | None) -> Result:
    begun = time.process_time()
    fleet = Fleet(spec, seed=1, start=START)
    built = time.process_time() - begun
    seconds = []
    for _ in range(WARM_UP + STEPS):
        begun = time.process_time()
        fleet.step(STEP)
        seconds.append(time.process_time() - begun)
    assert fleet.bank.totals.failed == 0, "the fleet has failed requests"
    speed = STEP.total_seconds() / statistics.median(seconds[WARM_UP:])
    return result(
        name, speed, "x real time", target, None if target is None else speed >= target, "real time", 1.0, speed,
        replicas=int(fleet.pods.ready.sum()), gpus=fleet.gpus.size, build_seconds=round(built, 2),
        requests_in_flight=int(fleet.bank.in_flight.sum()),
    )  # fmt: skip


def run() -> list[Result]:
    """Returns the speed of both fleets as a multiple of real time."""
    return [
        _measure("simulator_speed", thousand_replicas(), TARGET),
        _measure("simulator_speed_10000_gpus", spec_of(10_000), None),
    ]


if __name__ == "__main__":
    main(run)
