"""Pods of model servers: placement on GPUs, cold start in phases, crashes and restarts.

A slot is a replica that may exist: slot i of the fleet has one pod name, one replica name and one
row in the engine bank for ever. The scheduler packs: a pod goes to the fullest schedulable node that
still has enough healthy free GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from simulator.spec import FleetSpec, ServiceSpec

BACKOFF_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)


class Phase(StrEnum):
    """Where a pod is in its life. ABSENT: the slot is not in use."""

    ABSENT = "absent"
    PENDING = "pending"
    PULLING = "pulling"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    CRASHED = "crashed"


@dataclass(slots=True)
class Pod:
    """One slot's pod. ``until`` is when its phase ends; ``why`` is what keeps a crashed one down."""

    slot: int
    name: str
    service: ServiceSpec
    phase: Phase = Phase.ABSENT
    until: float = 0.0
    node: int | None = None
    gpus: tuple[int, ...] = ()
    generation: int = 0
    restarts: int = 0
    created_at: float = 0.0
    started_at: float = 0.0
    ready_at: float | None = None
    crashed_at: float | None = None
    why: str = ""
    next_restart: float = 0.0
    ever_ready: bool = False
    unschedulable: bool = False

    @property
    def exists(self) -> bool:
        """True when Kubernetes knows the pod."""
        return self.phase is not Phase.ABSENT

    @property
    def ready(self) -> bool:
        """True when its engine serves."""
        return self.phase is Phase.READY


class Pods:
    """Every slot of a fleet. ``cordoned`` is per node, ``healthy`` per GPU (shared with the devices)."""

    def __init__(self, spec: FleetSpec, node_of_gpu: np.ndarray, healthy: np.ndarray, seed: int) -> None:
        self.spec = spec
        self.node_of_gpu = node_of_gpu
        self.healthy = healthy
        self.nodes = int(node_of_gpu.max()) + 1
        self.cordoned = np.zeros(self.nodes, dtype=bool)
        self.owner = np.full(node_of_gpu.size, -1, dtype=np.int64)
        self.pods = [
            Pod(0, f"{service.name}-{number}", service)
            for service in spec.services
            for number in range(service.ceiling)
        ]
        for slot, pod in enumerate(self.pods):
            pod.slot = slot
        self._random = np.random.default_rng([seed, 4])

    def of_service(self, name: str) -> list[Pod]:
        """The slots of a service, used or not."""
        return [pod for pod in self.pods if pod.service.name == name]

    def start_ready(self, slot: int, at: float, started_at: float) -> None:
        """Put a pod in place as if it had run for long."""
        pod = self.pods[slot]
        self._place(pod)
        pod.phase, pod.generation, pod.ever_ready = Phase.READY, 1, True
        pod.created_at = pod.started_at = started_at - self.spec.startup.total_seconds
        pod.ready_at = started_at
        pod.until = at

    def create(self, slot: int, at: float) -> None:
        """A new pod for the slot: it must be scheduled, pulled, loaded and warmed."""
        pod = self.pods[slot]
        self._release(pod)
        pod.phase, pod.generation = Phase.PENDING, pod.generation + 1
        pod.created_at, pod.ready_at, pod.crashed_at, pod.why, pod.restarts = at, None, None, "", 0
        pod.until = at + self._lasts(self.spec.startup.schedule_seconds)

    def delete(self, slot: int) -> None:
        """The slot is no longer used."""
        pod = self.pods[slot]
        self._release(pod)
        pod.phase, pod.ready_at, pod.ever_ready, pod.why = Phase.ABSENT, None, False, ""

    def crash(self, slot: int, at: float, why: str) -> None:
        """The container's process died; it stays down until ``cure`` is called with the same reason."""
        pod = self.pods[slot]
        pod.phase, pod.crashed_at, pod.why, pod.ready_at = Phase.CRASHED, at, why, None
        pod.next_restart = at + BACKOFF_SECONDS[0]

    def cure(self, slot: int, generation: int, why: str, at: float) -> None:
        """What kept this generation of the pod down is over: the kubelet's next restart succeeds."""
        pod = self.pods[slot]
        if pod.phase is Phase.CRASHED and pod.generation == generation and pod.why == why:
            self._restart_in_place(pod, at)

    def advance(self, at: float) -> list[int]:
        """Move every pod on to ``at``; the slots whose engine came up."""
        came_up = []
        for pod in self.pods:
            if pod.phase in (Phase.READY, Phase.ABSENT):
                continue
            if pod.phase is Phase.CRASHED:
                self._back_off(pod, at)
                continue
            while not pod.ready and pod.until <= at:
                self._next_phase(pod)
            if pod.ready:
                came_up.append(pod.slot)
        return came_up

    def free_gpus(self) -> np.ndarray:
        """Healthy unowned GPUs of each schedulable node."""
        free = (self.owner < 0) & self.healthy & ~self.cordoned[self.node_of_gpu]
        return np.bincount(self.node_of_gpu[free], minlength=self.nodes)

    def _next_phase(self, pod: Pod) -> None:
        startup = self.spec.startup
        if pod.phase is Phase.PENDING:
            if not self._place(pod):
                pod.until += startup.schedule_seconds
                return
            pod.phase, pod.until = Phase.PULLING, pod.until + self._lasts(startup.pull_seconds)
        elif pod.phase is Phase.PULLING:
            pod.started_at = pod.until
            pod.phase, pod.until = Phase.LOADING, pod.until + self._lasts(startup.load_seconds)
        elif pod.phase is Phase.LOADING:
            pod.phase, pod.until = Phase.WARMING, pod.until + self._lasts(startup.warm_seconds)
        else:
            pod.phase, pod.ready_at, pod.ever_ready = Phase.READY, pod.until, True

    def _place(self, pod: Pod) -> bool:
        need = pod.service.tensor_parallel
        free = self.free_gpus()
        fitting = np.flatnonzero(free >= need)
        pod.unschedulable = fitting.size == 0
        if pod.unschedulable:
            return False
        node = int(fitting[np.argmin(free[fitting])])
        available = np.flatnonzero((self.owner < 0) & self.healthy & (self.node_of_gpu == node))[:need]
        self.owner[available] = pod.slot
        pod.node, pod.gpus = node, tuple(int(gpu) for gpu in available)
        return True

    def _release(self, pod: Pod) -> None:
        self.owner[self.owner == pod.slot] = -1
        pod.node, pod.gpus = None, ()

    def _back_off(self, pod: Pod, at: float) -> None:
        """The kubelet tries again and again, at growing intervals."""
        while pod.next_restart <= at:
            pod.restarts += 1
            pod.next_restart += BACKOFF_SECONDS[min(pod.restarts, len(BACKOFF_SECONDS) - 1)]

    def _restart_in_place(self, pod: Pod, at: float) -> None:
        pod.restarts += 1
        pod.started_at, pod.why = at, ""
        pod.phase, pod.until = Phase.LOADING, at + self._lasts(self.spec.startup.load_seconds)

    def _lasts(self, mean: float) -> float:
        scatter = self.spec.startup.scatter_ratio
        return float(mean * np.clip(self._random.normal(1.0, scatter), 0.6, 1.6))
