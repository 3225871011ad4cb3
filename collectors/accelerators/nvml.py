"""NVML by NVIDIA's own bindings (``nvidia-ml-py``): the driver's word on each device and MIG instance.

Reads only. A call that a device does not support leaves its value out; a device that has fallen off the
bus is lost and stops no other; a driver that is unloaded makes the look fail, and the next one starts the
library anew. Cost: some 30 calls a device, each answered by the driver from memory.
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
    AcceleratorsAwayError,
    Device,
    Instance,
    Name,
    Process,
    Reading,
    Xid,
    as_text,
)
from outrider.clock import Clock

_AWAY = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the NVIDIA driver was unloaded",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not on this machine",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "libnvidia-ml.so.1 and the loaded driver differ in version",
    pynvml.NVML_ERROR_NO_PERMISSION: "the NVIDIA driver may not be asked by this user",
}
_HINTS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver, or run with the NVIDIA container runtime",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "modprobe nvidia; the agent reads on as soon as it is loaded",
    pynvml.NVML_ERROR_UNINITIALIZED: "the agent reads on as soon as the driver is loaded again",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated under its module: reload it or reboot",
    pynvml.NVML_ERROR_NO_PERMISSION: "give it read and write access to /dev/nvidiactl",
}
_XID = pynvml.nvmlEventTypeXidCriticalError
_WHOLE = 0xFFFFFFFF  # the GPU instance of an event or process that is in none


class Nvml:
    """The devices that the driver of this machine knows."""

    name = "nvml"

    def __init__(self, clock: Clock) -> None:
        """The library is loaded at the first look. ``clock`` dates XIDs: NVML does not."""
        self._clock = clock
        self._started = False
        self._known: dict[str, Name] = {}
        self._of_handle: dict[int, Name] = {}
        self._events: Any = None
        self._watched: frozenset[str] = frozenset()
        self._gpm = Gpm()

    def read(self) -> Reading:
        """One look at every device."""
        try:
            self._start()
            driver = as_text(pynvml.nvmlSystemGetDriverVersion())
            handles = self._handles()
            devices = [self._device(handle, self._known[uuid]) for uuid, handle in handles.items()]
            found = tuple(device for device in devices if device is not None)
            there = {device.name.uuid for device in found}
            self._watch({uuid: handle for uuid, handle in handles.items() if uuid in there})
        except pynvml.NVMLError as error:
            raise self._away(error) from error
        return Reading(driver, found, tuple(name for uuid, name in self._known.items() if uuid not in there))

    def wait(self, limit: timedelta) -> list[Xid] | None:
        """XIDs that the driver told of."""
        if self._events is None:
            return None
        try:
            told = pynvml.nvmlEventSetWait_v2(self._events, round(limit.total_seconds() * 1000))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._deaf(free=error.value not in _AWAY)  # the next look listens anew to those still there
            return []
        name = self._of_handle.get(_address(told.device))
        if name is None or told.eventType != _XID:
            return []
        instance = None if told.gpuInstanceId == _WHOLE else int(told.gpuInstanceId)
        return [Xid(self._clock.now(), name, int(told.eventData), instance)]

    def close(self) -> None:
        """Let go of the library."""
        self._stop(call=True)

    # --- the library ----------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._started:
            pynvml.nvmlInit()
            self._started = True

    def _stop(self, *, call: bool) -> None:
        self._deaf(free=call)
        self._gpm = Gpm()  # samples of a driver that is gone are not given back to it
        self._known, self._of_handle = {}, {}
        if self._started and call:
            _try(pynvml.nvmlShutdown)
        self._started = False

    def _away(self, error: pynvml.NVMLError) -> AcceleratorsAwayError:
        said = _AWAY.get(error.value, f"NVML answered: {error}")
        self._stop(call=self._started)
        return AcceleratorsAwayError(
            f"no NVIDIA device can be read: {said}", hint=_HINTS.get(error.value, "nvidia-smi may tell more")
        )

    # --- devices --------------------------------------------------------------------------------------

    def _handles(self) -> dict[str, Any]:
        """The devices that can be asked, by UUID. A lost one may still have a place, or have none any more."""
        found: dict[str, Any] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = values.asked_or_gone(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = None if handle is None else values.asked_or_gone(pynvml.nvmlDeviceGetUUID, handle)
            if uuid is None:
                continue
            uuid = as_text(uuid)
            if uuid not in self._known or self._known[uuid].index != index:
                self._known[uuid] = _name(handle, index, uuid)
            self._of_handle[_address(handle)] = self._known[uuid]
            found[uuid] = handle
        return found

    def _device(self, handle: Any, name: Name) -> Device | None:
        """What a device says; None when it is lost."""
        try:
            told = values.of_device(handle)
            told |= self._gpm.of_device(handle, name.uuid)
            parts = self._instances(handle, name)
            if any("DCGM_FI_DEV_FB_USED" in part.values for part in parts):
                # as on dcgm-exporter's page, where the memory of a divided device is that of its parts
                told = {key: value for key, value in told.items() if not key.startswith("DCGM_FI_DEV_FB_")}
            return Device(name, told, parts, _processes(handle))
        except values.DeviceGoneError:
            self._gpm.forget(name.uuid)
            return None

    def _instances(self, handle: Any, name: Name) -> tuple[Instance, ...]:
        mode = values.asked(pynvml.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        found: dict[int, Instance] = {}
        for place in range(values.asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = values.asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            number = None if part is None else values.asked(pynvml.nvmlDeviceGetGpuInstanceId, part)
            if number is None or number in found:  # compute instances of one GPU instance share its memory
                continue
            uuid = as_text(values.asked(pynvml.nvmlDeviceGetUUID, part) or "")
            profile = as_text(values.asked(pynvml.nvmlDeviceGetName, part) or "").rpartition(" MIG ")[2]
            told = {**values.memory(part), **self._gpm.of_instance(handle, name.uuid, number)}
            found[number] = Instance(int(number), uuid, profile, told)
        return tuple(found.values())

    # --- events ---------------------------------------------------------------------------------------

    def _watch(self, handles: dict[str, Any]) -> None:
        """Listen to these devices and no others."""
        if self._events is not None and self._watched == frozenset(handles):
            return
        self._deaf(free=True)
        events = pynvml.nvmlEventSetCreate()
        for handle in handles.values():
            kinds = values.asked_or_gone(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
            if kinds & _XID:
                values.asked_or_gone(pynvml.nvmlDeviceRegisterEvents, handle, _XID, events)
        self._events, self._watched = events, frozenset(handles)

    def _deaf(self, *, free: bool) -> None:
        if self._events is not None and free:
            _try(pynvml.nvmlEventSetFree, self._events)
        self._events, self._watched = None, frozenset()


def _name(handle: Any, index: int, uuid: str) -> Name:
    pci = values.asked_or_gone(pynvml.nvmlDeviceGetPciInfo, handle)
    return Name(
        uuid=uuid,
        index=index,
        model=as_text(values.asked_or_gone(pynvml.nvmlDeviceGetName, handle) or ""),
        pci="" if pci is None else as_text(pci.busId),
        minor=values.asked_or_gone(pynvml.nvmlDeviceGetMinorNumber, handle),
    )


def _processes(handle: Any) -> tuple[Process, ...]:
    found = values.asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return tuple(
        Process(
            pid=int(one.pid),
            memory_bytes=None if one.usedGpuMemory is None else float(one.usedGpuMemory),
            instance=None if one.gpuInstanceId in {None, _WHOLE} else int(one.gpuInstanceId),
        )
        for one in found
    )


def _try(call: Callable[..., object], *arguments: object) -> None:
    """Call what may fail without consequence."""
    try:
        call(*arguments)
    except pynvml.NVMLError:
        return


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
