"""The two functions of NVIDIA's module that Outrider calls directly, without pydcgm."""

from types import SimpleNamespace

import host_engine


def dcgmGetGpuStatus(handle, gpu):
    return host_engine.connected(handle)["status"].get(str(gpu), 1)


def dcgmGetGpuInstanceHierarchy(handle):
    parts = host_engine.connected(handle)["instances"]
    listed = [
        SimpleNamespace(
            entity=SimpleNamespace(entityGroupId=4, entityId=entity),
            parent=SimpleNamespace(entityGroupId=1, entityId=gpu),
            info=SimpleNamespace(nvmlInstanceId=number, nvmlProfileSlices=slices),
        )
        for entity, gpu, number, slices in parts
    ]
    return SimpleNamespace(count=len(listed), entityList=[*listed, *[None] * 3])
