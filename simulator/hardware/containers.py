"""Resource use of the model servers' containers: CPU, memory, and the effect of their limits."""

from __future__ import annotations

import numpy as np

from simulator.cluster.pods import Pods
from simulator.effects import SlotEffects
from simulator.hardware.nodes import MEMORY_PER_POD

CPUS_PER_POD = 4.0
HEADROOM_RATIO = 1.5  # memory limit relative to normal use
WARM_SHARE = 0.9  # share of its normal memory right after loading; the rest comes with traffic
WARM_SECONDS = 900.0
BUSY_CORES, STALLED_CORES = 0.9, 0.02
PERIOD_SECONDS = 0.1  # of the kernel's CFS bandwidth control


class Containers:
    """Every slot's container; arrays of shape (slots,).

    Gauges: ``working_set_bytes``, ``memory_limit_bytes``, ``cpu_limit`` (cores). Counters, from zero in each
    process: ``cpu_seconds``, ``throttled_seconds``, ``periods``, ``throttled_periods``; ``oom_kills`` never falls.
    """

    def __init__(self, pods: Pods) -> None:
        spec, slots = pods.spec, len(pods.pods)
        hosts = [spec.pools_of(service.gpu_type)[0].memory_bytes for service in spec.services]
        self.usual_bytes = MEMORY_PER_POD * np.array(hosts)[pods.service_of_slot]
        self.memory_limit_bytes = HEADROOM_RATIO * self.usual_bytes
        self.cpu_limit = np.full(slots, CPUS_PER_POD)
        self.working_set_bytes = np.zeros(slots)
        self.cpu_seconds = np.zeros(slots)
        self.throttled_seconds = np.zeros(slots)
        self.periods = np.zeros(slots)
        self.throttled_periods = np.zeros(slots)
        self.oom_kills = np.zeros(slots)
        self._served_seconds = np.zeros(slots)
        self._counters = (self.cpu_seconds, self.throttled_seconds, self.periods, self.throttled_periods)
        self._pods = pods

    def settle(self) -> None:
        """Sets the steady state of engines that have served for long."""
        self._served_seconds[:] = 10 * WARM_SECONDS

    def age(self, factor: float) -> None:
        """Multiplies the counters, as if the containers had run longer by that factor."""
        for values in self._counters:
            np.multiply(values, factor, out=values)

    def advance(self, seconds: float, stalled: np.ndarray, effects: SlotEffects) -> None:
        """Advances one tick; ``stalled`` engines (bool) hardly use their CPUs."""
        pods = self._pods
        runs = pods.loaded_ratio > 0
        self._served_seconds = np.where(pods.ready, self._served_seconds + seconds, 0.0)
        warm = 1.0 - np.exp(-self._served_seconds / WARM_SECONDS)
        usual = self.usual_bytes * pods.loaded_ratio * (WARM_SHARE + (1.0 - WARM_SHARE) * warm)
        self.working_set_bytes = np.where(runs, usual + effects.host_memory_bytes, 0.0)
        cores = np.where(pods.ready, np.where(stalled, STALLED_CORES, BUSY_CORES), BUSY_CORES * pods.loading)
        throttled = np.clip(effects.cpu_throttled_ratio, 0.0, 0.95) * pods.ready
        self.cpu_seconds += seconds * cores * (1.0 - 0.5 * throttled)
        self.throttled_seconds += seconds * throttled * CPUS_PER_POD
        self.periods += seconds / PERIOD_SECONDS * runs
        self.throttled_periods += seconds / PERIOD_SECONDS * throttled

    def forget(self, slot: int) -> None:
        """Resets a slot for a new container."""
        for values in self._counters:
            values[slot] = 0.0
        self._served_seconds[slot] = 0.0
