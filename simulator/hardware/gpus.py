"""State of the devices: clocks, power, heat, memory and activity, from the work and the ambient temperature.

The chain is work -> power -> temperature -> clock -> step time of the engine -> work. A lost fan therefore slows a
replica down without any log line. A power limit lowers the clock until the power fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from simulator.effects import GpuEffects
from simulator.spec.devices import GPU_TYPES
from simulator.spec.parts import FleetSpec

THERMAL_SECONDS = 60.0  # time constant of the heat sink
SMOOTH_SECONDS = 15.0  # exporters publish means over about one collection interval
CLOCK_LOSS_PER_KELVIN = 0.12
LOWEST_CLOCK_RATIO = 0.35
SLOWDOWN_EXPONENT = 0.7  # decode is partly memory-bound, and the memory clock stays
LOADED_SPREAD_MEBIBYTES = 400.0
DRIVER_MEBIBYTES = 512.0  # reserved by the driver
THROTTLED_BELOW_RATIO = 0.995  # of the top clock: below it the driver counts throttled time
LINK_BYTES_PER_TOKEN = 2.6e6  # all-reduces of a group, per token and device
IDLE_PCIE_BYTES, PCIE_BYTES_PER_TOKEN = 2.0e7, 6.0e4
SPILL_RATIO = 0.5  # share of the traffic of a lost link that moves to PCIe
ERRORS_PER_REMAPPED_ROW = 2000.0  # correctable errors of a row before the driver remaps it


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of a device per second of work; each of shape (gpus,) or of the arguments."""

    utilization: Floats
    tensor: Floats
    memory_bandwidth: Floats
    power_share: Floats


def activity(batch: Floats, max_batch: Floats, prefill_ratio: Floats, busy_ratio: Floats) -> Activity:
    """Returns activity ratios of a device from its decode batch and its share of prefill time."""
    fill = np.clip(batch / max_batch, 0.0, 1.0)
    decode = np.clip(busy_ratio - prefill_ratio, 0.0, 1.0)
    utilization = np.clip(busy_ratio * (0.58 + 0.40 * np.sqrt(fill)), 0.0, 1.0)
    tensor = np.clip(0.62 * prefill_ratio + decode * (0.05 + 0.22 * fill), 0.0, 1.0)
    bandwidth = np.clip(0.35 * prefill_ratio + decode * (0.45 + 0.35 * fill), 0.0, 1.0)
    power = np.clip(0.30 * utilization + 0.75 * tensor + 0.20 * bandwidth, 0.0, 1.0)
    return Activity(utilization, tensor, bandwidth, power)


