"""NVML through NVIDIA's own bindings (``nvidia-ml-py``): the driver's values of each device and MIG instance.

Read-only. A call that a device does not support omits its value. A device that has fallen off the bus is lost and
does not affect others. If the driver is unloaded, the reading fails and the next one restarts the library.
Cost: about 30 calls per device, each answered by the driver from memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pynvml

from collectors.accelerators import nvml_values as values
from collectors.accelerators.gpm import Gpm
from collectors.accelerators.snapshot import (
    AcceleratorSnapshot,
    AcceleratorsUnavailableError,
    Device,
    DeviceName,
    Instance,
    Process,
    Xid,
    as_text,
)
from outrider.clock import Clock

_UNAVAILABLE = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the NVIDIA driver was unloaded",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not installed on this node",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "libnvidia-ml.so.1 and the loaded driver differ in version",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user has no permission to query the NVIDIA driver",
}
_HINTS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver, or run with the NVIDIA container runtime",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "modprobe nvidia; the agent resumes as soon as it is loaded",
    pynvml.NVML_ERROR_UNINITIALIZED: "the agent resumes as soon as the driver is loaded again",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated under its module: reload it or reboot",
    pynvml.NVML_ERROR_NO_PERMISSION: "grant it read and write access to /dev/nvidiactl",
}
_XID = pynvml.nvmlEventTypeXidCriticalError
_WHOLE = 0xFFFFFFFF  # GPU instance of an event or process outside of MIG


class Nvml:
    """The devices known to the driver of this node."""

    name = "nvml"

    def __init__(self, clock: Clock) -> None:
        """The library is loaded at the first reading. ``clock`` dates XIDs: NVML does not."""
        self._clock = clock
        self._started = False
        self._known: dict[str, DeviceName] = {}
        self._of_handle: dict[int, DeviceName] = {}
        self._events: Any = None
        self._watched: frozenset[str] = frozenset()
        self._gpm = Gpm()

    def read(self) -> AcceleratorSnapshot:
        """Reads every device."""
        try:
            self._start()
            driver = as_text(pynvml.nvmlSystemGetDriverVersion())
            handles = self._handles()
            devices = [self._device(handle, self._known[uuid]) for uuid, handle in handles.items()]
            present_devices = tuple(device for device in devices if device is not None)
            present = {device.name.uuid for device in present_devices}
            self._watch({uuid: handle for uuid, handle in handles.items() if uuid in present})
        except pynvml.NVMLError as error:
            raise self._unavailable(error) from error
        return AcceleratorSnapshot(
            driver, present_devices, tuple(name for uuid, name in self._known.items() if uuid not in present)
        )

    def wait(self, limit: timedelta) -> list[Xid] | None:
        """XIDs reported by the driver."""
        if self._events is None:
            return None
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, round(limit.total_seconds() * 1000))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._stop_listening(
                    free=error.value not in _UNAVAILABLE
                )  # the next reading registers the remaining devices again
            return []
        name = self._of_handle.get(_address(event.device))
        if name is None or event.eventType != _XID:
            return []
        instance = None if event.gpuInstanceId == _WHOLE else int(event.gpuInstanceId)
        return [Xid(self._clock.now(), name, int(event.eventData), instance)]

    def close(self) -> None:
        """Shuts the library down."""
        self._stop(call=True)

    # --- the library ----------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._started:
            pynvml.nvmlInit()
            self._started = True

    def _stop(self, *, call: bool) -> None:
        self._stop_listening(free=call)
        self._gpm = Gpm()  # samples of an unloaded driver are not freed
        self._known, self._of_handle = {}, {}
        if self._started and call:
            _try(pynvml.nvmlShutdown)
        self._started = False

    def _unavailable(self, error: pynvml.NVMLError) -> AcceleratorsUnavailableError:
        message = _UNAVAILABLE.get(error.value, f"NVML returned: {error}")
        self._stop(call=self._started)
        return AcceleratorsUnavailableError(
            f"no NVIDIA device can be read: {message}", hint=_HINTS.get(error.value, "check the output of nvidia-smi")
        )

    # --- devices --------------------------------------------------------------------------------------

    def _handles(self) -> dict[str, Any]:
        """Responding devices by UUID. A lost one may keep its index or not."""
        handles: dict[str, Any] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = values.query_or_none(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = None if handle is None else values.query_or_none(pynvml.nvmlDeviceGetUUID, handle)
            if uuid is None:
                continue
            uuid = as_text(uuid)
            if uuid not in self._known or self._known[uuid].index != index:
                self._known[uuid] = _name(handle, index, uuid)
            self._of_handle[_address(handle)] = self._known[uuid]
            handles[uuid] = handle
        return handles

    def _device(self, handle: Any, name: DeviceName) -> Device | None:
        """Values of a device; None if it is lost."""
        try:
            device_readings = values.device_values(handle)
            device_readings |= self._gpm.of_device(handle, name.uuid)
            parts = self._instances(handle, name)
            if any("DCGM_FI_DEV_FB_USED" in part.values for part in parts):
                # as on dcgm-exporter's page, a device in MIG mode reports memory per instance
                device_readings = {
                    key: value for key, value in device_readings.items() if not key.startswith("DCGM_FI_DEV_FB_")
                }
            return Device(name, device_readings, parts, _processes(handle))
        except values.DeviceGoneError:
            self._gpm.forget(name.uuid)
            return None

    def _instances(self, handle: Any, name: DeviceName) -> tuple[Instance, ...]:
        mode = values.query(pynvml.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        instances: dict[int, Instance] = {}
        for index in range(values.query(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = values.query(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            number = None if part is None else values.query(pynvml.nvmlDeviceGetGpuInstanceId, part)
            if number is None or number in instances:  # compute instances of one GPU instance share its memory
                continue
            uuid = as_text(values.query(pynvml.nvmlDeviceGetUUID, part) or "")
            profile = as_text(values.query(pynvml.nvmlDeviceGetName, part) or "").rpartition(" MIG ")[2]
            readings = {**values.memory_values(part), **self._gpm.of_instance(handle, name.uuid, number)}
            instances[number] = Instance(int(number), uuid, profile, readings)
        return tuple(instances.values())

    # --- events ---------------------------------------------------------------------------------------

    def _watch(self, handles: dict[str, Any]) -> None:
        """Registers for events of exactly these devices."""
        if self._events is not None and self._watched == frozenset(handles):
            return
        self._stop_listening(free=True)
        events = pynvml.nvmlEventSetCreate()
        for handle in handles.values():
            kinds = values.query_or_none(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
            if kinds & _XID:
                values.query_or_none(pynvml.nvmlDeviceRegisterEvents, handle, _XID, events)
        self._events, self._watched = events, frozenset(handles)

    def _stop_listening(self, *, free: bool) -> None:
        if self._events is not None and free:
            _try(pynvml.nvmlEventSetFree, self._events)
        self._events, self._watched = None, frozenset()


def _name(handle: Any, index: int, uuid: str) -> DeviceName:
    pci = values.query_or_none(pynvml.nvmlDeviceGetPciInfo, handle)
    return DeviceName(
        uuid=uuid,
        index=index,
        model=as_text(values.query_or_none(pynvml.nvmlDeviceGetName, handle) or ""),
        pci="" if pci is None else as_text(pci.busId),
        minor=values.query_or_none(pynvml.nvmlDeviceGetMinorNumber, handle),
    )


def _processes(handle: Any) -> tuple[Process, ...]:
    processes = values.query(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return tuple(
        Process(
            pid=int(process.pid),
            memory_bytes=None if process.usedGpuMemory is None else float(process.usedGpuMemory),
            instance=None if process.gpuInstanceId in {None, _WHOLE} else int(process.gpuInstanceId),
        )
        for process in processes
    )


def _try(call: Callable[..., object], *arguments: object) -> None:
    """Calls a function whose failure has no consequence."""
    try:
        call(*arguments)
    except pynvml.NVMLError:
        return


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
