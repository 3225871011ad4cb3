"""Which library an agent reads its devices with."""

from __future__ import annotations

from collections.abc import Callable

from collectors.accelerators.dcgm import Dcgm
from collectors.accelerators.nvml import Nvml
from collectors.accelerators.snapshot import AcceleratorsUnavailableError, Reader
from outrider import log
from outrider.clock import Clock


def opener(source: str, clock: Clock) -> Callable[[], Reader]:
    """How to open ``nvml``, ``dcgm``, or with ``auto`` whichever answers, DCGM first."""
    if source == "dcgm":
        return lambda: Dcgm(clock)
    return (lambda: _best(clock)) if source == "auto" else lambda: Nvml(clock)


def _best(clock: Clock) -> Reader:
    """DCGM brings profiling on every board since Volta; NVML is there wherever the driver is."""
    try:
        found = Dcgm(clock)
        found.read()
    except AcceleratorsUnavailableError as error:
        log.get("agent").info("reads_nvml", because=error.message)
        return Nvml(clock)
    return found
