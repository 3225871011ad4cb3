"""State of the nodes: CPU, memory, disk, network, fans and clocks, from the work of their replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from simulator.effects import NodeEffects
from simulator.spec.parts import FleetSpec

CPU_PER_REQUEST = 0.006  # share of the node's CPUs per request/s (tokenizer, HTTP, scheduler)
CPU_IDLE = 0.035
MEMORY_PER_POD = 0.07  # share of the node's memory per model server
FILESYSTEM_BYTES = 7.0e12
# Fan speed at 25 °C of the hottest device, per additional degree, and at most.
FAN_RPM, FAN_RPM_PER_KELVIN, MOST_FAN_RPM = 4200.0, 95.0, 12000.0
POWER_SUPPLIES = 4
SEGMENT_BYTES = 1448.0
DROPPED_RATIO = 0.3  # share of lost packets that the host's interface counts as dropped; the switch drops the others
CORRUPT_RATIO = 0.15  # share that it counts as receive errors
# The kubelet's eviction-hard defaults: nodefs.available < 10 %; memory.available in proportion to hosts of 2 TB.
DISK_PRESSURE_BELOW_RATIO, MEMORY_PRESSURE_BELOW_RATIO = 0.10, 0.03


def steady_cpu(requests_per_second: Floats, pods: Floats) -> Floats:
    """Returns the busy share of a node's CPUs: idle floor, one core per pod (scheduler loop), and requests."""
    return np.asarray(
        np.clip(CPU_IDLE + 0.02 * pods + CPU_PER_REQUEST * requests_per_second, 0.0, 0.98), dtype=np.float64
    )


