"""The configuration of a simulated fleet."""

from __future__ import annotations

from typing import Any

from simulator.spec.devices import gpu_type
from simulator.spec.fleets import FleetSpec

PRICE_PER_GPU_HOUR = 2.5  # USD, an on-demand H100 in 2026; shown as a configured price


def services_of(spec: FleetSpec) -> list[dict[str, Any]]:
    """Returns ``services`` of a configuration for this fleet."""
    return [
        {
            "name": service.name,
            "namespace": service.namespace,
            "gpu_type": gpu_type(service.gpu_type or spec.pools[0].gpu_type).short,
            "tensor_parallel": service.tensor_parallel,
            "floor": min(2, service.replicas),
            "ceiling": service.ceiling,
            "startup": f"{spec.startup.total_seconds:.0f}s",
            "price_per_gpu_hour": PRICE_PER_GPU_HOUR,
        }
        for service in spec.services
    ]
