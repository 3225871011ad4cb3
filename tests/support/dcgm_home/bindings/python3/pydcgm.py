"""The classes of NVIDIA's module that Outrider uses, with the same names, arguments and results."""

from types import SimpleNamespace

import host_engine
from dcgm_fields import DCGM_FE_GPU
from dcgm_structs import DCGMError


class DcgmHandle:
    def __init__(self, handle=None, ipAddress=None):
        found = host_engine.state()
        if not found["run"] or ipAddress != "127.0.0.1:5555":
            raise DCGMError("Host engine connection invalid/disconnected.")
        self.handle = found["run"]

    def GetSystem(self):
        return DcgmSystem(self)

    def Shutdown(self):
        host_engine.connected(self.handle)


class DcgmSystem:
    def __init__(self, handle):
        self._handle = handle
        self.discovery = self

    def GetAllSupportedGpuIds(self):
        return [int(gpu) for gpu in host_engine.connected(self._handle.handle)["gpus"]]

    def GetGpuAttributes(self, gpu):
        uuid = host_engine.connected(self._handle.handle)["gpus"][str(gpu)]
        attributes = {"uuid": uuid.encode(), "deviceName": b"NVIDIA H100", "pciBusId": b"00000000:3B:00.0"}
        return SimpleNamespace(identifiers=SimpleNamespace(**attributes, driverVersion=b"580.95.05"))

    def GetGroupWithEntities(self, name, entities):
        return DcgmGroup(self._handle, name, entities)

    def UpdateAllFields(self, wait):
        host_engine.connected(self._handle.handle)


class DcgmFieldGroup:
    def __init__(self, handle, name="", fieldIds=None):
        self.fieldIds = fieldIds


class DcgmGroup:
    def __init__(self, handle, name, entities):
        for one in entities:
            if one.entityGroupId == DCGM_FE_GPU and host_engine.state()["status"].get(str(one.entityId)) == 4:
                raise DCGMError("GPU is lost")
        self._handle = handle
        self._entities = [(one.entityGroupId, one.entityId) for one in entities]
        self.samples = self

    def WatchFields(self, group, microseconds, age, samples):
        found = host_engine.connected(self._handle.handle)
        if any(field >= 1000 for field in group.fieldIds) and not found["profiling"]:
            raise DCGMError("Profiling is not supported for this group of GPUs or GPU")

    def GetLatest_v2(self, group):
        found = host_engine.connected(self._handle.handle)["values"]
        latest = {}
        for kind, entity in self._entities:
            for field in group.fieldIds:
                value = found.get(f"{kind}.{entity}", {}).get(str(field))
                latest.setdefault(kind, {}).setdefault(entity, {})[field] = [_Value(0, value)]
        return SimpleNamespace(values=latest)

    def GetAllSinceLastCall_v2(self, before, group):
        found = host_engine.connected(self._handle.handle)["xids"]
        latest = {}
        for gpu, stamp, code in found if before is not None else found[-1:]:
            latest.setdefault(DCGM_FE_GPU, {}).setdefault(gpu, {}).setdefault(230, []).append(_Value(stamp, code))
        return _Collection(latest)


class _Collection:
    def __init__(self, values):
        self.values = values

    def EmptyValues(self):
        self.values = {}


class _Value:
    def __init__(self, ts, value):
        self.ts, self.value, self.isBlank = ts, value, value is None