def steady_memory_available(pods: Floats) -> Floats:
    """Returns the available share of a node's memory."""
    return np.asarray(np.clip(0.93 - MEMORY_PER_POD * pods, 0.03, 1.0), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class HostWork:
    """Work of a node in a tick; each of shape (nodes,).

    ``loading`` pods read weights from disk. ``extra_bytes`` is memory of containers beyond their normal use,
    ``hottest`` the temperature of the warmest device (celsius).
    """

    requests_per_second: Floats
    pods: Floats
    loading: Floats
    extra_bytes: Floats
    hottest: Floats


class Nodes:
    """Every host of a fleet: gauges, and counters since boot; arrays have shape (nodes,).

    Fixed: ``names``, ``pool``, ``switch``, ``storage`` (str each), ``gpus``, ``cpus``, ``memory_bytes``.
    State: ``ready`` (as Kubernetes has it), ``disk_pressure``, ``memory_pressure``, ``port_up`` (bool),
    ``boot`` (unix). Gauges: ``cpu_busy_ratio``, ``memory_available_ratio``, ``filesystem_available_ratio``,
    ``clock_offset`` (s), ``fan_rpm``, ``supplies_failed`` (of 4). Counters: ``busy_seconds``,
    ``idle_seconds`` (of all CPUs), ``disk_seconds``, ``cpu_pressure_seconds``, ``io_pressure_seconds``,
    ``memory_pressure_seconds``, ``received_bytes``, ``sent_bytes``, ``receive_errors``, ``receive_drops``,
    ``transmit_drops``, ``tcp_retransmits`` (segments), ``rdma_errors``, ``link_downs``, ``oom_kills``.
    """

    link_downs: Floats
    rdma_errors: Floats
    oom_kills: Floats
    receive_errors: Floats
    receive_drops: Floats
    transmit_drops: Floats
    tcp_retransmits: Floats
    memory_pressure_seconds: Floats

    def __init__(self, spec: FleetSpec, seed: int, at: float) -> None:
        pools = [pool for pool in spec.pools for _ in range(pool.nodes)]
        self.names = [f"{spec.prefix}node-{number}" for number in range(len(pools))]
        self.pool = [pool.name for pool in pools]
        self.switch = _racks(spec)
        self.storage = [f"{spec.prefix}{pool.storage}" for pool in pools]
        self.gpus = np.array([pool.gpus_per_node for pool in pools])
        self.cpus = np.array([pool.cpus for pool in pools])
        self.memory_bytes = np.array([pool.memory_bytes for pool in pools])
        self.size = len(pools)
        self._random = np.random.default_rng([seed, 5])
        uptime = self._random.uniform(20, 60, self.size) * 86400.0
        self.boot = np.floor(at - uptime)
        self.ready = np.ones(self.size, dtype=bool)
        self.disk_pressure = np.zeros(self.size, dtype=bool)
        self.memory_pressure = np.zeros(self.size, dtype=bool)
        self.port_up = np.ones(self.size, dtype=bool)
        self.cpu_busy_ratio = np.full(self.size, CPU_IDLE)
        self.memory_available_ratio = np.full(self.size, 0.93)
        self._free_disk = self._random.uniform(0.58, 0.72, self.size)
        self.filesystem_available_ratio = self._free_disk.copy()
        self.busy_seconds = uptime * self.cpus * 0.08
        self.idle_seconds = uptime * self.cpus * 0.92
        self.disk_seconds = uptime * 0.004
        self.io_pressure_seconds = self.disk_seconds * 0.05
        self.cpu_pressure_seconds = self.busy_seconds * 0.01
        self.received_bytes = uptime * 3.0e6
        self.sent_bytes = uptime * 2.0e6
        self._drift = self._random.normal(0.0, 2e-5, self.size)
        self.clock_offset = self._drift.copy()
        self.fan_rpm = np.full(self.size, FAN_RPM)
        self.supplies_failed = np.zeros(self.size)
        for name in _COUNTED_FROM_ZERO:
            setattr(self, name, np.zeros(self.size))

    def advance(self, seconds: float, work: HostWork, effects: NodeEffects) -> None:
        """Advances by ``seconds`` of ``work``, with ``effects``. A node that is down counts nothing."""
        noise = self._random.normal(0.0, 0.004, (3, self.size))
        runs = seconds * (effects.alive > 0.5).astype(np.float64)
        reading = np.minimum(work.loading, 2)
        demand = steady_cpu(work.requests_per_second, work.pods) + 0.05 * reading + effects.neighbor_cpu_ratio
        self.cpu_busy_ratio = np.clip(demand + noise[0], 0.005, 1.0)
        used = work.extra_bytes / self.memory_bytes
        free = steady_memory_available(work.pods) - used
        self.memory_available_ratio = np.clip(free + noise[1] * 0.5, 0.002, 1.0)
        self.filesystem_available_ratio = np.clip(self._free_disk - effects.disk_lost_ratio, 0.0, 1.0)
        self.disk_pressure = self.filesystem_available_ratio < DISK_PRESSURE_BELOW_RATIO
        self.memory_pressure = self.memory_available_ratio < MEMORY_PRESSURE_BELOW_RATIO
        self._drift = 0.9 * self._drift + 4e-6 * noise[2] / 0.004
        self.clock_offset = self._drift + effects.clock_offset_seconds
        self._sense(work, effects)
        busy = self.cpu_busy_ratio * runs * self.cpus
        self.busy_seconds += busy
        self.idle_seconds += runs * self.cpus - busy
        self._wait(runs, demand, reading, effects)
        self._talk(runs, work, reading, effects)

    def reboot(self, node: int, at: float) -> None:
        """Reboots the node: its counters start at zero."""
        self.boot[node] = np.floor(at)
        for name in (*_COUNTED_FROM_ZERO, *_COUNTED):
            getattr(self, name)[node] = 0.0

    def _sense(self, work: HostWork, effects: NodeEffects) -> None:
        """Sensor readings of the management controller."""
        wanted = np.minimum(FAN_RPM + FAN_RPM_PER_KELVIN * np.maximum(work.hottest - 25.0, 0.0), MOST_FAN_RPM)
        self.fan_rpm = wanted * effects.fan_factor
        self.supplies_failed = np.clip(np.round(effects.supplies_failed), 0, POWER_SUPPLIES)
        up = effects.port_up > 0.5
        self.link_downs += self.port_up & ~up
        self.port_up = up

    def _wait(self, runs: Floats, demand: Floats, reading: Floats, effects: NodeEffects) -> None:
        """Updates disk time and pressure stalls of CPU, IO and memory."""
        # The same reads take longer on a slow disk; a full disk is always busy.
        disk = np.clip((0.004 + 0.45 * reading) * effects.disk_factor + 0.12 * (effects.disk_factor - 1.0), 0.0, 1.0)
        self.disk_seconds += runs * disk
        self.io_pressure_seconds += runs * np.clip(0.05 * disk + 0.5 * np.maximum(disk - 0.6, 0.0), 0.0, 1.0)
        self.cpu_pressure_seconds += runs * np.clip(0.01 * demand + 2.0 * np.maximum(demand - 0.8, 0.0), 0.0, 1.0)
        short = np.maximum(2 * MEMORY_PRESSURE_BELOW_RATIO - self.memory_available_ratio, 0.0)
        self.memory_pressure_seconds += runs * np.clip(5.0 * short, 0.0, 1.0)

    def _talk(self, runs: Floats, work: HostWork, reading: Floats, effects: NodeEffects) -> None:
        """Updates network counters: bytes, errors, drops."""
        received = runs * (4.0e5 + 9.0e3 * work.requests_per_second + 1.5e9 * reading / effects.storage_factor)
        sent = runs * (3.0e5 + 4.0e4 * work.requests_per_second)
        lost = np.clip(effects.packet_loss_ratio, 0.0, 0.9)
        self.received_bytes += received * (1.0 - lost)
        self.sent_bytes += sent * (1.0 + lost)
        self.receive_errors += CORRUPT_RATIO * lost * received / SEGMENT_BYTES
        self.receive_drops += DROPPED_RATIO * lost * received / SEGMENT_BYTES
        self.transmit_drops += DROPPED_RATIO * lost * sent / SEGMENT_BYTES
        self.tcp_retransmits += lost * sent / SEGMENT_BYTES
        self.rdma_errors += effects.rdma_errors_per_second * runs


_COUNTED = (
    "busy_seconds",
    "idle_seconds",
    "disk_seconds",
    "io_pressure_seconds",
    "cpu_pressure_seconds",
    "received_bytes",
    "sent_bytes",
)
_COUNTED_FROM_ZERO = (
    "memory_pressure_seconds",
    "receive_errors",
    "receive_drops",
    "transmit_drops",
    "tcp_retransmits",
    "rdma_errors",
    "link_downs",
    "oom_kills",
)


def _racks(spec: FleetSpec) -> list[str]:
    """Returns the rack (= switch) of every node; pools do not share racks."""
    result: list[str] = []
    rack = 0
    for pool in spec.pools:
        result += [f"{spec.prefix}rack-{rack + node // pool.nodes_per_rack}" for node in range(pool.nodes)]
        rack += -(-pool.nodes // pool.nodes_per_rack)
    return result
