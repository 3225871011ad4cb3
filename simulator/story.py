"""The demo's fixed story: three faults in fleet time, on entities chosen by the seed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from simulator.faults import Truth, inject

if TYPE_CHECKING:
    from simulator.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Chapter:
    """A fault of the story, ``after`` its start."""

    after: timedelta
    fault: str
    lasts: timedelta


STORY = (
    Chapter(timedelta(minutes=5), "gpu-lost", timedelta(hours=4)),
    Chapter(timedelta(minutes=20), "traffic-surge", timedelta(minutes=12)),
    Chapter(timedelta(minutes=40), "engine-hung", timedelta(minutes=15)),
)


def arrange(fleet: Fleet, seed: int) -> tuple[Truth, ...]:
    """Plans the story from the fleet's current time on; returns the ground truth of each fault in order.

    The surge affects the service with the most replicas. The hung engine belongs to the service without a surge, and is
    not the one with the lost device.
    """
    start = fleet.now
    lost, surge, hung = STORY
    largest = max(fleet.spec.services, key=lambda service: service.replicas)
    calm = next((service for service in fleet.spec.services if service is not largest), largest)
    ready = [pod for pod in fleet.pods.of_service(calm.name) if pod.ready]
    lost_from = [pod for pod in fleet.pods.of_service(largest.name) if pod.ready and pod not in ready[:1]]
    victim = lost_from[seed % len(lost_from)]
    gpu = victim.gpus[seed % len(victim.gpus)]
    stuck = [pod for pod in ready if pod is not victim][seed % len(ready)]
    return (
        inject(fleet, lost.fault, fleet.gpu_uuid(gpu), start + lost.after, lost.lasts, seed),
        inject(fleet, surge.fault, largest.name, start + surge.after, surge.lasts, seed),
        inject(fleet, hung.fault, stuck.name, start + hung.after, hung.lasts, seed),
    )
