"""The page of Huawei's npu-exporter on one node of Ascend devices.

Every line of a device has a timestamp in milliseconds. An error code appears only while it is active; a device that
dropped off the bus is missing from the list and from the count.
"""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.exporters.dcgm import Devices
from simulator.exporters.text import families, grid, header, labels, stamp
from simulator.fleet import Fleet
from simulator.spec.names import pci_address

EXPORTER_VERSION = "v7.3.0"
# Fault codes of the vendor's mind-cluster in decimal: card drop, multi-bit memory error, isolated rows at their limit,
# link down; any other fault is shown as a core fault.
_CODES = {
    79: 0x40F84E00,
    48: 0x80E01801,
    94: 0x80E01801,
    95: 0x80E01801,
    140: 0x80E01801,
    64: 0x80E18402,
    74: 0x81078603,
}
_OTHER_CODE = 0x80C98009
_ERROR = ("npu_chip_info_error_code", "gauge", "the npu error code")


class NpuPages:
    """Writes the page of any node with Ascend devices."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._numbers: Floats = np.empty((0, 0))
        self._labels: dict[int, tuple[int, str]] = {}
        self._nodes: Devices | None = None

    def page(self, fleet: Fleet, node: int) -> bytes:
        """Returns the page of a node."""
        if self._nodes is None:
            self._nodes = Devices(fleet)
        if self._at != fleet.at:
            table = numbers(fleet)
            self._numbers = np.stack([table[family.value] for family in families("npu.yaml")])
            self._at = fleet.at
        shown = self._nodes.visible(fleet, node)
        end = stamp(fleet.at + float(fleet.nodes.clock_offset[node]))
        parts = [_counts(fleet, shown)]
        if shown.size:
            rows = [self._row(fleet, int(gpu)) for gpu in shown]
            listed = families("npu.yaml")
            heads = [(family.name, family.header) for family in listed]
            parts.append(grid(heads, rows, self._numbers[:, shown].tolist(), end))
            parts.append(_errors(fleet, shown, rows, end))
        return "".join(parts).encode()

    def _row(self, fleet: Fleet, gpu: int) -> str:
        owner = int(fleet.pods.owner[gpu])
        known = self._labels.get(gpu)
        if known is None or known[0] != owner:
            known = self._labels[gpu] = (owner, labels(_labels(fleet, gpu, owner)))
        return known[1]


def numbers(fleet: Fleet) -> dict[str, Floats]:
    """Returns all values of a page, each of shape (gpus,), by the names of the table of families."""
    gpus, hosts = fleet.gpus, fleet.nodes
    node = gpus.node
    return {
        "zero": np.zeros(gpus.size),
        "one": np.ones(gpus.size),
        "core_megahertz": np.rint(gpus.top_clock * gpus.clock_ratio),
        "utilization_percent": np.rint(100 * gpus.utilization),
        "overall_percent": np.rint(100 * gpus.utilization),
        "cube_percent": np.rint(100 * gpus.tensor),
        "vector_percent": np.rint(60 * gpus.utilization),
        "bandwidth_percent": np.rint(100 * gpus.bandwidth),
        "memory_percent": np.rint(100 * gpus.memory_used / gpus.memory),
        "total_megabytes": np.rint(gpus.memory),
        "used_megabytes": np.rint(gpus.memory_used),
        "celsius": np.rint(gpus.temperature),
        "hbm_celsius": np.rint(gpus.temperature + 5),
        "watts": np.round(gpus.power, 1),
        "volts": np.full(gpus.size, 0.85),
        "processes": (fleet.pods.owner >= 0).astype(np.float64),
        "healthy": (gpus.healthy & (gpus.xid == 0)).astype(np.float64),
        "link_up": hosts.port_up[node].astype(np.float64),
        "link_gigabytes": np.round(gpus.nvlink / 1e9, 3),
        "link_errors": np.floor(gpus.link_errors),
        "pcie_sent": np.round(0.4 * gpus.pcie / 1e9, 6),
        "pcie_received": np.round(0.6 * gpus.pcie / 1e9, 6),
        "ecc_correctable": np.floor(gpus.ecc_correctable),
        "ecc_uncorrectable": np.floor(gpus.ecc_uncorrectable),
        "pages_isolated": np.floor(gpus.rows_remapped_uncorrectable),
        **_network(fleet),
    }


def _network(fleet: Fleet) -> dict[str, Floats]:
    """Returns network values; a node's scale-out traffic and errors are spread over the devices' RoCE ports."""
    gpus, hosts = fleet.gpus, fleet.nodes
    node, devices = gpus.node, np.maximum(hosts.gpus, 1)[gpus.node]
    return {
        "network_received": np.round(gpus.nvlink / 1e8, 3),
        "network_sent": np.round(gpus.nvlink / 1e8, 3),
        "network_errors": np.floor(hosts.rdma_errors[node] / devices),
        "network_retries": np.floor(3.0 * hosts.rdma_errors[node] / devices),
    }


def _counts(fleet: Fleet, shown: np.ndarray) -> str:
    count = int(shown.size)
    sick = int((fleet.gpus.xid[shown] != 0).sum())
    families = (
        ("machine_npu_nums", "Amount of npu installed on the machine.", "", count),
        ("machine_healthy_npu_nums", "Amount of healthy npu on the machine.", "", count - sick),
        ("machine_unhealthy_npu_nums", "Amount of unhealthy npu on the machine.", "", sick),
        (
            "npu_exporter_version_info",
            "exporter version with value '1'",
            labels({"exporterVersion": EXPORTER_VERSION}),
            1,
        ),
    )
    return "".join(f"{header(name, 'gauge', text)}{name}{pairs} {value}\n" for name, text, pairs, value in families)


def _errors(fleet: Fleet, shown: np.ndarray, rows: list[str], end: str) -> str:
    """Returns rows of error codes, only for devices that have one."""
    codes = [(row, int(fleet.gpus.xid[gpu])) for gpu, row in zip(shown, rows, strict=True)]
    lines = [f"{_ERROR[0]}{row} {_CODES.get(code, _OTHER_CODE)}{end}\n" for row, code in codes if code]
    return header(*_ERROR) + "".join(lines) if lines else ""


def _labels(fleet: Fleet, gpu: int, owner: int) -> dict[str, str]:
    pod = fleet.pods.pods[owner] if owner >= 0 else None
    return {
        "container_name": pod.service.engine_kind if pod else "",
        "id": str(int(fleet.gpus.index[gpu])),
        "model_name": fleet.gpus.type_name[gpu].replace(" ", "-"),
        "namespace": pod.service.namespace if pod else "",
        "pcie_bus_info": pci_address(int(fleet.gpus.index[gpu])).removeprefix("0000"),
        "pod_name": pod.name if pod else "",
        "vdie_id": fleet.gpu_uuid(gpu),
    }
