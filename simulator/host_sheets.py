"""What the device, host and cluster exporters say: rows of GPUs, nodes, ports, pods and workloads."""

from __future__ import annotations

import numpy as np

from outrider.model import EntityKind, Floats
from simulator.fleet import Fleet
from simulator.nodes import FILESYSTEM_BYTES
from simulator.pods import Phase
from simulator.sheets import Grown, Sheet, ratio

RESERVED_MEBIBYTES = 512.0
MEBIBYTE = 1048576.0
_WAITING = {Phase.CRASHED: 3.0, Phase.PULLING: 1.0}


# --- devices --------------------------------------------------------------------------------------------


def gpu_counters(fleet: Fleet) -> Floats:
    """Every counter of every device, shape (gpus, 8)."""
    gpus = fleet.gpus
    zero = np.zeros(gpus.size)
    return np.stack(
        [
            np.floor(gpus.energy_millijoules) * 1e-3,
            gpus.thermal_nanoseconds * 1e-9,
            gpus.power_nanoseconds * 1e-9,
            zero,
            zero,
            zero,
            zero,
            zero,
        ],
        axis=1,
    )


def gpu_sheet(fleet: Fleet, grown: Grown) -> Sheet:
    """Every device's row."""
    gpus, seen = fleet.gpus, fleet.gpus.visible
    used, total = np.rint(gpus.memory_used), gpus.memory
    shown = np.rint(gpus.memory - RESERVED_MEBIBYTES - gpus.memory_used) + used + RESERVED_MEBIBYTES
    zero = np.zeros(gpus.size)
    gauges = {
        "hw_accel_utilization_ratio": np.rint(100 * gpus.utilization) * 0.01,
        "hw_accel_compute_active_ratio": np.round(0.8 * gpus.utilization, 6),
        "hw_accel_tensor_active_ratio": np.round(gpus.tensor, 6),
        "hw_accel_memory_bandwidth_ratio": np.round(gpus.bandwidth, 6),
        "hw_accel_memory_used_bytes": used * MEBIBYTE,
        "hw_accel_memory_total_bytes": shown * MEBIBYTE,
        "hw_accel_memory_used_ratio": used / np.where(shown > 0, shown, total),
        "hw_accel_temperature_celsius": np.rint(gpus.temperature),
        "hw_accel_memory_temperature_celsius": np.rint(gpus.temperature + 9),
        "hw_accel_power_watts": np.round(gpus.power, 3),
        "hw_accel_power_limit_watts": gpus.limit,
        "hw_accel_core_clock_hertz": np.rint(gpus.top_clock * gpus.clock_ratio) * 1e6,
        "hw_accel_fault_code": gpus.xid.astype(np.float64),
        "hw_accel_row_remap_failed": zero,
        "hw_accel_row_remap_pending": zero,
        "hw_accel_pcie_bytes_per_second": np.rint(0.4 * gpus.pcie) + np.rint(0.6 * gpus.pcie),
        "hw_accel_interconnect_bytes_per_second": 2 * np.rint(gpus.nvlink),
    }
    gauges = {name: np.where(seen, values, np.nan) for name, values in gauges.items()}
    gauges["hw_accel_seen"] = seen.astype(np.float64)
    increases = np.where(seen[:, None], grown.increases, np.nan)
    columns = {
        "hw_accel_energy_joules_total": increases[:, 0],
        "hw_accel_throttle_thermal_ratio": increases[:, 1] / grown.seconds,
        "hw_accel_throttle_power_ratio": increases[:, 2] / grown.seconds,
        "hw_accel_ecc_correctable_total": increases[:, 3],
        "hw_accel_ecc_uncorrectable_total": increases[:, 4],
        "hw_accel_memory_retired_total": increases[:, 5],
        "hw_accel_pcie_replay_total": increases[:, 6],
        "hw_accel_interconnect_errors_total": increases[:, 7],
    }
    return Sheet(EntityKind.GPU, "devices", gauges, columns)


def device_node_sheet(fleet: Fleet, about: dict[str, Floats]) -> Sheet:
    """What a node's device exporter says of the node: how many devices it sees."""
    present = np.bincount(fleet.gpus.node, fleet.gpus.visible, fleet.nodes.size).astype(np.float64)
    return Sheet(EntityKind.NODE, "devices", {"hw_accel_present": present, **about}, {})


def reserved_sheet(fleet: Fleet) -> Sheet:
    """The engine's own memory reservation on each device it runs on, NaN where none does."""
    ratios = np.array([pod.service.engine.memory_reserved_ratio for pod in fleet.pods.pods])
    owner = fleet.pods.owner
    values = np.where(owner >= 0, ratios[np.maximum(owner, 0)], np.nan)
    return Sheet(EntityKind.GPU, "devices", {"engine_memory_reserved_ratio": values}, {})


