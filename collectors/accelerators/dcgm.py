"""DCGM through NVIDIA's own Python bindings, from the folder of NVIDIA's packages. They are not shipped with Outrider.

Queries the host engine (``nv-hostengine``) of this node for the fields that dcgm-exporter reads, so that units and
names are the same. Does not start one. Read-only: its watches and groups end with the connection.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from collectors.accelerators.exposition import FAMILIES
from collectors.accelerators.snapshot import (
    AcceleratorSnapshot,
    AcceleratorsUnavailableError,
    Device,
    DeviceName,
    Instance,
    Xid,
    as_text,
)
from outrider.clock import Clock, from_unix

BINDINGS_FOLDERS = (
    Path("/usr/share/datacenter-gpu-manager-4/bindings/python3"),  # datacenter-gpu-manager-4-*
    Path("/usr/local/dcgm/bindings/python3"),  # datacenter-gpu-manager 3, and NVIDIA's container images
    Path("/usr/share/datacenter-gpu-manager/bindings/python3"),  # version 3 as repackaged by distributions
)
HOST_ENGINE = "127.0.0.1:5555"
_EVERY_MICROSECONDS = 1_000_000
_KEEP_SECONDS = 300.0
_LOST = 4  # DcgmEntityStatusLost of dcgm_structs.h
_XID, _NAME = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_NAME"
_PROFILING = "DCGM_FI_PROF_"
_HINT = "start nv-hostengine (systemctl start nvidia-dcgm), or use NVML with --source nvml"


@dataclass(frozen=True, slots=True)
class _Bindings:
    """NVIDIA's modules."""

    pydcgm: ModuleType
    fields: ModuleType
    structs: ModuleType
    agent: ModuleType


