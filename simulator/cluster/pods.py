"""Pods of model servers: placement on GPUs, cold start in phases, crashes and restarts.

A slot is a replica that may exist: slot i of the fleet has one pod name, one replica name and one row in the engine
bank, permanently. The scheduler packs: a pod goes to the fullest schedulable node that still has enough healthy free
GPUs. Common values of all pods are also kept in arrays, updated with every change, to avoid a loop per tick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, Floats
from simulator.cluster.pod import Phase, Pod
from simulator.journal import Journal, JournalSource
from simulator.spec.parts import FleetSpec

__all__ = ["BACKOFF_SECONDS", "Phase", "Pod", "Pods", "StartupFactors"]

BACKOFF_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
FORGIVEN_SECONDS = 600.0  # a container that ran this long resets its back-off
LOADED_RATIO = {Phase.READY: 1.0, Phase.WARMING: 1.0, Phase.LOADING: 0.45}
FAILS_AT_RATIO = 0.3  # of the default loading time, if weights cannot be loaded
LEAST_SECONDS = 0.1  # of any phase
_RUNNING = (Phase.LOADING, Phase.WARMING, Phase.READY)
_SPENT = {Phase.PENDING: "schedule", Phase.PULLING: "pull", Phase.LOADING: "load", Phase.WARMING: "warm"}


@dataclass(frozen=True, slots=True)
class StartupFactors:
    """Factors of pull and load times, and slots whose load fails; each of shape (slots,)."""

    pull: Floats
    load: Floats
    fails: np.ndarray


class Pods:
    """All slots of a fleet. ``cordoned`` is per node, ``healthy`` per GPU (shared with the devices).

    ``blocked`` nodes take no new pods although they are not cordoned; kubelets on ``dark`` nodes do nothing. Arrays of
    shape (slots,): ``ready``, ``existing`` (bool), ``node_of_slot`` (-1: not placed), ``service_of_slot`` (index into
    the spec), ``group`` (GPUs of a replica), ``loaded_ratio`` (of the engine's device memory), ``loading`` (True while
    it reads weights), ``crashed_at``, ``process``.
    """

    def __init__(
        self, spec: FleetSpec, node_of_gpu: np.ndarray, healthy: np.ndarray, seed: int, journal: Journal | None = None
    ) -> None:
        """The scheduler and the kubelets write to ``journal``."""
        self.spec = spec
        self.node_of_gpu = node_of_gpu
        self.healthy = healthy
        self.journal = journal
        self.nodes = int(node_of_gpu.max()) + 1
        self.cordoned = np.zeros(self.nodes, dtype=bool)
        self.blocked = np.zeros(self.nodes, dtype=bool)
        self.dark = np.zeros(self.nodes, dtype=bool)
        self.owner = np.full(node_of_gpu.size, -1, dtype=np.int64)
        self.node_names = [f"{spec.prefix}node-{number}" for number in range(self.nodes)]
        self.revisions = {service.name: Pod(0, "", service).revision for service in spec.services}
        self.pods = [
            Pod(0, f"{service.name}-{number}", service)
            for service in spec.services
            for number in range(service.ceiling)
        ]
        for slot, pod in enumerate(self.pods):
            pod.slot = slot
        self.slot_named = {pod.name: pod.slot for pod in self.pods}
        self._of_service: dict[str, list[Pod]] = {service.name: [] for service in spec.services}
        for pod in self.pods:
            self._of_service[pod.service.name].append(pod)
        kinds = [pool.gpu_type for pool in spec.pools for _ in range(pool.nodes)]
        self._fits = {name: np.array([name in ("", kind) for kind in kinds]) for name in ("", *kinds)}
        self._random = np.random.default_rng([seed, 4])
        self._active: set[int] = set()
        self._start_arrays(len(self.pods))

    def _start_arrays(self, slots: int) -> None:
        number = {service.name: index for index, service in enumerate(self.spec.services)}
        self.service_of_slot = np.array([number[pod.service.name] for pod in self.pods], dtype=np.int64)
        self.group = np.array([pod.service.tensor_parallel for pod in self.pods], dtype=np.int64)
        self.ready = np.zeros(slots, dtype=bool)
        self.existing = np.zeros(slots, dtype=bool)
        self.loading = np.zeros(slots, dtype=bool)
        self.node_of_slot = np.full(slots, -1, dtype=np.int64)
        self.loaded_ratio = np.zeros(slots)
        self.crashed_at = np.full(slots, -np.inf)
        self.process = np.zeros(slots, dtype=np.int64)

    def of_service(self, name: str) -> list[Pod]:
        """Returns the slots of a service, in use or not. Raises KeyError if there is no such service."""
        return self._of_service[name]

    def on_node(self, node: int) -> list[Pod]:
        """Returns the pods on a node."""
        return [self.pods[slot] for slot in np.flatnonzero(self.node_of_slot == node).tolist()]

    def start_ready(self, slot: int, at: float, started_at: float) -> None:
        """Places a pod as if it had run for a long time. Raises UsageError if it does not fit."""
        pod, startup = self.pods[slot], self.spec.startup
        if not self._place(pod):
            raise UsageError(
                f"replica {pod.name}: no node with {pod.service.tensor_parallel} free GPUs",
                hint="a tensor-parallel group needs one node: add nodes to the fleet, or reduce replicas",
            )
        pod.phase, pod.generation, pod.ever_ready, pod.process = Phase.READY, 1, True, 1
        pod.created_at = pod.started_at = started_at - startup.total_seconds
        pod.ready_at, pod.moved_at = started_at, at
        pod.phase_seconds = {
            "schedule": startup.schedule_seconds,
            "pull": startup.pull_seconds,
            "load": self._lasts(startup.load_seconds),
            "warm": self._lasts(startup.warm_seconds),
        }
        self._update_arrays(pod)

    def create(self, slot: int, at: float) -> None:
        """Creates a pod for the slot with its service's revision. It starts with scheduling, pull, load and warm-up."""
        pod = self.pods[slot]
        self._stop(pod, at)
        pod.phase, pod.generation, pod.process = Phase.PENDING, pod.generation + 1, pod.process + 1
        pod.revision = self.revisions[pod.service.name]
        pod.created_at, pod.ready_at, pod.crashed_at, pod.restarts, pod.tries = at, None, None, 0, 0
        pod.reason, pod.held, pod.last_terminated, pod.unschedulable = "", False, "", False
        pod.left_seconds, pod.moved_at = self._lasts(self.spec.startup.schedule_seconds), at
        pod.phase_seconds = {}
        self._update_arrays(pod)

    def delete(self, slot: int, at: float) -> None:
        """Takes the slot out of use."""
        pod = self.pods[slot]
        self._stop(pod, at)
        pod.phase, pod.ready_at, pod.ever_ready, pod.reason, pod.held = Phase.ABSENT, None, False, "", False
        self._update_arrays(pod)

    def crash(self, slot: int, at: float, reason: str, *, held: bool = True, ended: str = "Error") -> None:
        """Ends the container's process. While ``held`` it stays down until ``cure`` is called with the same reason.

        Otherwise it starts after its back-off, if its devices are healthy.
        """
        pod = self.pods[slot]
        if pod.ready_at is not None and at - pod.ready_at > FORGIVEN_SECONDS:
            pod.tries = 0
        pod.phase, pod.crashed_at, pod.reason, pod.held, pod.ready_at = Phase.CRASHED, at, reason, held, None
        pod.last_terminated = ended
        pod.next_restart = at + BACKOFF_SECONDS[min(pod.tries, len(BACKOFF_SECONDS) - 1)]
        pod.tries += 1
        self._update_arrays(pod)

    def cure(self, slot: int, generation: int, reason: str, at: float) -> None:
        """Clears the reason that kept this generation of the pod down: the kubelet's next restart succeeds."""
        pod = self.pods[slot]
        if pod.phase is Phase.CRASHED and pod.generation == generation and pod.reason == reason:
            self._restart_in_place(pod, at)

    def advance(self, at: float, pace: StartupFactors | None = None) -> list[int]:
        """Advances every pod to ``at``; returns the slots whose engine became ready."""
        became_ready = []
        for slot in sorted(self._active):
            pod = self.pods[slot]
            if pod.node is not None and self.dark[pod.node]:
                pod.moved_at = at
                continue
            if pod.phase is Phase.CRASHED:
                self._back_off(pod, at)
            if pod.phase is not Phase.CRASHED:
                self._start_up(pod, at, pace)
            if pod.ready:
                became_ready.append(slot)
        return became_ready

    def free_gpus(self) -> np.ndarray:
        """Healthy unowned GPUs of each schedulable node."""
        free = (self.owner < 0) & self.healthy & ~(self.cordoned | self.blocked)[self.node_of_gpu]
        return np.bincount(self.node_of_gpu[free], minlength=self.nodes)

    def write(self, pod: Pod, at: float, code: str, text: str, kind: str = "Normal") -> None:
        """Writes an event of the scheduler or the kubelet about a pod."""
        if self.journal is not None:
            about = EntityRef(self.spec.cluster, EntityKind.POD, pod.service.namespace, pod.name)
            self.journal.write(at, JournalSource.KUBERNETES, about, code, text, type=kind)

    # --- internals ----------------------------------------------------------------------------------

    def _update_arrays(self, pod: Pod) -> None:
        """Updates the arrays after a change of a pod."""
        slot = pod.slot
        self.ready[slot], self.existing[slot] = pod.ready, pod.exists
        self.loading[slot] = pod.phase is Phase.LOADING
        self.loaded_ratio[slot] = LOADED_RATIO.get(pod.phase, 0.0)
        self.node_of_slot[slot] = -1 if pod.node is None else pod.node
        self.crashed_at[slot] = -np.inf if pod.phase is not Phase.CRASHED else pod.crashed_at
        self.process[slot] = pod.process
        if pod.phase in (Phase.READY, Phase.ABSENT):
            self._active.discard(slot)
        else:
            self._active.add(slot)

    def _start_up(self, pod: Pod, at: float, pace: StartupFactors | None) -> None:
        while pod.moved_at < at and pod.phase in _SPENT:
            factor, most = 1.0, np.inf
            if pace is not None and pod.phase is Phase.PULLING:
                factor = float(pace.pull[pod.slot])
            elif pace is not None and pod.phase is Phase.LOADING:
                factor = float(pace.load[pod.slot])
                if pace.fails[pod.slot]:
                    most = FAILS_AT_RATIO * self.spec.startup.load_seconds * factor
            elapsed = min(at - pod.moved_at, pod.left_seconds * factor)
            word = _SPENT[pod.phase]
            pod.phase_seconds[word] = pod.phase_seconds.get(word, 0.0) + elapsed
            pod.left_seconds -= elapsed / factor
            pod.moved_at += elapsed
            if pod.phase_seconds[word] >= most:
                self.crash(pod.slot, pod.moved_at, "load-failed", held=False)
            elif pod.left_seconds <= 1e-9:
                self._next_phase(pod)

    def _next_phase(self, pod: Pod) -> None:
        startup, at = self.spec.startup, pod.moved_at
        if pod.phase is Phase.PENDING:
            waits = pod.unschedulable
            if not self._place(pod):
                if not waits:
                    reason = f"0/{self.nodes} nodes are available: {self.nodes} Insufficient nvidia.com/gpu."
                    self.write(pod, at, "FailedScheduling", reason, "Warning")
                pod.left_seconds = max(startup.schedule_seconds, LEAST_SECONDS)
                return
            pod.phase, pod.left_seconds = Phase.PULLING, self._lasts(startup.pull_seconds)
            where = self.node_names[pod.node or 0]
            self.write(pod, at, "Scheduled", f"Successfully assigned {pod.service.namespace}/{pod.name} to {where}")
        elif pod.phase is Phase.PULLING:
            self.write(pod, at, "Pulled", f"Successfully pulled image in {pod.phase_seconds['pull']:.3f}s")
            self._start_process(pod, at)
        elif pod.phase is Phase.LOADING:
            pod.phase, pod.left_seconds = Phase.WARMING, self._lasts(startup.warm_seconds)
        else:
            pod.phase, pod.ready_at, pod.ever_ready = Phase.READY, at, True
        self._update_arrays(pod)

    def _start_process(self, pod: Pod, at: float) -> None:
        """Starts the container; its engine loads the weights."""
        pod.started_at, pod.reason, pod.held, pod.crashed_at = at, "", False, None
        pod.phase, pod.moved_at = Phase.LOADING, at
        pod.left_seconds = self._lasts(self.spec.startup.load_seconds)
        pod.phase_seconds = {name: spent for name, spent in pod.phase_seconds.items() if name in ("schedule", "pull")}
        self.write(pod, at, "Started", "Started container vllm")

    def _place(self, pod: Pod) -> bool:
        need = pod.service.tensor_parallel
        free = np.where(self._fits[pod.service.gpu_type], self.free_gpus(), 0)
        fitting = np.flatnonzero(free >= need)
        pod.unschedulable = fitting.size == 0
        if pod.unschedulable:
            return False
        node = int(fitting[np.argmin(free[fitting])])
        available = np.flatnonzero((self.owner < 0) & self.healthy & (self.node_of_gpu == node))[:need]
        self.owner[available] = pod.slot
        pod.node, pod.gpus = node, tuple(int(gpu) for gpu in available)
        return True

    def _stop(self, pod: Pod, at: float) -> None:
        """Stops the running container and logs it, if its kubelet responds."""
        if pod.node is not None and pod.phase in _RUNNING and not self.dark[pod.node]:
            self.write(pod, at, "Killing", "Stopping container vllm")
        self.owner[list(pod.gpus)] = -1
        pod.node, pod.gpus = None, ()

    def _back_off(self, pod: Pod, at: float) -> None:
        """Retries the start at growing intervals, as the kubelet does."""
        while pod.phase is Phase.CRASHED and pod.next_restart <= at:
            if not pod.held and self.healthy[list(pod.gpus)].all():
                self._restart_in_place(pod, pod.next_restart)
                return
            pod.restarts += 1
            pod.next_restart += BACKOFF_SECONDS[min(pod.tries, len(BACKOFF_SECONDS) - 1)]
            pod.tries += 1
            self.write(pod, at, "BackOff", f"Back-off restarting failed container vllm in pod {pod.name}", "Warning")

    def _restart_in_place(self, pod: Pod, at: float) -> None:
        pod.restarts, pod.process = pod.restarts + 1, pod.process + 1
        self._start_process(pod, at)
        self._update_arrays(pod)

    def _lasts(self, mean: float) -> float:
        scatter = self.spec.startup.scatter_ratio
        return max(LEAST_SECONDS, float(mean * np.clip(self._random.normal(1.0, scatter), 0.6, 1.6)))