# --- hosts ----------------------------------------------------------------------------------------------


def node_counters(fleet: Fleet) -> Floats:
    """Idle share of the CPUs in seconds, disk seconds, stalled seconds, bytes on the network; (nodes, 4)."""
    hosts = fleet.nodes
    return np.stack(
        [
            hosts.idle_seconds / hosts.cpus,
            hosts.disk_seconds,
            hosts.disk_seconds * 0.05,
            np.rint(hosts.received_bytes) + np.rint(hosts.sent_bytes),
        ],
        axis=1,
    )


def node_sheet(fleet: Fleet, grown: Grown, about: dict[str, Floats]) -> Sheet:
    """Every host's row."""
    hosts, seconds = fleet.nodes, grown.seconds
    gauges = {
        "node_memory_available_ratio": np.rint(hosts.memory_bytes * hosts.memory_available_ratio / 4096)
        * 4096
        / hosts.memory_bytes,
        "node_filesystem_available_ratio": np.rint(FILESYSTEM_BYTES * hosts.filesystem_available_ratio)
        / FILESYSTEM_BYTES,
        "node_clock_offset_seconds": np.abs(np.round(hosts.clock_offset, 9)),
        "node_boot_time_seconds": hosts.boot,
        **about,
    }
    columns = {
        "node_cpu_utilization_ratio": 1.0 - grown.increases[:, 0] / seconds,
        "node_disk_busy_ratio": grown.increases[:, 1] / seconds,
        "node_io_stall_ratio": grown.increases[:, 2] / seconds,
        "node_network_bytes_per_second": grown.increases[:, 3] / seconds,
        "node_network_errors_per_second": 0.0 * seconds,
        "node_oom_kills_per_second": 0.0 * seconds,
    }
    return Sheet(EntityKind.NODE, "nodes", gauges, columns)


def port_sheet(fleet: Fleet, grown: Grown) -> Sheet:
    """Every scale-out port's row: one a host."""
    up = np.ones(fleet.nodes.size)
    return Sheet(EntityKind.PORT, "nodes", {"hw_link_up": up}, {"hw_rdma_errors_total": 0.0 * grown.seconds})


# --- cluster --------------------------------------------------------------------------------------------


def kubernetes_node_sheet(fleet: Fleet) -> Sheet:
    """What Kubernetes says of its nodes."""
    hosts = fleet.nodes
    healthy = np.bincount(fleet.gpus.node, fleet.pods.healthy, hosts.size).astype(np.float64)
    asked = np.zeros(hosts.size)
    for pod in fleet.pods.pods:
        if pod.exists and pod.node is not None:
            asked[pod.node] += pod.service.tensor_parallel
    gauges = {
        "node_ready": hosts.ready.astype(np.float64),
        "node_pressure": np.zeros(hosts.size),
        "node_unschedulable": fleet.pods.cordoned.astype(np.float64),
        "node_accel_capacity": hosts.gpus.astype(np.float64),
        "node_accel_allocated_ratio": ratio(asked, healthy),
    }
    return Sheet(EntityKind.NODE, "kube-state", gauges, {})


def pod_restarts(fleet: Fleet) -> Floats:
    """Container restarts of every slot's pod, shape (slots, 1)."""
    return np.array([[float(pod.restarts)] for pod in fleet.pods.pods])


def pod_sheet(fleet: Fleet, grown: Grown) -> Sheet:
    """What Kubernetes says of every slot's pod."""
    pods = fleet.pods.pods
    gauges = {
        "pod_phase": np.array([float(pod.phase not in (Phase.PENDING, Phase.PULLING)) for pod in pods]),
        "pod_ready": np.array([float(pod.ready) for pod in pods]),
        "pod_waiting_reason": np.array([_WAITING.get(pod.phase, 0.0) for pod in pods]),
        "pod_last_terminated_oom": np.zeros(len(pods)),
        "pod_unschedulable": np.array([float(pod.phase is Phase.PENDING and pod.unschedulable) for pod in pods]),
        "pod_startup_seconds": np.array(
            [np.nan if pod.ready_at is None else pod.ready_at - pod.created_at for pod in pods]
        ),
    }
    return Sheet(EntityKind.POD, "kube-state", gauges, {"pod_restarts": grown.increases[:, 0]})


def workload_sheet(fleet: Fleet, of_slot: np.ndarray) -> Sheet:
    """What Kubernetes says of every service's deployment."""
    ready = np.array([pod.ready for pod in fleet.pods.pods], dtype=np.float64)
    wanted = np.array([float(fleet.desired[service.name]) for service in fleet.spec.services])
    available = np.bincount(of_slot, ready, len(fleet.spec.services)).astype(np.float64)
    return Sheet(EntityKind.WORKLOAD, "kube-state", {"workload_available_ratio": ratio(available, wanted)}, {})