def bindings_folders(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Candidate folders of the bindings, best first. ``DCGM_HOME`` names another installation."""
    home = environment.get("DCGM_HOME")
    return (*((Path(home) / "bindings" / "python3",) if home else ()), *BINDINGS_FOLDERS)


def find_bindings(among: Sequence[Path] | None = None) -> Path | None:
    """The folder of the bindings; None if DCGM's Python package is not installed."""
    return next((folder for folder in among or bindings_folders() if (folder / "pydcgm.py").is_file()), None)


class Dcgm:
    """The devices known to the host engine of this node."""

    name = "dcgm"

    def __init__(self, clock: Clock, bindings: Path | None = None, host: str = HOST_ENGINE) -> None:
        """Raises AcceleratorsUnavailableError without bindings. The first reading connects."""
        folder = bindings or find_bindings()
        if folder is None:
            searched = ", ".join(map(str, bindings_folders()))
            raise AcceleratorsUnavailableError(
                f"DCGM's Python bindings were not found in {searched}",
                hint="install NVIDIA's datacenter-gpu-manager-4-dev, or use NVML with --source nvml",
            )
        self._clock, self._host = clock, host
        self._nvidia = _load(folder)
        self._link: _Link | None = None
        self._known: dict[str, DeviceName] = {}

    def read(self) -> AcceleratorSnapshot:
        """Reads the host engine's latest samples."""
        try:
            if self._link is None or self._link.outdated():
                self._drop()
                self._link = _Link(self._nvidia, self._host)
            devices, driver = self._link.devices()
        except self._nvidia.structs.DCGMError as error:
            self._drop()
            message = str(error).rstrip(".")
            raise AcceleratorsUnavailableError(f"cannot read DCGM at {self._host}: {message}", hint=_HINT) from error
        self._known |= {device.name.uuid: device.name for device in devices}
        present = {device.name.uuid for device in devices}
        lost = tuple(name for uuid, name in self._known.items() if uuid not in present)
        return AcceleratorSnapshot(driver, devices, lost, traffic_is_rate=True)

    def wait(self, limit: timedelta) -> list[Xid] | None:
        """XIDs with the times recorded by DCGM. Returns at once: DCGM has no blocking call."""
        del limit
        if self._link is None:
            return None
        try:
            return self._link.xids() or None
        except self._nvidia.structs.DCGMError:
            self._drop()
            return None

    def close(self) -> None:
        """Disconnects."""
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None


class _Link:
    """One connection, with its groups and watches."""

    def __init__(self, nvidia: _Bindings, host: str) -> None:
        self._nvidia = nvidia
        self._handle = nvidia.pydcgm.DcgmHandle(ipAddress=host)
        self._system = self._handle.GetSystem()
        self._names: dict[int, DeviceName] = {}
        self._driver = ""
        for gpu in sorted(self._answering()):
            self._names[gpu], self._driver = self._name(gpu)
        self._parts = self._instances()
        self._group = self._system.GetGroupWithEntities(f"outrider_{os.getpid()}_{id(self)}", list(self._entities()))
        self._watched = [watched for names in _groups() if (watched := self._watch(names)) is not None]
        self._faults, self._profiles = self._watch((_XID,)), self._watch((_NAME,))
        self._since: Any = None
        self._last_xid: dict[int, int] = {}
        self._system.UpdateAllFields(True)

    def outdated(self) -> bool:
        """True if devices or instances changed: groups do not follow by themselves."""
        return self._answering() != set(self._names) or self._instances() != self._parts

    def _answering(self) -> set[int]:
        """Devices that are not lost: a group would reject a lost one."""
        status = self._nvidia.agent.dcgmGetGpuStatus
        gpus = self._system.discovery.GetAllSupportedGpuIds()
        return {int(gpu) for gpu in gpus if status(self._handle.handle, gpu) != _LOST}

    def devices(self) -> tuple[tuple[Device, ...], str]:
        """Every responding device, and the driver's version."""
        values_by_entity: dict[tuple[int, int], dict[str, float]] = {}
        for group, names in self._watched:
            latest = self._group.samples.GetLatest_v2(group).values
            for kind, entities in latest.items():
                for number, device_list in entities.items():
                    values_by_entity.setdefault((kind, number), {}).update(_numbers(device_list, names))
        fields, profiles = self._nvidia.fields, self._profiles_of_instances()
        device_list = []
        for gpu, name in self._names.items():
            values = values_by_entity.get((fields.DCGM_FE_GPU, gpu), {})
            parts = tuple(
                Instance(
                    number, "", profiles.get(entity, slices), values_by_entity.get((fields.DCGM_FE_GPU_I, entity), {})
                )
                for entity, (of, number, slices) in self._parts.items()
                if of == gpu
            )
            if not values:  # every field is blank: lost since the status query
                continue
            if any("DCGM_FI_DEV_FB_USED" in part.values for part in parts):
                values = {key: value for key, value in values.items() if not key.startswith("DCGM_FI_DEV_FB_")}
            device_list.append(Device(name, values, parts))
        return tuple(device_list), self._driver

    def _profiles_of_instances(self) -> dict[int, str]:
        """DCGM's name of each instance, such as 1g.10gb, as in dcgm-exporter."""
        if self._profiles is None or not self._parts:
            return {}
        latest = self._group.samples.GetLatest_v2(self._profiles[0]).values
        return {
            entity: str(series[-1].value)
            for entity, series_by_field in latest.get(self._nvidia.fields.DCGM_FE_GPU_I, {}).items()
            for series in series_by_field.values()
            if not series[-1].isBlank
        }

    def xids(self) -> list[Xid]:
        """New XIDs since the last call. Those of the first call are old: the field keeps its value."""
        if self._faults is None:
            return []
        group, _ = self._faults
        first = self._since is None
        self._since = self._group.samples.GetAllSinceLastCall_v2(self._since, group)
        new = []
        for gpu, values in self._since.values.get(self._nvidia.fields.DCGM_FE_GPU, {}).items():
            for value in next(iter(values.values()), ()):
                if value.isBlank or value.ts <= self._last_xid.get(gpu, 0):
                    continue
                self._last_xid[gpu] = value.ts
                if not first and value.value and gpu in self._names:
                    new.append(Xid(from_unix(value.ts / 1e6), self._names[gpu], int(value.value)))
        self._since.EmptyValues()
        return sorted(new, key=lambda xid: xid.at)

    def close(self) -> None:
        """Releases all groups and watches. If the host engine has exited, they are gone already."""
        self._watched, self._faults, self._group, self._system = [], None, None, None
        try:
            self._handle.Shutdown()
        except self._nvidia.structs.DCGMError:
            return

    def _name(self, gpu: int) -> tuple[DeviceName, str]:
        identifiers = self._system.discovery.GetGpuAttributes(gpu).identifiers
        uuid, model, pci, driver = (
            as_text(value)
            for value in (identifiers.uuid, identifiers.deviceName, identifiers.pciBusId, identifiers.driverVersion)
        )
        return DeviceName(uuid, gpu, model, pci), driver

    def _instances(self) -> dict[int, tuple[int, int, str]]:
        """GPU instances by entity: their device, their id on it, and their share of it."""
        fields = self._nvidia.fields
        try:
            tree = self._nvidia.agent.dcgmGetGpuInstanceHierarchy(self._handle.handle)
        except self._nvidia.structs.DCGMError:
            return {}  # a host engine without MIG
        return {
            node.entity.entityId: (
                node.parent.entityId,
                int(node.info.nvmlInstanceId),
                f"{node.info.nvmlProfileSlices}g",
            )
            for node in tree.entityList[: tree.count]
            if node.entity.entityGroupId == fields.DCGM_FE_GPU_I
        }

    def _entities(self) -> Iterator[Any]:
        fields, pair = self._nvidia.fields, self._nvidia.structs.c_dcgmGroupEntityPair_t
        for kind, numbers in ((fields.DCGM_FE_GPU, self._names), (fields.DCGM_FE_GPU_I, self._parts)):
            for number in numbers:
                entity = pair()
                entity.entityGroupId, entity.entityId = kind, number
                yield entity

    def _watch(self, names: Sequence[str]) -> tuple[Any, dict[int, str]] | None:
        """Watches fields; None for a group that this board or version does not have."""
        fields_by_number = {
            number: name for name in names if (number := getattr(self._nvidia.fields, name, None)) is not None
        }
        if not fields_by_number:
            return None
        try:
            group = self._nvidia.pydcgm.DcgmFieldGroup(
                self._handle, f"outrider_{os.getpid()}_{id(self)}_{names[0]}", list(fields_by_number)
            )
            self._group.samples.WatchFields(group, _EVERY_MICROSECONDS, _KEEP_SECONDS, 0)
        except self._nvidia.structs.DCGMError:
            return None
        return group, fields_by_number


def _groups() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields of the page: those of every board, and those of the profiling module, which may be missing."""
    profiling = tuple(name for name in FAMILIES if name.startswith(_PROFILING))
    return tuple(name for name in FAMILIES if name not in profiling), profiling


def _numbers(series_by_field: Mapping[int, Any], names: Mapping[int, str]) -> dict[str, float]:
    return {
        names[field]: float(series[-1].value) for field, series in series_by_field.items() if not series[-1].isBlank
    }


def _load(folder: Path) -> _Bindings:
    """Imports the bindings. The folder goes last on the path: it has modules with very common names."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        modules = [importlib.import_module(name) for name in ("pydcgm", "dcgm_fields", "dcgm_structs", "dcgm_agent")]
    except (ImportError, SyntaxError, AttributeError, NameError, OSError) as error:  # of another Python or DCGM
        raise AcceleratorsUnavailableError(
            f"DCGM's Python bindings in {folder} cannot be imported: {error}",
            hint="they must match the installed DCGM; or use NVML with --source nvml",
        ) from error
    return _Bindings(*modules)
