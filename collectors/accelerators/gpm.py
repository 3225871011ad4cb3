"""Profiling ratios by NVML's GPM, which Hopper and newer boards have, for devices and for MIG instances.

A metric is made from two samples, so the first look brings none; the next ones cover the time since the
look before. Each device keeps two samples, of which the older one is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from collectors.accelerators.nvml_values import asked

_PERCENT = 0.01
_METRICS = {  # name on the page -> GPM metric, factor
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, _PERCENT),
    "DCGM_FI_PROF_SM_ACTIVE": (pynvml.NVML_GPM_METRIC_SM_UTIL, _PERCENT),
    "DCGM_FI_PROF_SM_OCCUPANCY": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, _PERCENT),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, _PERCENT),
    "DCGM_FI_PROF_DRAM_ACTIVE": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, _PERCENT),
}


@dataclass(slots=True)
class _Pair:
    """The sample of the last look, and the one to write next."""

    last: Any = None
    spare: Any = None


class Gpm:
    """Samples of each device and instance."""

    def __init__(self) -> None:
        """Nothing is sampled yet."""
        self._pairs: dict[tuple[str, int], _Pair] = {}
        self._supported: dict[str, bool] = {}

    def of_device(self, handle: Any, uuid: str) -> dict[str, float]:
        """Ratios of a device since the last look; empty for boards without GPM."""
        return self._ratios(handle, uuid, -1, lambda sample: pynvml.nvmlGpmSampleGet(handle, sample))

    def of_instance(self, handle: Any, uuid: str, number: int) -> dict[str, float]:
        """Ratios of one MIG instance of a device, of what it may use."""
        return self._ratios(handle, uuid, number, lambda sample: pynvml.nvmlGpmMigSampleGet(handle, number, sample))

    def forget(self, uuid: str) -> None:
        """A device is gone: its samples are not freed, because the driver may no longer know them."""
        self._supported.pop(uuid, None)
        self._pairs = {key: pair for key, pair in self._pairs.items() if key[0] != uuid}

    def _ratios(self, handle: Any, uuid: str, number: int, take: Callable[[Any], object]) -> dict[str, float]:
        if uuid not in self._supported:
            answer = asked(pynvml.nvmlGpmQueryDeviceSupport, handle)
            self._supported[uuid] = answer is not None and bool(answer.isSupportedDevice)
        if not self._supported[uuid]:
            return {}
        pair = self._pairs.setdefault((uuid, number), _Pair())
        sample = pair.spare if pair.spare is not None else asked(pynvml.nvmlGpmSampleAlloc)
        pair.spare = sample
        if sample is None or asked(_done, take, sample) is None:
            return {}
        before, pair.last, pair.spare = pair.last, sample, pair.last
        return {} if before is None else _metrics(before, sample)


def _metrics(before: Any, after: Any) -> dict[str, float]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
    request.sample1, request.sample2 = before, after
    for place, (metric, _) in enumerate(_METRICS.values()):
        request.metrics[place].metricId = metric
    answer = asked(pynvml.nvmlGpmMetricsGet, request)
    if answer is None:
        return {}
    return {
        name: float(answer.metrics[place].value) * factor
        for place, (name, (_, factor)) in enumerate(_METRICS.items())
        if answer.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS
    }


def _done(take: Callable[[Any], object], sample: Any) -> bool:
    take(sample)
    return True
