"""exporter-down: the dcgm-exporter of a node is gone; its devices and engines are fine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.model import EntityKind, EntityRef
from simulator.faults.base import Injection

if TYPE_CHECKING:
    from simulator.fleet import Fleet


class ExporterDown(Injection):
    """Connections to one exporter are refused."""

    fault = "exporter-down"
    kind = EntityKind.NODE
    lasts = timedelta(minutes=10)
    symptoms = ("target_up",)

    @classmethod
    def candidates(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Every node."""
        return [fleet.entity(EntityKind.NODE, name) for name in fleet.nodes.names]

    def begin(self, fleet: Fleet) -> None:
        """Stop it."""
        fleet.exporters_down.add(f"dcgm-{self.truth.entity.name}")

    def finish(self, fleet: Fleet) -> None:
        """Start it."""
        fleet.exporters_down.discard(f"dcgm-{self.truth.entity.name}")
