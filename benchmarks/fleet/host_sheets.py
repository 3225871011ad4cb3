"""Signals of the device, node and container exporters: rows of GPUs, nodes, ports and containers.

Converts the numbers of the pages, including their rounding, to signals.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.fleet.sheets import Increases, Sheet, ratio
from outrider.model import EntityKind, Floats
from simulator.cluster.pod import Phase
from simulator.exporters import cadvisor
from simulator.exporters.xids import XidWindow
from simulator.fleet import Fleet

MEBIBYTE = 1048576.0
MOST_REPLAYS_PER_SECOND = 1.0
ACTIVE_PORT = 4.0
Numbers = Mapping[str, Floats]


# --- devices --------------------------------------------------------------------------------------------


def gpu_counters(shown: Numbers) -> Floats:
    """Returns all counters of every device, shape (gpus, 8)."""
    parts = (
        shown["energy_millijoules"] * 1e-3,
        shown["thermal_nanoseconds"] * 1e-9,
        shown["power_nanoseconds"] * 1e-9,
        shown["ecc_correctable"],
        shown["ecc_uncorrectable"],
        shown["rows_uncorrectable"],
        shown["pcie_replays"],
        shown["link_errors"] + shown["link_replays"],
    )
    return np.stack(parts, axis=1)


def gpu_sheet(fleet: Fleet, shown: Numbers, window: XidWindow, grown: Increases) -> Sheet:
    """Returns a row per device; ``shown`` is the result of ``dcgm.numbers``."""
    gpus, seen = fleet.gpus, fleet.gpus.visible
    total = shown["used_mebibytes"] + shown["free_mebibytes"] + shown["reserved_mebibytes"]
    gauges = {
        "hw_accel_utilization_ratio": shown["utilization_percent"] * 0.01,
        "hw_accel_compute_active_ratio": shown["sm_ratio"],
        "hw_accel_tensor_active_ratio": shown["tensor_ratio"],
        "hw_accel_memory_bandwidth_ratio": shown["dram_ratio"],
        "hw_accel_memory_used_bytes": shown["used_mebibytes"] * MEBIBYTE,
        "hw_accel_memory_total_bytes": total * MEBIBYTE,
        "hw_accel_memory_used_ratio": shown["used_mebibytes"] / total,
        "hw_accel_temperature_celsius": shown["celsius"],
        "hw_accel_memory_temperature_celsius": shown["memory_celsius"],
        "hw_accel_power_watts": shown["watts"],
        "hw_accel_power_limit_watts": shown["limit_watts"],
        "hw_accel_core_clock_hertz": shown["sm_clock"] * 1e6,
        "hw_accel_fault_code": gpus.xid.astype(np.float64),
        "hw_accel_fault_events": _codes_in_window(fleet, window),
        "hw_accel_healthy": _healthy(fleet),
        "hw_accel_row_remap_failed": shown["remap_failed"],
        "hw_accel_row_remap_pending": shown["remap_pending"],
        "hw_accel_pcie_bytes_per_second": shown["pcie_sent"] + shown["pcie_received"],
        "hw_accel_interconnect_bytes_per_second": 2 * shown["nvlink"],
    }
    gauges = {name: np.where(seen, values, np.nan) for name, values in gauges.items()}
    gauges["hw_accel_seen"] = seen.astype(np.float64)
    return Sheet(EntityKind.GPU, "devices", gauges, _gpu_columns(grown))


def _gpu_columns(grown: Increases) -> dict[str, Floats]:
    columns = grown.increases.T
    return {
        "hw_accel_energy_joules_total": columns[0],
        "hw_accel_throttle_thermal_ratio": columns[1] / grown.seconds,
        "hw_accel_throttle_power_ratio": columns[2] / grown.seconds,
        "hw_accel_ecc_correctable_total": columns[3],
        "hw_accel_ecc_uncorrectable_total": columns[4],
        "hw_accel_memory_retired_total": columns[5],
        "hw_accel_pcie_replay_total": columns[6],
        "hw_accel_interconnect_errors_total": columns[7],
    }


def _codes_in_window(fleet: Fleet, window: XidWindow) -> Floats:
    result = np.zeros(fleet.gpus.size)
    if any(window.counts.values()):
        names = [fleet.gpu_uuid(gpu) for gpu in range(fleet.gpus.size)]
        result += [float(sum(window.counts.get(name, {}).values())) for name in names]
    return result


def _healthy(fleet: Fleet) -> Floats:
    """Returns 1 if all background health checks of DCGM pass, else 0."""
    gpus, effects = fleet.gpus, fleet.effects.gpus
    bad = (
        (effects.pcie_replays_per_second > MOST_REPLAYS_PER_SECOND)
        | (effects.link_errors_per_second > 0)
        | (effects.link_factor < 0.5)
        | (effects.row_remap_pending > 0.5)
        | (effects.row_remap_failed > 0.5)
        | (effects.ecc_uncorrectable_per_second > 0)
        | (gpus.temperature > gpus.throttle_at)
    )
    return (~bad).astype(np.float64)


def device_node_sheet(fleet: Fleet, about: Mapping[str, Floats]) -> Sheet:
    """Returns the device count of each node, as on its device exporter's page."""
    present = np.bincount(fleet.gpus.node, fleet.gpus.visible, fleet.nodes.size).astype(np.float64)
    return Sheet(EntityKind.NODE, "devices", {"hw_accel_present": present, **about}, {})


