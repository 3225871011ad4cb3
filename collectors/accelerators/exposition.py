"""A snapshot as an exposition page with dcgm-exporter's names, labels and units. Pure.

The lines of a MIG instance have ``GPU_I_ID`` and ``GPU_I_PROFILE`` beside the UUID of its device. They show the
instance's own values and the device's temperature, as dcgm-exporter repeats it. Power, clocks and errors belong to
the device and appear on its line only. A lost device has only the line that it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from collectors.accelerators.processes import Owner, owner
from collectors.accelerators.snapshot import AcceleratorSnapshot, DeviceName, XidLedger

# Help texts as in dcgm-exporter's own files.
FAMILIES: Mapping[str, tuple[str, str]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz)."),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz)."),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", "Memory temperature (in C)."),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("gauge", "Power management limit (in W)."),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("gauge", "Power limit in force (in W)."),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", "Total energy consumption since boot (in mJ)."),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("gauge", "Why clocks are held down (bit mask)."),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", "Total number of PCIe retries."),
    "DCGM_FI_DEV_PCIE_LINK_GEN": ("gauge", "PCIe generation of the link now."),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": ("gauge", "PCIe lanes of the link now."),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %)."),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Memory utilization (in %)."),
    "DCGM_FI_DEV_POWER_VIOLATION": ("counter", "Throttling duration due to power constraints (in ns)."),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("counter", "Throttling duration due to thermal constraints (in ns)."),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": ("counter", "Throttling duration due to sync-boost constraints (in ns)."),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": ("counter", "Throttling duration due to board limit constraints (in ns)."),
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": ("counter", "Throttling duration due to low utilization (in ns)."),
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": ("counter", "Throttling duration due to reliability constraints (in ns)."),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB)."),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB)."),
    "DCGM_FI_DEV_FB_RESERVED": ("gauge", "Framebuffer memory reserved (in MiB)."),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("counter", "Total number of single-bit volatile ECC errors."),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("counter", "Total number of double-bit volatile ECC errors."),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("counter", "Total number of single-bit persistent ECC errors."),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("counter", "Total number of double-bit persistent ECC errors."),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", "Number of remapped rows for uncorrectable errors"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", "Number of remapped rows for correctable errors"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", "Whether remapping of rows has failed"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("gauge", "Whether remapping of rows is pending"),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("counter", "Total number of NVLink flow-control CRC errors."),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("counter", "Total number of NVLink data CRC errors."),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("counter", "Total number of NVLink retries."),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("counter", "Total number of NVLink recovery errors."),
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": ("gauge", "Recovery action that the driver asks for (0 none)."),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (
        "gauge",
        "The rate of data transmitted over the PCIe bus (in bytes per second).",
    ),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("gauge", "The rate of data received over the PCIe bus (in bytes per second)."),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("counter", "Total number of bytes transmitted over NVLink."),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("counter", "Total number of bytes received over NVLink."),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gauge", "Ratio of time the graphics engine is active."),
    "DCGM_FI_PROF_SM_ACTIVE": ("gauge", "The ratio of cycles an SM has at least 1 warp assigned."),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("gauge", "The ratio of number of warps resident on an SM."),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", "Ratio of cycles the tensor (HMMA) pipe is active."),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gauge", "Ratio of cycles the device memory interface is active."),
}
TRAFFIC = {  # help of the same names as rates
    "DCGM_FI_PROF_NVLINK_TX_BYTES": "The rate of data transmitted over NVLink (in bytes per second).",
    "DCGM_FI_PROF_NVLINK_RX_BYTES": "The rate of data received over NVLink (in bytes per second).",
}
REPEATED = ("DCGM_FI_DEV_GPU_TEMP",)  # of the device, repeated for its instances
_XID = ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.")
_COUNT = ("DCGM_EXP_XID_ERRORS_COUNT", "gauge", "Count of XID Errors within user-specified time window.")
_LOST = ("outrider_agent_gpu_lost", "gauge", "1 for a device that was there and answers no more.")
_MEMORY = ("outrider_agent_process_memory_bytes", "gauge", "Device memory of a process, with the pod it belongs to.")
_MIG = ("outrider_agent_mig_info", "gauge", "The UUID of a MIG instance.")
Labels = dict[str, str]
_Row = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """Data of a page beside the snapshot. ``counts`` are those of the ledger at the time of the page."""

    node: str
    source: str
    version: str
    seconds: float


def exposition_page(
    snapshot: AcceleratorSnapshot,
    ledger: XidLedger,
    info: AgentInfo,
    at: datetime,
    owner_of: Callable[[int], Owner | None] = owner,
) -> str:
    """Renders the page of a snapshot."""
    parts = [_family(name, *_head(name, snapshot), rows) for name, rows in _values(snapshot, info.node)]
    parts += [_xids(snapshot, ledger, info.node, at)]
    parts += [
        _family(*_LOST, _lost(snapshot, info.node)),
        _family(*_MIG, _instances(snapshot, info.node)),
        _family(*_MEMORY, _processes(snapshot, info.node, owner_of)),
        agent_lines(info, up=True),
    ]
    return "".join(parts)


def agent_lines(info: AgentInfo, *, up: bool) -> str:
    """Renders the metrics of the agent itself."""
    labels = {"source": info.source, "version": info.version, "Hostname": info.node}
    return _family("outrider_agent_up", "gauge", "1 when the devices could be read.", [(labels, float(up))]) + _family(
        "outrider_agent_read_seconds", "gauge", "How long the reading took.", [({}, info.seconds)]
    )


def _head(name: str, reading: AcceleratorSnapshot) -> tuple[str, str]:
    rate = reading.traffic_is_rate and name in TRAFFIC
    return ("gauge", TRAFFIC[name]) if rate else FAMILIES[name]


def _values(reading: AcceleratorSnapshot, node: str) -> Iterator[tuple[str, list[_Row]]]:
    for name in FAMILIES:
        rows: list[_Row] = []
        for device in reading.devices:
            base = _labels(device.name, node, reading.driver)
            if name in device.values:
                rows.append((base, device.values[name]))
            for part in device.instances:
                source = part.values if name not in REPEATED else device.values
                if name in source:
                    rows.append(({**base, **_part(part.number, part.profile)}, source[name]))
        if rows:
            yield name, rows


def _xids(reading: AcceleratorSnapshot, ledger: XidLedger, node: str, at: datetime) -> str:
    counts = ledger.counts(at)
    gauges: list[_Row] = []
    counted: list[_Row] = []
    window = {"window_size_in_ms": str(round(ledger.window.total_seconds() * 1000))}
    for device in reading.devices:
        uuid, base = device.name.uuid, _labels(device.name, node, reading.driver)
        last = ledger.last.get(uuid)
        code = 0 if last is None else last.code
        gauges.append(({**base, "err_code": str(code)}, float(code)))
        mine = {code: count for (of, code), count in counts.items() if of == uuid}
        counted += [({**base, **window, "xid": str(code)}, float(count)) for code, count in sorted(mine.items())]
        if not mine:
            counted.append(({**base, **window}, 0.0))
    return _family(*_XID, gauges) + _family(*_COUNT, counted)


def _lost(reading: AcceleratorSnapshot, node: str) -> list[_Row]:
    present = [(_labels(device.name, node), 0.0) for device in reading.devices]
    return present + [(_labels(name, node), 1.0) for name in reading.lost]


def _instances(reading: AcceleratorSnapshot, node: str) -> list[_Row]:
    return [
        ({**_labels(device.name, node), **_part(part.number, part.profile), "mig_uuid": part.uuid}, 1.0)
        for device in reading.devices
        for part in device.instances
    ]


def _processes(reading: AcceleratorSnapshot, node: str, owner_of: Callable[[int], Owner | None]) -> list[_Row]:
    rows: list[_Row] = []
    for device in reading.devices:
        profiles = {part.number: part.profile for part in device.instances}
        for process in device.processes:
            if process.memory_bytes is None:
                continue
            whose = owner_of(process.pid) or Owner()
            labels = {**_labels(device.name, node), "pid": str(process.pid)}
            if process.instance is not None:
                labels |= _part(process.instance, profiles.get(process.instance, ""))
            labels |= {"pod_uid": whose.pod_uid, "container_id": whose.container}
            rows.append((labels, process.memory_bytes))
    return rows


def _labels(name: DeviceName, node: str, driver: str = "") -> Labels:
    labels = {
        "gpu": str(name.index),
        "UUID": name.uuid,
        "pci_bus_id": name.pci,
        "device": "" if name.minor is None else f"nvidia{name.minor}",
        "modelName": name.model,
        "Hostname": node,
        "DCGM_FI_DRIVER_VERSION": driver,
    }
    return {label: value for label, value in labels.items() if value}


def _part(number: int, profile: str) -> Labels:
    return {"GPU_I_PROFILE": profile, "GPU_I_ID": str(number)}


def _family(name: str, kind: str, help_text: str, rows: Iterable[_Row]) -> str:
    lines = [f"{name}{_text(labels)} {_number(value)}\n" for labels, value in rows]
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n{''.join(lines)}" if lines else ""


def _text(labels: Labels) -> str:
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items() if value)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
