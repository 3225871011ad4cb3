"""Profiling values from NVML's GPM (Hopper and newer boards), for devices and for MIG instances.

A metric needs two samples, so the first reading gives none; later ones cover the time since the previous reading.
Each device keeps two samples; the older one is overwritten.

PCIe traffic comes from here and not from the PCIe byte counters of NVML: those have 32 bits, and an H200 that copies
from the host (55 GB/s) passes them 13 times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from collectors.accelerators.nvml_values import query

_PERCENT = 0.01
_MEBIBYTE = float(1 << 20)
_METRICS = {  # name on the page -> GPM metric, factor
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, _PERCENT),
    "DCGM_FI_PROF_SM_ACTIVE": (pynvml.NVML_GPM_METRIC_SM_UTIL, _PERCENT),
    "DCGM_FI_PROF_SM_OCCUPANCY": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, _PERCENT),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, _PERCENT),
    "DCGM_FI_PROF_DRAM_ACTIVE": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, _PERCENT),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MEBIBYTE),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MEBIBYTE),
}


@dataclass(slots=True)
class _Pair:
    """The last sample, and the buffer for the next one."""

    last: Any = None
    spare: Any = None


class Gpm:
    """Samples of each device and instance."""

    def __init__(self) -> None:
        """Starts without samples."""
        self._pairs: dict[tuple[str, int], _Pair] = {}
        self._supported: dict[str, bool] = {}

    def of_device(self, handle: Any, uuid: str) -> dict[str, float]:
        """Values of a device since the last reading; empty for boards without GPM."""
        return self._values(handle, uuid, -1, lambda sample: pynvml.nvmlGpmSampleGet(handle, sample))

    def of_instance(self, handle: Any, uuid: str, number: int) -> dict[str, float]:
        """Values of one MIG instance of a device; ratios are relative to its share."""
        return self._values(handle, uuid, number, lambda sample: pynvml.nvmlGpmMigSampleGet(handle, number, sample))

    def forget(self, uuid: str) -> None:
        """Drops a lost device: its samples are not freed, because the driver may no longer know them."""
        self._supported.pop(uuid, None)
        self._pairs = {key: pair for key, pair in self._pairs.items() if key[0] != uuid}

    def _values(self, handle: Any, uuid: str, number: int, take: Callable[[Any], object]) -> dict[str, float]:
        if uuid not in self._supported:
            support = query(pynvml.nvmlGpmQueryDeviceSupport, handle)
            self._supported[uuid] = support is not None and bool(support.isSupportedDevice)
        if not self._supported[uuid]:
            return {}
        pair = self._pairs.setdefault((uuid, number), _Pair())
        sample = pair.spare if pair.spare is not None else query(pynvml.nvmlGpmSampleAlloc)
        pair.spare = sample
        if sample is None or query(_done, take, sample) is None:
            return {}
        before, pair.last, pair.spare = pair.last, sample, pair.last
        return {} if before is None else _metrics(before, sample)


def _metrics(before: Any, after: Any) -> dict[str, float]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
    request.sample1, request.sample2 = before, after
    for index, (metric, _) in enumerate(_METRICS.values()):
        request.metrics[index].metricId = metric
    result = query(pynvml.nvmlGpmMetricsGet, request)
    if result is None:
        return {}
    return {
        name: float(result.metrics[index].value) * factor
        for index, (name, (_, factor)) in enumerate(_METRICS.items())
        if result.metrics[index].nvmlReturn == pynvml.NVML_SUCCESS
    }


def _done(take: Callable[[Any], object], sample: Any) -> bool:
    take(sample)
    return True
