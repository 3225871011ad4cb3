"""What the hosts show: CPU, memory, disk and network, following the requests their replicas answer."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.spec import FleetSpec

CPU_PER_REQUEST = 0.006  # share of the node's CPUs for one request a second (tokenizer, HTTP, scheduler)
CPU_IDLE = 0.035
MEMORY_PER_POD = 0.07  # share of the node's memory that one model server's host side takes
FILESYSTEM_BYTES = 7.0e12


def steady_cpu(requests_per_second: Floats, pods: Floats) -> Floats:
    """Busy share of a node's CPUs: an idle floor, one busy core a pod's scheduler loop, and the requests."""
    return np.asarray(
        np.clip(CPU_IDLE + 0.02 * pods + CPU_PER_REQUEST * requests_per_second, 0.0, 0.98), dtype=np.float64
    )


def steady_memory_available(pods: Floats) -> Floats:
    """Share of a node's memory that is available."""
    return np.asarray(np.clip(0.93 - MEMORY_PER_POD * pods, 0.03, 1.0), dtype=np.float64)


class Nodes:
    """Every host of a fleet: gauges, and counters since boot."""

    def __init__(self, spec: FleetSpec, seed: int, at: float) -> None:
        pools = [pool for pool in spec.pools for _ in range(pool.nodes)]
        self.names = [f"node-{number}" for number in range(len(pools))]
        self.pool = [pool.name for pool in pools]
        self.gpus = np.array([pool.gpus_per_node for pool in pools])
        self.cpus = np.array([pool.cpus for pool in pools])
        self.memory_bytes = np.array([pool.memory_bytes for pool in pools])
        self.size = len(pools)
        self._random = np.random.default_rng([seed, 5])
        uptime = self._random.uniform(20, 60, self.size) * 86400.0
        self.boot = np.floor(at - uptime)
        self.ready = np.ones(self.size, dtype=bool)
        self.cpu_busy_ratio = np.full(self.size, CPU_IDLE)
        self.memory_available_ratio = np.full(self.size, 0.93)
        self.filesystem_available_ratio = self._random.uniform(0.58, 0.72, self.size)
        self.busy_seconds = uptime * self.cpus * 0.08
        self.idle_seconds = uptime * self.cpus * 0.92
        self.disk_seconds = uptime * 0.004
        self.received_bytes = uptime * 3.0e6
        self.sent_bytes = uptime * 2.0e6
        self.clock_offset = self._random.normal(0.0, 2e-5, self.size)

    def advance(self, seconds: float, requests_per_second: Floats, pods: Floats, loading: Floats) -> None:
        """Move on by ``seconds``; ``loading`` pods read weights from disk."""
        noise = self._random.normal(0.0, 0.004, (3, self.size))
        self.cpu_busy_ratio = np.clip(
            steady_cpu(requests_per_second, pods) + 0.05 * np.minimum(loading, 2) + noise[0], 0.005, 1.0
        )
        self.memory_available_ratio = np.clip(steady_memory_available(pods) + noise[1] * 0.5, 0.02, 1.0)
        self.clock_offset = 0.9 * self.clock_offset + 4e-6 * noise[2] / 0.004
        busy = self.cpu_busy_ratio * seconds * self.cpus
        self.busy_seconds += busy
        self.idle_seconds += seconds * self.cpus - busy
        self.disk_seconds += seconds * np.clip(0.004 + 0.45 * np.minimum(loading, 2), 0.0, 1.0)
        self.received_bytes += seconds * (4.0e5 + 9.0e3 * requests_per_second + 1.5e9 * np.minimum(loading, 2))
        self.sent_bytes += seconds * (3.0e5 + 4.0e4 * requests_per_second)
