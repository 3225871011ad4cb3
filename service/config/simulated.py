"""The configuration of a simulated fleet."""

from __future__ import annotations

from typing import Any

from simulator.spec.devices import gpu_type
from simulator.spec.fleets import FleetSpec
from simulator.traffic.degradation import classes_of

PRICE_PER_GPU_HOUR = 2.5  # USD, an on-demand H100 in 2026; shown as a configured price
FIXED_FLEET: dict[str, Any] = {"scaling": {"node_provision": None}}
"""``planner`` of a configuration: no node joins a simulated fleet."""


def degrade_of(spec: FleetSpec) -> dict[str, Any]:
    """Returns ``remediation.degrade`` of a configuration for this fleet: the classes that its clients mark."""
    return {
        "services": {
            service.name: {
                "classes": sorted(set(classes_of(service.tenants))) if service.tenants else [],
                **({"fallback_model": service.fallback_model} if service.fallback_model else {}),
            }
            for service in spec.services
        }
    }


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
