"""A small fleet that is cheap to build, and effects held for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec, PoolSpec, default_spec

START = datetime(2026, 11, 18, 14, tzinfo=UTC)


def small_spec(**changes: object) -> FleetSpec:
    """4 nodes of 4 GPUs in 2 racks; 4 replicas of 2 GPUs of one service; half of the devices are spare."""
    spec = default_spec()
    service = replace(spec.services[1], replicas=4, ceiling=7)
    pool = PoolSpec("h100", spec.pools[0].gpu_type, 4, gpus_per_node=4, nodes_per_rack=2)
    result = replace(spec, cluster="small", pools=(pool,), services=(service,), slice_seconds=1.0)
    return replace(result, **changes)  # type: ignore[arg-type]


def small_fleet(seed: int = 3) -> Fleet:
    """Returns a warm fleet on a Wednesday afternoon."""
    return Fleet(small_spec(), seed=seed, start=START)


def coarse_fleet(seed: int = 3) -> Fleet:
    """Returns the same fleet with ticks of 5 s, for tests over minutes."""
    return Fleet(small_spec(slice_seconds=5.0, tick_seconds=5.0), seed=seed, start=START)


def step(fleet: Fleet, seconds: float) -> None:
    fleet.step(timedelta(seconds=seconds))


class Bent:
    """Sets effects until ``stop``: (group, effect, index, value) each."""

    def __init__(self, fleet: Fleet, *effects: tuple[str, str, int, float]) -> None:
        self._levers = effects
        fleet.injections.append(self)

    def advance(self, fleet: Fleet) -> bool:
        for group, effects, index, value in self._levers:
            fleet.effects.adjust(group, effects)[index] = value
        return False

    def stop(self, fleet: Fleet) -> None:
        if self in fleet.injections:
            fleet.injections.remove(self)