def ambient_celsius(at: float | Floats) -> Floats:
    """Returns the inlet temperature: 25 °C with a small daily wave."""
    return np.asarray(25.0 + 1.5 * np.cos(2 * np.pi * (np.asarray(at) / 3600.0 % 24 - 15) / 24.0), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Load:
    """Load of an engine on its devices except arithmetic; each of shape (gpus,).

    ``memory_share`` is the used share of the memory, ``tokens`` are generated or read per second, ``loading`` the bytes
    per second of weights from the host, ``grouped`` is True in groups of two or more.
    """

    memory_share: Floats
    tokens: Floats
    loading: Floats
    grouped: np.ndarray


class Gpus:
    """Every device of a fleet, in order of node and index; every array has shape (gpus,).

    Fixed: ``node``, ``index``, ``type_name``, ``vendor``, ``memory`` (MiB), ``idle``, ``limit`` (the board's,
    W), ``top_clock``, ``memory_clock`` (MHz), ``throttle_at`` (celsius), ``link_bytes``, ``pcie_bytes`` (most
    per second). State: ``healthy`` (can be used), ``visible`` (the driver sees it), ``xid`` (last code).
    Shown: ``power``, ``power_limit`` (in force, W), ``temperature``, ``clock_ratio``, ``utilization``,
    ``tensor``, ``bandwidth`` (ratios), ``nvlink``, ``pcie`` (bytes per second), ``memory_used`` (MiB).
    Counters, which only grow: ``energy_millijoules``, ``nvlink_megabytes``, ``thermal_nanoseconds``,
    ``power_nanoseconds``, ``link_errors``, ``pcie_replays``, ``ecc_correctable``, ``ecc_uncorrectable``,
    ``rows_remapped``, ``rows_remapped_correctable``, ``rows_remapped_uncorrectable``.
    """

    def __init__(self, spec: FleetSpec, seed: int) -> None:
        per_node = [(pool.gpus_per_node, pool.gpu_type) for pool in spec.pools for _ in range(pool.nodes)]
        types = [GPU_TYPES[kind] for count, kind in per_node for _ in range(count)]
        self.node = np.repeat(np.arange(len(per_node)), [count for count, _ in per_node])
        self.index = np.concatenate([np.arange(count) for count, _ in per_node])
        self.size = self.node.size
        self.type_name = [kind.name for kind in types]
        self.vendor = [kind.vendor for kind in types]
        self.memory = np.array([kind.memory_mebibytes for kind in types], dtype=np.float64)
        self.idle = np.array([kind.idle_watts for kind in types])
        self.limit = np.array([kind.limit_watts for kind in types])
        self.kelvin_per_watt = np.array([kind.kelvin_per_watt for kind in types])
        self.top_clock = np.array([kind.clock_megahertz for kind in types])
        self.memory_clock = np.array([kind.memory_clock_megahertz for kind in types])
        self.throttle_at = np.array([kind.throttle_celsius for kind in types])
        self.link_bytes = np.array([kind.link_bytes_per_second for kind in types])
        self.pcie_bytes = np.array([kind.pcie_bytes_per_second for kind in types])
        random = np.random.default_rng([seed, 3])
        self.offset = random.normal(0.0, 1.5, self.size)  # slots in the chassis differ
        self.spread = random.uniform(0.0, LOADED_SPREAD_MEBIBYTES, self.size)
        self._random = random
        self.healthy = np.ones(self.size, dtype=bool)
        self.visible = np.ones(self.size, dtype=bool)
        self.xid = np.zeros(self.size, dtype=np.int64)
        self.clock_ratio = np.ones(self.size)
        self.power = self.idle.copy()
        self.power_limit = self.limit.copy()
        self.temperature = self.steady_temperature(self.power, 0.0)
        self.memory_used = np.full(self.size, 4.0)
        self.energy_millijoules = random.uniform(1e11, 9e11, self.size)
        for name in _STARTS_AT_ZERO:
            setattr(self, name, np.zeros(self.size))

    utilization: Floats
    tensor: Floats
    bandwidth: Floats
    nvlink: Floats
    pcie: Floats
    nvlink_megabytes: Floats
    thermal_nanoseconds: Floats
    power_nanoseconds: Floats
    link_errors: Floats
    pcie_replays: Floats
    ecc_correctable: Floats
    ecc_uncorrectable: Floats
    rows_remapped_correctable: Floats

    def steady_power(self, share: Floats, clock_ratio: Floats | float = 1.0) -> Floats:
        """Returns watts at an activity's power share."""
        return np.asarray(self.idle + (self.limit - self.idle) * share * np.square(clock_ratio), dtype=np.float64)

    def steady_temperature(self, power: Floats, at: float, cooling_factor: Floats | float = 1.0) -> Floats:
        """Returns the steady-state temperature; ``cooling_factor`` above 1 means less cooling."""
        warmth = self.kelvin_per_watt * cooling_factor * power
        return np.asarray(ambient_celsius(at) + 2.0 + self.offset + warmth, dtype=np.float64)

    @property
    def slow(self) -> Floats:
        """The step-time factor of each device, relative to its top clock."""
        return np.asarray(self.clock_ratio**-SLOWDOWN_EXPONENT, dtype=np.float64)

    @property
    def rows_remapped_uncorrectable(self) -> Floats:
        """Remapped rows due to uncorrectable errors, one per error."""
        return np.floor(self.ecc_uncorrectable)

    @property
    def rows_remapped(self) -> Floats:
        """All remapped rows."""
        return np.floor(self.rows_remapped_correctable) + self.rows_remapped_uncorrectable

    def advance(
        self, at: float, seconds: float, work: Activity, load: Load, effects: GpuEffects, air: Floats | float = 1.0
    ) -> None:
        """Advances by ``seconds`` of ``work`` under ``load``, with ``effects``; ``air`` above 1: less air flow."""
        follow = 1.0 - np.exp(-seconds / SMOOTH_SECONDS)
        jitter = 1.0 + self._random.normal(0.0, 0.012, self.size)
        demand = np.where(load.grouped & (self.link_bytes > 0), load.tokens * LINK_BYTES_PER_TOKEN, 0.0)
        linked = np.minimum(demand * effects.link_factor, self.link_bytes)
        hosted = IDLE_PCIE_BYTES + load.tokens * PCIE_BYTES_PER_TOKEN + load.loading + SPILL_RATIO * (demand - linked)
        for name, now in (
            ("utilization", work.utilization),
            ("tensor", work.tensor),
            ("bandwidth", work.memory_bandwidth),
            ("nvlink", linked),
            ("pcie", np.minimum(hosted, self.pcie_bytes * effects.pcie_factor)),
        ):
            shown = getattr(self, name)
            setattr(self, name, shown + (now * jitter - shown) * follow)
        self._draw_power(at, seconds, work.power_share * jitter, effects, effects.cooling_factor * air)
        self.nvlink_megabytes += self.nvlink * seconds / 1e6
        self.energy_millijoules += self.power * seconds * 1e3
        used = np.where(
            load.memory_share > 0, load.memory_share * self.memory - self.spread * (load.memory_share > 0.5), 4.0
        )
        self.memory_used = np.minimum(used + effects.extra_memory_mebibytes, self.memory - DRIVER_MEBIBYTES)
        self._count_errors(seconds, effects)

    def reload(self, where: np.ndarray) -> None:
        """Reloads the driver on these devices (bool), as after a boot: no last XID, and counters from zero.

        Memory errors and remapped rows stay: the board stores them.
        """
        for name in _SINCE_DRIVER:
            getattr(self, name)[where] = 0
        self.xid[where] = 0

    def _draw_power(self, at: float, seconds: float, share: Floats, effects: GpuEffects, cooling: Floats) -> None:
        """Updates power, temperature, and the clock that both allow."""
        follow = 1.0 - np.exp(-seconds / SMOOTH_SECONDS)
        self.power_limit = self.limit * effects.power_limit_ratio
        drawn = np.minimum(self.steady_power(share, self.clock_ratio), self.power_limit)
        self.power += (drawn - self.power) * follow
        goal = self.steady_temperature(self.power, at, cooling)
        self.temperature += (goal - self.temperature) * (1.0 - np.exp(-seconds / THERMAL_SECONDS))
        hot = np.maximum(self.temperature - self.throttle_at, 0.0)
        cool = np.clip(1.0 - CLOCK_LOSS_PER_KELVIN * hot, LOWEST_CLOCK_RATIO, 1.0)
        # Power follows the square of the clock (see steady_power), so the clock follows the root of the limit.
        room = np.maximum(self.power_limit - self.idle, 0.0) / np.maximum((self.limit - self.idle) * share, 1e-9)
        fed = np.clip(np.sqrt(room), LOWEST_CLOCK_RATIO, 1.0)
        self.clock_ratio = np.minimum(cool, fed)
        self.thermal_nanoseconds += np.where(hot > 0, seconds * 1e9, 0.0)
        self.power_nanoseconds += np.where(fed < THROTTLED_BELOW_RATIO, seconds * 1e9, 0.0)

    def _count_errors(self, seconds: float, effects: GpuEffects) -> None:
        self.link_errors += effects.link_errors_per_second * seconds
        self.pcie_replays += effects.pcie_replays_per_second * seconds
        self.ecc_correctable += effects.ecc_correctable_per_second * seconds
        self.ecc_uncorrectable += effects.ecc_uncorrectable_per_second * seconds
        self.rows_remapped_correctable += effects.ecc_correctable_per_second * seconds / ERRORS_PER_REMAPPED_ROW


_SINCE_DRIVER = (
    "energy_millijoules",
    "nvlink_megabytes",
    "thermal_nanoseconds",
    "power_nanoseconds",
    "link_errors",
    "pcie_replays",
)
_STARTS_AT_ZERO = (
    "utilization",
    "tensor",
    "bandwidth",
    "nvlink",
    "pcie",
    "nvlink_megabytes",
    "thermal_nanoseconds",
    "power_nanoseconds",
    "link_errors",
    "pcie_replays",
    "ecc_correctable",
    "ecc_uncorrectable",
    "rows_remapped_correctable",
)
