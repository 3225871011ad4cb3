"""The page of dcgm-exporter 4.x on one node, with counters for profiling, ECC, throttling and health."""

from __future__ import annotations

from functools import cache

import numpy as np

from outrider.model import Floats
from simulator.exporters.text import families, go_number, grid, header, labels
from simulator.exporters.xids import WINDOW_SECONDS, XidWindow, xid_text
from simulator.fleet import Fleet
from simulator.spec.names import pci_address

DRIVER = "580.95.05"
RESERVED_MEBIBYTES = 512.0
# The host label is Hostname in releases up to 4.8.2 and hostname afterwards; pools have different releases.
_HOST_LABELS = ("Hostname", "hostname")
# Missing features: a T4 has no NVLink and no memory sensor, and Turing retires pages instead of rows.
_EVERYTHING = frozenset({"profiling", "nvlink", "hbm", "remapping"})
_HAVE = {"Tesla T4": frozenset({"retirement"}), "NVIDIA A30": _EVERYTHING - {"hbm"}}
_XID = ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.")
_COUNT = ("DCGM_EXP_XID_ERRORS_COUNT", "counter", "reported XIDs during last window")
_HEALTH = ("DCGM_EXP_GPU_HEALTH_STATUS", "counter", "DCGM reported health status")
_WATCHES = ("PCIE", "NVLINK", "MEM", "THERMAL")
_WARN, _FAIL = 10.0, 20.0
_MOST_REPLAYS_PER_SECOND = 1.0


class DcgmPages:
    """Writes the page of any node with NVIDIA devices. Rows of a device that fell off the bus are missing."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._numbers: Floats = np.empty((0, 0))
        self._health: Floats = np.empty((0, 0))
        self._window = XidWindow()
        self._labels: dict[int, tuple[int, str]] = {}
        self._nodes: Devices | None = None

    def page(self, fleet: Fleet, node: int) -> bytes:
        """Returns the page of a node."""
        if self._nodes is None:
            self._nodes = Devices(fleet)
        if self._at != fleet.at:
            table = numbers(fleet)
            self._numbers = np.stack([table[family.value] for family in families("dcgm.yaml")])
            self._health = _health(fleet)
            self._window.advance(fleet)
            self._at = fleet.at
        shown = self._nodes.visible(fleet, node)
        if shown.size == 0:
            return b""
        open_rows = [self._open(fleet, int(gpu)) for gpu in shown]
        heads, columns = _published(fleet.gpus.type_name[int(shown[0])])
        rows = [f"{row}}}" for row in open_rows]
        text = grid(heads, rows, self._numbers[np.ix_(columns, shown)].tolist())
        return (text + self._events(fleet, shown, open_rows)).encode()

    def _events(self, fleet: Fleet, shown: np.ndarray, rows: list[str]) -> str:
        parts = [header(*_XID)]
        for gpu, row in zip(shown, rows, strict=True):
            # The code is also a label, so a new code creates another series, which stays.
            code = int(fleet.gpus.xid[gpu])
            parts.append(f'{_XID[0]}{row},err_code="{code}",err_msg="{xid_text(code)}"}} {code}\n')
        parts.append(header(*_COUNT))
        window = f'window_size_in_ms="{round(WINDOW_SECONDS * 1000)}"'
        for gpu, row in zip(shown, rows, strict=True):
            counts = self._window.counts.get(fleet.gpu_uuid(int(gpu)))
            if not counts:
                parts.append(f"{_COUNT[0]}{row},{window}}} 0\n")
                continue
            parts += [f'{_COUNT[0]}{row},{window},xid="{code}"}} {count}\n' for code, count in counts.items()]
        parts.append(header(*_HEALTH))
        for gpu, row in zip(shown, rows, strict=True):
            for watch, value in zip(_WATCHES, self._health[:, gpu].tolist(), strict=True):
                parts.append(f'{_HEALTH[0]}{row},health_watch="{watch}"}} {go_number(value)}\n')
        return "".join(parts)

    def _open(self, fleet: Fleet, gpu: int) -> str:
        """Returns the labels of a device without the closing brace. They change with its pod."""
        owner = int(fleet.pods.owner[gpu])
        known = self._labels.get(gpu)
        if known is None or known[0] != owner:
            known = self._labels[gpu] = (owner, labels(_labels(fleet, gpu, owner))[:-1])
        return known[1]


class Devices:
    """The devices of each node, computed once."""

    def __init__(self, fleet: Fleet) -> None:
        order = np.argsort(fleet.gpus.node, kind="stable")
        counts = np.bincount(fleet.gpus.node, minlength=fleet.nodes.size)
        self._of_node = np.split(order, np.cumsum(counts)[:-1])

    def visible(self, fleet: Fleet, node: int) -> np.ndarray:
        """Returns the devices that the driver still sees, in order of index."""
        mine = self._of_node[node]
        return np.asarray(mine[fleet.gpus.visible[mine]])


@cache
def _published(type_name: str) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Returns name and header of the families of a device type, and their rows in the table of numbers."""
    have = _HAVE.get(type_name, _EVERYTHING)
    there = [(row, family) for row, family in enumerate(families("dcgm.yaml")) if set(family.needs) <= have]
    return [(family.name, family.header) for _, family in there], np.array([row for row, _ in there])