def reserved_sheet(fleet: Fleet) -> Sheet:
    """Returns reserved memory and KV-cache utilization of the engine on each device, NaN without an engine."""
    awake = 1.0 - (fleet.effects.slots.asleep > 0.5)
    of_slots = {
        "engine_memory_reserved_ratio": np.array([pod.service.engine.memory_reserved_ratio for pod in fleet.pods.pods]),
        "engine_kv_cache_usage_ratio": np.round(fleet.bank.kv_used_ratio * awake, 12),
    }
    owner = fleet.pods.owner
    on_gpus = {name: np.where(owner >= 0, each[np.maximum(owner, 0)], np.nan) for name, each in of_slots.items()}
    return Sheet(EntityKind.GPU, "devices", on_gpus, {})


# --- hosts ----------------------------------------------------------------------------------------------


def node_counters(fleet: Fleet, shown: Numbers) -> Floats:
    """Returns CPU idle, disk and stall seconds, bytes, errors, OOM kills, port errors; (nodes, 7)."""
    parts = (
        fleet.nodes.idle_seconds / fleet.nodes.cpus,
        shown["disk_seconds"],
        shown["io_stalled"],
        shown["received_bytes"] + shown["sent_bytes"],
        shown["receive_errors"] + shown["receive_drops"],
        shown["oom_kills"],
        shown["port_errors"] + shown["link_recoveries"] + shown["links_downed"],
    )
    return np.stack(parts, axis=1)


def node_sheet(shown: Numbers, grown: Increases, about: Mapping[str, Floats]) -> Sheet:
    """Returns a row per host; ``shown`` is the result of ``node.numbers``."""
    each, seconds = grown.increases.T, grown.seconds
    gauges = {
        "node_memory_available_ratio": shown["memory_available"] / shown["memory_total"],
        "node_filesystem_available_ratio": shown["disk_available"] / shown["disk_size"],
        "node_clock_offset_seconds": np.abs(shown["clock_offset"]),
        "node_boot_time_seconds": shown["boot"],
        **about,
    }
    columns = {
        "node_cpu_utilization_ratio": 1.0 - each[0] / seconds,
        "node_disk_busy_ratio": each[1] / seconds,
        "node_io_stall_ratio": each[2] / seconds,
        "node_network_bytes_per_second": each[3] / seconds,
        "node_network_errors_per_second": each[4] / seconds,
        "node_oom_kills_per_second": each[5] / seconds,
    }
    return Sheet(EntityKind.NODE, "nodes", gauges, columns)


def port_sheet(shown: Numbers, grown: Increases) -> Sheet:
    """Returns a row per scale-out port: one per host."""
    up = (shown["port_state"] == ACTIVE_PORT).astype(np.float64)
    return Sheet(EntityKind.PORT, "nodes", {"hw_link_up": up}, {"hw_rdma_errors_total": grown.increases[:, 6]})


# --- containers -----------------------------------------------------------------------------------------


def running(fleet: Fleet) -> np.ndarray:
    """Returns True for slots whose container the kubelet shows or showed very recently, shape (slots,)."""
    lingers = cadvisor.LINGERS_SECONDS
    without = (Phase.ABSENT, Phase.PENDING, Phase.PULLING)
    return np.array(
        [
            pod.node is not None
            and pod.phase not in without
            and not (pod.phase is Phase.CRASHED and fleet.at - (pod.crashed_at or 0.0) > lingers)
            for pod in fleet.pods.pods
        ]
    )


def container_counters(fleet: Fleet, shown: Numbers) -> Floats:
    """Returns CPU seconds, CFS periods, throttled periods, OOM events and the line's own timestamp; (slots, 5)."""
    where = np.maximum(fleet.pods.node_of_slot, 0)
    clock = np.round((fleet.at + fleet.nodes.clock_offset[where]) * 1000.0) / 1000.0
    parts = (shown["cpu_seconds"], shown["periods"], shown["throttled_periods"], shown["oom_events"], clock)
    return np.stack(parts, axis=1)


def container_sheet(shown: Numbers, grown: Increases) -> Sheet:
    """Returns a row per container of a slot; ``shown`` is the result of ``cadvisor.numbers``."""
    each = grown.increases.T
    gauges = {
        "container_memory_working_set_bytes": shown["working_set_bytes"],
        "container_memory_limit_ratio": shown["working_set_bytes"] / shown["limit_bytes"],
    }
    columns = {
        "container_cpu_usage_cores": each[0] / each[4],
        "container_cpu_throttled_ratio": ratio(each[2], each[1]),
        "container_oom_events": each[3],
    }
    return Sheet(EntityKind.CONTAINER, "containers", gauges, columns)
