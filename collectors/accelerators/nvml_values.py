"""NVML values of one device, with dcgm-exporter's names and units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

MEBIBYTE = 1 << 20
_GONE = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}
_DRIVER = {
    pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
}  # fmt: skip
_CORRECTED, _UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
_ALL_LINKS = 0xFFFFFFFF  # scope of a field: summed over the device's links
_FIELDS: dict[str, tuple[Any, float]] = {
    "DCGM_FI_DEV_MEMORY_TEMP": (pynvml.NVML_FI_DEV_MEMORY_TEMP, 1),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 1),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": (pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 1),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 1),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 1),
    # NVML counts KiB
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ((pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS), 1024),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ((pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS), 1024),
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1),
}
_VIOLATIONS = {  # nanoseconds, as in dcgm-exporter
    "DCGM_FI_DEV_POWER_VIOLATION": pynvml.NVML_PERF_POLICY_POWER,
    "DCGM_FI_DEV_THERMAL_VIOLATION": pynvml.NVML_PERF_POLICY_THERMAL,
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": pynvml.NVML_PERF_POLICY_SYNC_BOOST,
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": pynvml.NVML_PERF_POLICY_BOARD_LIMIT,
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": pynvml.NVML_PERF_POLICY_LOW_UTILIZATION,
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": pynvml.NVML_PERF_POLICY_RELIABILITY,
}
_ERRORS = {
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (_CORRECTED, _VOLATILE),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (_UNCORRECTED, _VOLATILE),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": (_CORRECTED, _AGGREGATE),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": (_UNCORRECTED, _AGGREGATE),
}


class DeviceGoneError(Exception):
    """The device does not respond: it has fallen off the bus, or needs a reset."""


def query(call: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a call; None if the device does not support it or this user has no permission.

    Raises DeviceGoneError for a lost device and NVMLError if the driver itself is unavailable.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise DeviceGoneError from error
        if error.value in _DRIVER:
            raise
        return None


def query_or_none(call: Callable[..., Any], *arguments: Any) -> Any:
    """Same, with None also for a lost device."""
    try:
        return query(call, *arguments)
    except DeviceGoneError:
        return None


def device_values(handle: Any) -> dict[str, float]:
    """All values of a device."""
    raw = {name: query(call, handle, *more) for name, (call, *more) in _PLAIN.items()}
    readings = {name: float(value) * _SCALE.get(name, 1.0) for name, value in raw.items() if value is not None}
    rates = query(pynvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is not None:
        readings |= {"DCGM_FI_DEV_GPU_UTIL": float(rates.gpu), "DCGM_FI_DEV_MEM_COPY_UTIL": float(rates.memory)}
    rows = query(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        readings |= dict(zip(_ROWS, map(float, rows), strict=True))
    for name, policy in _VIOLATIONS.items():
        time = query(pynvml.nvmlDeviceGetViolationStatus, handle, policy)
        if time is not None:
            readings[name] = float(time.violationTime)
    return {**readings, **memory_values(handle), **_fields(handle)}


def memory_values(handle: Any) -> dict[str, float]:
    """Memory of a device or instance in MiB. Drivers before R510 count reserved memory as used."""
    info = query(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    reserved = None if info is None else info.reserved
    if info is None:
        info = query(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if info is None:
        return {}
    bytes_by_name = {
        "DCGM_FI_DEV_FB_FREE": info.free,
        "DCGM_FI_DEV_FB_USED": info.used,
        "DCGM_FI_DEV_FB_RESERVED": reserved,
    }
    return {name: value / MEBIBYTE for name, value in bytes_by_name.items() if value is not None}


def _fields(handle: Any) -> dict[str, float]:
    results = query(pynvml.nvmlDeviceGetFieldValues, handle, [field for field, _ in _FIELDS.values()])
    if results is None:
        return {}
    return {
        name: _number(answer) * scale
        for (name, (_, scale)), answer in zip(_FIELDS.items(), results, strict=True)
        if answer.nvmlReturn == pynvml.NVML_SUCCESS
    }


def _number(field: Any) -> float:
    kinds = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }
    return float(getattr(field.value, kinds.get(field.valueType, "ullVal")))


def _temperature(handle: Any) -> Any:
    """Calls the function that every driver has, then its designated successor."""
    sensor = pynvml.NVML_TEMPERATURE_GPU
    value = query(pynvml.nvmlDeviceGetTemperature, handle, sensor)
    return query(pynvml.nvmlDeviceGetTemperatureV, handle, sensor) if value is None else value


def _clock_reasons(handle: Any) -> Any:
    value = query(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    return query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) if value is None else value


_PLAIN: dict[str, tuple[Any, ...]] = {
    "DCGM_FI_DEV_GPU_TEMP": (_temperature,),
    "DCGM_FI_DEV_POWER_USAGE": (pynvml.nvmlDeviceGetPowerUsage,),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": (pynvml.nvmlDeviceGetPowerManagementLimit,),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": (pynvml.nvmlDeviceGetEnforcedPowerLimit,),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (pynvml.nvmlDeviceGetTotalEnergyConsumption,),
    "DCGM_FI_DEV_SM_CLOCK": (pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
    "DCGM_FI_DEV_MEM_CLOCK": (pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": (_clock_reasons,),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (pynvml.nvmlDeviceGetPcieReplayCounter,),
    "DCGM_FI_DEV_PCIE_LINK_GEN": (pynvml.nvmlDeviceGetCurrPcieLinkGeneration,),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": (pynvml.nvmlDeviceGetCurrPcieLinkWidth,),
    **{name: (pynvml.nvmlDeviceGetTotalEccErrors, *kind) for name, kind in _ERRORS.items()},
}
_WATTS = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT")
_SCALE = dict.fromkeys(_WATTS, 0.001)  # NVML returns milliwatts
_ROWS = (
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_ROW_REMAP_PENDING", "DCGM_FI_DEV_ROW_REMAP_FAILURE",
)  # fmt: skip
