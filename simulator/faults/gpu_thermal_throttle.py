"""gpu-thermal-throttle: a device loses its cooling and lowers its clock to stay alive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.model import EntityKind, EntityRef
from simulator.faults.base import Injection, gpu_place, gpus_of, ramp

if TYPE_CHECKING:
    from simulator.fleet import Fleet

ONSET_SECONDS = 90.0
COOLING_LOSS = 4.5


class GpuThermalThrottle(Injection):
    """Its temperature climbs to the throttle limit, its clock falls, and its whole group gets slower."""

    fault = "gpu-thermal-throttle"
    kind = EntityKind.GPU
    lasts = timedelta(minutes=15)
    symptoms = (
        "hw_accel_temperature_celsius",
        "hw_accel_core_clock_hertz",
        "hw_accel_throttle_thermal_ratio",
        "engine_tpot_seconds",
    )

    @classmethod
    def candidates(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Every device."""
        return gpus_of(fleet, serving=False)

    @classmethod
    def likely(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Devices that serve: an idle one stays cool."""
        return gpus_of(fleet, serving=True)

    def begin(self, fleet: Fleet) -> None:
        """Find the device."""
        self._gpu = gpu_place(fleet, self.truth.entity)

    def hold(self, fleet: Fleet) -> None:
        """The fan slows down over the onset."""
        fleet.gpus.cooling_loss[self._gpu] = 1.0 + COOLING_LOSS * ramp(fleet.at, self._start, ONSET_SECONDS)

    def finish(self, fleet: Fleet) -> None:
        """The fan runs again."""
        fleet.gpus.cooling_loss[self._gpu] = 1.0