def numbers(fleet: Fleet) -> dict[str, Floats]:
    """Returns all values of a page, each of shape (gpus,), by the names of the table of families."""
    gpus = fleet.gpus
    return {
        "zero": np.zeros(gpus.size),
        "sm_clock": np.rint(gpus.top_clock * gpus.clock_ratio),
        "memory_clock": gpus.memory_clock,
        "memory_celsius": np.rint(gpus.temperature + 9),
        "celsius": np.rint(gpus.temperature),
        "watts": np.round(gpus.power, 3),
        "limit_watts": np.round(gpus.power_limit, 3),
        "energy_millijoules": np.floor(gpus.energy_millijoules),
        "utilization_percent": np.rint(100 * gpus.utilization),
        "copy_percent": np.rint(80 * gpus.bandwidth),
        "power_nanoseconds": np.floor(gpus.power_nanoseconds),
        "thermal_nanoseconds": np.floor(gpus.thermal_nanoseconds),
        "free_mebibytes": np.rint(gpus.memory) - RESERVED_MEBIBYTES - np.rint(gpus.memory_used),
        "used_mebibytes": np.rint(gpus.memory_used),
        "reserved_mebibytes": np.full(gpus.size, RESERVED_MEBIBYTES),
        "nvlink_megabytes": np.floor(gpus.nvlink_megabytes),
        "active_ratio": np.round(gpus.utilization, 6),
        "sm_ratio": np.round(0.8 * gpus.utilization, 6),
        "tensor_ratio": np.round(gpus.tensor, 6),
        "dram_ratio": np.round(gpus.bandwidth, 6),
        "pcie_sent": np.rint(0.4 * gpus.pcie),
        "pcie_received": np.rint(0.6 * gpus.pcie),
        "nvlink": np.rint(gpus.nvlink),
        **_error_counters(fleet),
    }


def _error_counters(fleet: Fleet) -> dict[str, Floats]:
    gpus, effects = fleet.gpus, fleet.effects.gpus
    return {
        "ecc_correctable": np.floor(gpus.ecc_correctable),
        "ecc_uncorrectable": np.floor(gpus.ecc_uncorrectable),
        "rows_uncorrectable": np.floor(gpus.rows_remapped_uncorrectable),
        "rows_correctable": np.floor(gpus.rows_remapped_correctable),
        "pcie_replays": np.floor(gpus.pcie_replays),
        "link_errors": np.floor(gpus.link_errors),
        "link_replays": np.floor(0.4 * gpus.link_errors),
        "remap_pending": (effects.row_remap_pending > 0.5).astype(np.float64),
        "remap_failed": (effects.row_remap_failed > 0.5).astype(np.float64),
    }


def _health(fleet: Fleet) -> Floats:
    """Returns the results of DCGM's health watches, shape (watches, gpus): 0 pass, 10 warn, 20 fail."""
    gpus, effects = fleet.gpus, fleet.effects.gpus
    memory = np.where(effects.row_remap_pending > 0.5, _WARN, 0.0)
    memory[(effects.row_remap_failed > 0.5) | (effects.ecc_uncorrectable_per_second > 0)] = _FAIL
    links = np.where(effects.link_errors_per_second > 0, _WARN, 0.0)
    links[effects.link_factor < 0.5] = _FAIL
    return np.stack(
        [
            np.where(effects.pcie_replays_per_second > _MOST_REPLAYS_PER_SECOND, _WARN, 0.0),
            links,
            memory,
            np.where(gpus.temperature > gpus.throttle_at, _WARN, 0.0),
        ]
    )


def _labels(fleet: Fleet, gpu: int, owner: int) -> dict[str, str]:
    index, node = int(fleet.gpus.index[gpu]), int(fleet.gpus.node[gpu])
    pools = [pool.name for pool in fleet.spec.pools]
    result = {
        "gpu": str(index),
        "UUID": fleet.gpu_uuid(gpu),
        "pci_bus_id": pci_address(index),
        "device": f"nvidia{index}",
        "modelName": fleet.gpus.type_name[gpu],
        _HOST_LABELS[pools.index(fleet.nodes.pool[node]) % 2]: fleet.nodes.names[node],
        "DCGM_FI_DRIVER_VERSION": DRIVER,
    }
    if owner >= 0:
        pod = fleet.pods.pods[owner]
        result |= {"container": pod.service.engine_kind, "namespace": pod.service.namespace, "pod": pod.name}
    return result
