"""The exception and the entity pair used by callers of NVIDIA's module."""


class DCGMError(Exception):
    pass


class c_dcgmGroupEntityPair_t:
    entityGroupId = 0
    entityId = 0
