"""What the devices show: clocks, power, heat, memory and activity follow from the work and the ambient.

The chain is work -> power -> temperature -> clock -> step time of the engine -> work, so a lost fan
slows a replica down without anybody saying so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from simulator.spec import GPU_TYPES, FleetSpec

THERMAL_SECONDS = 60.0  # time constant of the heat sink
SMOOTH_SECONDS = 15.0  # exporters publish means over about one collection interval
COOLING = 0.055  # kelvin per watt with healthy fans
CLOCK_LOSS_PER_KELVIN = 0.12
LOWEST_CLOCK_RATIO = 0.35
SLOWDOWN_EXPONENT = 0.7  # decode is partly bound by memory, whose clock stays
LOADED_SPREAD_MEBIBYTES = 400.0


@dataclass(frozen=True, slots=True)
class Activity:
    """What the work of one second looks like on a device; each of shape (gpus,) or of the arguments."""

    utilization: Floats
    tensor: Floats
    memory_bandwidth: Floats
    power_share: Floats


def activity(batch: Floats, max_batch: Floats, prefill_ratio: Floats, busy_ratio: Floats) -> Activity:
    """Activity ratios of a device from the batch it decodes and the share of time it prefills."""
    fill = np.clip(batch / max_batch, 0.0, 1.0)
    decode = np.clip(busy_ratio - prefill_ratio, 0.0, 1.0)
    utilization = np.clip(busy_ratio * (0.58 + 0.40 * np.sqrt(fill)), 0.0, 1.0)
    tensor = np.clip(0.62 * prefill_ratio + decode * (0.05 + 0.22 * fill), 0.0, 1.0)
    bandwidth = np.clip(0.35 * prefill_ratio + decode * (0.45 + 0.35 * fill), 0.0, 1.0)
    power = np.clip(0.30 * utilization + 0.75 * tensor + 0.20 * bandwidth, 0.0, 1.0)
    return Activity(utilization, tensor, bandwidth, power)


def ambient_celsius(at: float | Floats) -> Floats:
    """Inlet temperature: 25 degrees with a small daily wave."""
    return np.asarray(25.0 + 1.5 * np.cos(2 * np.pi * (np.asarray(at) / 3600.0 % 24 - 15) / 24.0), dtype=np.float64)


class Gpus:
    """Every device of a fleet, in order of node and index. ``cooling_loss`` and ``healthy`` are faults' handles."""

    def __init__(self, spec: FleetSpec, seed: int) -> None:
        per_node = [(pool.gpus_per_node, pool.gpu_type) for pool in spec.pools for _ in range(pool.nodes)]
        types = [GPU_TYPES[kind] for count, kind in per_node for _ in range(count)]
        self.node = np.repeat(np.arange(len(per_node)), [count for count, _ in per_node])
        self.index = np.concatenate([np.arange(count) for count, _ in per_node])
        self.size = self.node.size
        self.type_name = [kind.name for kind in types]
        self.memory = np.array([kind.memory_mebibytes for kind in types], dtype=np.float64)
        self.idle = np.array([kind.idle_watts for kind in types])
        self.limit = np.array([kind.limit_watts for kind in types])
        self.top_clock = np.array([kind.clock_megahertz for kind in types])
        self.memory_clock = np.array([kind.memory_clock_megahertz for kind in types])
        self.throttle_at = np.array([kind.throttle_celsius for kind in types])
        random = np.random.default_rng([seed, 3])
        self.offset = random.normal(0.0, 1.5, self.size)  # places in the chassis differ
        self.spread = random.uniform(0.0, LOADED_SPREAD_MEBIBYTES, self.size)
        self._random = random
        self.healthy = np.ones(self.size, dtype=bool)
        self.visible = np.ones(self.size, dtype=bool)
        self.cooling_loss = np.ones(self.size)
        self.xid = np.zeros(self.size, dtype=np.int64)
        self.clock_ratio = np.ones(self.size)
        self.utilization = np.zeros(self.size)
        self.tensor = np.zeros(self.size)
        self.bandwidth = np.zeros(self.size)
        self.nvlink = np.zeros(self.size)
        self.pcie = np.zeros(self.size)
        self.power = self.idle.copy()
        self.temperature = self.steady_temperature(self.power, 0.0)
        self.memory_used = np.full(self.size, 4.0)
        self.energy_millijoules = random.uniform(1e11, 9e11, self.size)
        self.nvlink_megabytes = np.zeros(self.size)
        self.thermal_nanoseconds = np.zeros(self.size)
        self.power_nanoseconds = np.zeros(self.size)

    def steady_power(self, share: Floats, clock_ratio: Floats | float = 1.0) -> Floats:
        """Watts at an activity's power share."""
        return np.asarray(self.idle + (self.limit - self.idle) * share * np.square(clock_ratio), dtype=np.float64)

    def steady_temperature(self, power: Floats, at: float) -> Floats:
        """Where the temperature settles."""
        return np.asarray(
            ambient_celsius(at) + 2.0 + self.offset + COOLING * self.cooling_loss * power, dtype=np.float64
        )

    @property
    def slow(self) -> Floats:
        """How much longer a step takes on each device than at its top clock."""
        return np.asarray(self.clock_ratio**-SLOWDOWN_EXPONENT, dtype=np.float64)

    def advance(self, at: float, seconds: float, work: Activity, loaded: Floats, tokens: Floats) -> None:
        """Move on by ``seconds``. ``loaded`` is the share of memory an engine holds, ``tokens`` made per second."""
        follow = 1.0 - np.exp(-seconds / SMOOTH_SECONDS)
        jitter = 1.0 + self._random.normal(0.0, 0.012, self.size)
        for name, now in (
            ("utilization", work.utilization),
            ("tensor", work.tensor),
            ("bandwidth", work.memory_bandwidth),
            ("nvlink", tokens * 2.6e6),
            ("pcie", 2e7 + tokens * 6e4),
        ):
            shown = getattr(self, name)
            setattr(self, name, shown + (now * jitter - shown) * follow)
        drawn = self.steady_power(work.power_share, self.clock_ratio) * jitter
        self.power += (np.minimum(drawn, self.limit) - self.power) * follow
        goal = self.steady_temperature(self.power, at)
        self.temperature += (goal - self.temperature) * (1.0 - np.exp(-seconds / THERMAL_SECONDS))
        hot = np.maximum(self.temperature - self.throttle_at, 0.0)
        self.clock_ratio = np.clip(1.0 - CLOCK_LOSS_PER_KELVIN * hot, LOWEST_CLOCK_RATIO, 1.0)
        self.thermal_nanoseconds += np.where(hot > 0, seconds * 1e9, 0.0)
        self.nvlink_megabytes += self.nvlink * seconds / 1e6
        self.energy_millijoules += self.power * seconds * 1e3
        self.memory_used = np.where(loaded > 0, loaded * self.memory - self.spread * (loaded > 0.5), 4.0)
