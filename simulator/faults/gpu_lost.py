"""gpu-lost: a device falls off the bus (XID 79)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from outrider.model import EntityKind, EntityRef
from simulator.faults.base import Injection, gpu_place, gpus_of

if TYPE_CHECKING:
    from simulator.fleet import Fleet

XID_OFF_THE_BUS = 79
ENGINE_DIES_SECONDS = 2.0
ROWS_VANISH_SECONDS = 20.0


class GpuLost(Injection):
    """The XID shows first, the engine of its group dies, then the device is gone from the exporter's page.

    The pod cannot restart in place before the end (a repair by the operator's hook); deleted, it is
    placed on other devices.
    """

    fault = "gpu-lost"
    kind = EntityKind.GPU
    lasts = timedelta(minutes=40)
    symptoms = ("hw_accel_fault_code", "engine_up", "hw_accel_present", "pod_restarts", "engine_requests_running")

    def __init__(self, entity: EntityRef, start: datetime, duration: timedelta, seed: int) -> None:
        super().__init__(entity, start, duration, seed)
        self._gpu = -1
        self._hit: tuple[int, int] | None = None
        self._why = f"gpu-lost {entity.name}"

    @classmethod
    def candidates(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Every device."""
        return gpus_of(fleet, serving=False)

    @classmethod
    def likely(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Devices that serve."""
        return gpus_of(fleet, serving=True)

    def begin(self, fleet: Fleet) -> None:
        """The driver logs the XID."""
        self._gpu = gpu_place(fleet, self.truth.entity)
        fleet.gpus.xid[self._gpu] = XID_OFF_THE_BUS

    def hold(self, fleet: Fleet) -> None:
        """The engine dies at its next collective; the exporter drops the device when it polls again."""
        if fleet.gpus.healthy[self._gpu] and self.elapsed(fleet) >= ENGINE_DIES_SECONDS:
            slot = fleet.lose_gpu(self._gpu, self._why)
            self._hit = None if slot is None else (slot, fleet.pods.pods[slot].generation)
        if self.elapsed(fleet) >= ROWS_VANISH_SECONDS:
            fleet.gpus.visible[self._gpu] = False

    def finish(self, fleet: Fleet) -> None:
        """A reset brings it back, and with a fresh driver the XID reads 0."""
        fleet.gpus.healthy[self._gpu] = fleet.gpus.visible[self._gpu] = True
        fleet.gpus.xid[self._gpu] = 0
        if self._hit is not None:
            fleet.pods.cure(*self._hit, self._why, fleet.at)
