"""Pod of one slot: its phase, its node and its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from simulator.spec.parts import ServiceSpec

FIRST_REVISION = "v1"


class Phase(StrEnum):
    """Phase of a pod. ABSENT: the slot is not in use."""

    ABSENT = "absent"
    PENDING = "pending"
    PULLING = "pulling"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    CRASHED = "crashed"


@dataclass(slots=True)
class Pod:
    """Pod of one slot.

    ``generation`` rises with each new pod, ``restarts`` with each restart of its container, ``process`` with either.
    ``reason`` is the cause of a crash; while ``held`` the pod cannot start again. ``left_seconds`` of its phase remain
    on a healthy node; ``phase_seconds`` are the durations of the phases of its last start (schedule, pull, load, warm).
    ``last_terminated`` is the kubelet's reason for the last container end: Error, OOMKilled or empty.
    """

    slot: int
    name: str
    service: ServiceSpec
    phase: Phase = Phase.ABSENT
    left_seconds: float = 0.0
    moved_at: float = 0.0
    node: int | None = None
    gpus: tuple[int, ...] = ()
    generation: int = 0
    restarts: int = 0
    process: int = 0
    revision: str = FIRST_REVISION
    created_at: float = 0.0
    started_at: float = 0.0
    ready_at: float | None = None
    crashed_at: float | None = None
    reason: str = ""
    held: bool = False
    tries: int = 0
    next_restart: float = 0.0
    last_terminated: str = ""
    ever_ready: bool = False
    unschedulable: bool = False
    phase_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """True if the Kubernetes API lists the pod."""
        return self.phase is not Phase.ABSENT

    @property
    def ready(self) -> bool:
        """True if its engine serves."""
        return self.phase is Phase.READY

    @property
    def waiting_reason(self) -> str:
        """The kubelet's waiting reason of its container; empty if it runs or is not scheduled yet."""
        if self.phase is Phase.CRASHED:
            return "CrashLoopBackOff"
        return "ContainerCreating" if self.phase is Phase.PULLING else ""

    @property
    def startup_seconds(self) -> float | None:
        """Seconds of the engine's last load and warm-up, None before the first one."""
        spent = self.phase_seconds
        return spent.get("load", 0.0) + spent.get("warm", 0.0) if self.ready and "warm" in spent else None
