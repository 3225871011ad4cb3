"""Library that an agent reads its devices with: DCGM or NVML."""

from __future__ import annotations

from collections.abc import Callable

from collectors.accelerators.dcgm import Dcgm
from collectors.accelerators.nvml import Nvml
from collectors.accelerators.snapshot import AcceleratorsUnavailableError, Reader
from outrider import log
from outrider.clock import Clock


def opener(source: str, clock: Clock) -> Callable[[], Reader]:
    """Returns the function that opens ``nvml``, ``dcgm``, or for ``auto`` the first that responds, DCGM first."""
    if source == "dcgm":
        return lambda: Dcgm(clock)
    return (lambda: _best(clock)) if source == "auto" else lambda: Nvml(clock)


def _best(clock: Clock) -> Reader:
    """Prefers DCGM: it has profiling metrics since Volta. NVML is part of every driver."""
    try:
        reader = Dcgm(clock)
        reader.read()
    except AcceleratorsUnavailableError as error:
        log.get("agent").info("reads_nvml", because=error.message)
        return Nvml(clock)
    return reader
