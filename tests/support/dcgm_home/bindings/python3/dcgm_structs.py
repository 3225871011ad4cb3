"""The exception and the pair that callers of NVIDIA's module use."""


class DCGMError(Exception):
    pass


class c_dcgmGroupEntityPair_t:
    entityGroupId = 0
    entityId = 0
