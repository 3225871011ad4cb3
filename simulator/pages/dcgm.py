"""The page of dcgm-exporter 4.x on one node, with the counters for profiling, ECC and throttling turned on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from outrider.model import Floats
from simulator.fleet import Fleet
from simulator.gpus import Gpus
from simulator.pages.text import Template

DRIVER = "580.95.05"
RESERVED_MEBIBYTES = 512.0
_PCIE = (
    "The rate of data {} over the PCIe bus - including both protocol headers and data payloads - in bytes per second."
)
XID_TEXT = {0: "No Error", 79: "GPU has fallen off the bus"}


def _zeros(gpus: Gpus) -> Floats:
    return np.zeros(gpus.size)


_FAMILIES: tuple[tuple[str, str, str, Callable[[Gpus], Floats]], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda g: np.rint(g.top_clock * g.clock_ratio)),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", lambda g: g.memory_clock),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", lambda g: np.rint(g.temperature + 9)),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda g: np.rint(g.temperature)),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda g: np.round(g.power, 3)),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Current power limit (in W).", lambda g: g.limit),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since boot (in mJ).",
        lambda g: np.floor(g.energy_millijoules),
    ),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", _zeros),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda g: np.rint(100 * g.utilization)),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", lambda g: np.rint(80 * g.bandwidth)),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", _zeros),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", _zeros),
    (
        "DCGM_FI_DEV_POWER_VIOLATION",
        "counter",
        "Throttling duration due to power constraints (in ns).",
        lambda g: g.power_nanoseconds,
    ),
    (
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "counter",
        "Throttling duration due to thermal constraints (in ns).",
        lambda g: g.thermal_nanoseconds,
    ),
    (
        "DCGM_FI_DEV_FB_FREE",
        "gauge",
        "Framebuffer memory free (in MiB).",
        lambda g: np.rint(g.memory - RESERVED_MEBIBYTES - g.memory_used),
    ),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", lambda g: np.rint(g.memory_used)),
    (
        "DCGM_FI_DEV_FB_RESERVED",
        "gauge",
        "Framebuffer memory reserved (in MiB).",
        lambda g: np.full(g.size, RESERVED_MEBIBYTES),
    ),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors.", _zeros),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors.", _zeros),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Number of remapped rows for uncorrectable errors",
        _zeros,
    ),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors", _zeros),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed", _zeros),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether remapping of rows is pending", _zeros),
    (
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "counter",
        "Total number of NVLink flow-control CRC errors.",
        _zeros,
    ),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink retries.", _zeros),
    (
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "counter",
        "Total number of NVLink bandwidth counters for all lanes.",
        lambda g: np.floor(g.nvlink_megabytes),
    ),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status", _zeros),
    (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "gauge",
        "Ratio of time the graphics engine is active.",
        lambda g: np.round(g.utilization, 6),
    ),
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        "gauge",
        "The ratio of cycles an SM has at least 1 warp assigned.",
        lambda g: np.round(0.8 * g.utilization, 6),
    ),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "gauge",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        lambda g: np.round(g.tensor, 6),
    ),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        lambda g: np.round(g.bandwidth, 6),
    ),
    (
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "gauge",
        _PCIE.format("transmitted"),
        lambda g: np.rint(0.4 * g.pcie),
    ),
    (
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        _PCIE.format("received"),
        lambda g: np.rint(0.6 * g.pcie),
    ),
    (
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        "gauge",
        "The rate of data transmitted over NVLink in bytes per second.",
        lambda g: np.rint(g.nvlink),
    ),
    (
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        "gauge",
        "The rate of data received over NVLink in bytes per second.",
        lambda g: np.rint(g.nvlink),
    ),
)
_XID = ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.")


class DcgmPages:
    """Writes the page of any node. Rows of a device that fell off the bus are missing."""

    def __init__(self) -> None:
        self._templates: dict[int, tuple[tuple[object, ...], Template]] = {}
        self._at: float | None = None
        self._numbers: Floats = np.empty((0, 0))

    def page(self, fleet: Fleet, node: int) -> bytes:
        """The page of a node."""
        gpus = fleet.gpus
        if self._at != fleet.at:
            self._numbers = np.stack([value(gpus) for *_, value in _FAMILIES])
            self._at = fleet.at
        shown = np.flatnonzero((gpus.node == node) & gpus.visible)
        state = (tuple(shown), tuple(fleet.pods.owner[shown]), tuple(gpus.xid[shown]))
        known = self._templates.get(node)
        if known is None or known[0] != state:
            known = self._templates[node] = (state, _template(fleet, shown))
        return known[1].render(self._numbers[:, shown].ravel().tolist())


def _template(fleet: Fleet, shown: np.ndarray) -> Template:
    page = Template()
    labels = [_labels(fleet, int(gpu)) for gpu in shown]
    for number, (name, kind, text, _) in enumerate(_FAMILIES):
        page.family(name, kind, text)
        for place, pairs in enumerate(labels):
            page.sample(name, pairs, number * shown.size + place)
    page.family(*_XID)
    for gpu, pairs in zip(shown, labels, strict=True):
        # The code is a label too, so the series changes its identity with the code, and stays.
        code = int(fleet.gpus.xid[gpu])
        page.fixed(_XID[0], {**pairs, "err_code": str(code), "err_msg": XID_TEXT.get(code, "Unknown Error")}, code)
    return page


def _labels(fleet: Fleet, gpu: int) -> dict[str, str]:
    index = int(fleet.gpus.index[gpu])
    found = {
        "gpu": str(index),
        "UUID": fleet.gpu_uuid(gpu),
        "pci_bus_id": f"00000000:{0x19 + 0x11 * index:02X}:00.0",
        "device": f"nvidia{index}",
        "modelName": fleet.gpus.type_name[gpu],
        "Hostname": fleet.nodes.names[int(fleet.gpus.node[gpu])],
        "DCGM_FI_DRIVER_VERSION": DRIVER,
    }
    owner = int(fleet.pods.owner[gpu])
    if owner >= 0:
        pod = fleet.pods.pods[owner]
        found |= {"container": "vllm", "namespace": pod.service.namespace, "pod": pod.name}
    return found
