"""The fleet: everything together, moved by ``step`` and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from outrider.clock import from_unix
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, Floats
from simulator.engine import Conditions, EngineBank, Work
from simulator.gpus import Activity, Gpus, activity
from simulator.journal import Journal
from simulator.levers import Levers
from simulator.names import gpu_uuid
from simulator.nodes import Nodes
from simulator.pods import Phase, Pod, Pods
from simulator.routing import Router
from simulator.spec import FleetSpec, default_spec
from simulator.table import group_sum
from simulator.traffic import Traffic

if TYPE_CHECKING:
    from simulator.faults.base import Injection

TICK_SECONDS = 1.0
WARM_SECONDS = 180.0
AGE_FACTOR = 960  # the counters of the warm-up are multiplied by this: engines look two days old
LOADED_RATIO = {Phase.READY: 1.0, Phase.WARMING: 1.0, Phase.LOADING: 0.45}


class Fleet:
    """A cluster of services on GPUs. It starts warm: queues, temperatures and counters in steady state.

    ``now`` moves by ``step`` only. Every random draw comes from ``seed``: the same seed, start and
    sequence of steps, faults and actions give the same fleet. Not safe for use by two threads at once.
    """

    def __init__(self, spec: FleetSpec | None = None, seed: int = 7, start: datetime | None = None) -> None:
        """``start`` must be aware; the default is a fixed Wednesday at 10:00 UTC."""
        first = datetime(2026, 11, 18, 10, tzinfo=UTC) if start is None else start
        if first.tzinfo is None:
            raise UsageError("a fleet starts at an aware datetime", hint="give it a time zone, such as UTC")
        self.spec = default_spec() if spec is None else spec
        self.seed = seed
        self._at = first.timestamp() - WARM_SECONDS
        self.gpus = Gpus(self.spec, seed)
        self.nodes = Nodes(self.spec, seed, self._at)
        self.pods = Pods(self.spec, self.gpus.node, self.gpus.healthy, seed)
        self.router = Router(self.pods, self.spec.health_check_seconds, seed)
        self.traffic = Traffic(self.spec, seed)
        self.bank = EngineBank([pod.service.engine for pod in self.pods.pods], seed, self.spec.patience_seconds)
        slots = len(self.pods.pods)
        self.levers = Levers(self.gpus.size, self.nodes.size, slots, len(self.spec.services))
        of_slot = np.array([self.spec.services.index(pod.service) for pod in self.pods.pods], dtype=np.int64)
        self.traffic.attend(self.levers.services, self.bank, of_slot)
        self.journal = Journal()
        self.hung = np.zeros(slots, dtype=bool)
        self.hung_since = np.zeros(slots)
        self.cpu_seconds = np.zeros(slots)
        self.desired = {service.name: service.replicas for service in self.spec.services}
        self.exporters_down: set[str] = set()
        self.injections: list[Injection] = []
        self.after_step: list[Callable[[], None]] = []
        self.requests_per_second = np.zeros(slots)
        self._max_batch = self.bank.max_sequences
        self._start_warm(first.timestamp())

    @property
    def now(self) -> datetime:
        """The fleet's instant."""
        return from_unix(self._at)

    @property
    def at(self) -> float:
        """The fleet's instant in unix seconds."""
        return self._at

    def step(self, duration: timedelta) -> None:
        """Move on by ``duration``."""
        left = duration.total_seconds()
        while left > 1e-9:
            seconds = min(TICK_SECONDS, left)
            self._tick(seconds)
            left -= seconds
        for told in self.after_step:
            told()

    # --- what faults and actions do to it -----------------------------------------------------------

    def crash(self, slot: int, why: str) -> None:
        """The engine process of a slot dies; its requests fail."""
        self.pods.crash(slot, self._at, why)
        self._forget_engine(slot)

    def hang(self, slot: int) -> None:
        """The engine core of a slot stands still; its HTTP server goes on."""
        if self.pods.pods[slot].ready and not self.hung[slot]:
            self.hung[slot], self.hung_since[slot] = True, self._at

    def unhang(self, slot: int) -> None:
        """The engine core goes on where it stopped, with everything that came meanwhile in its queue."""
        if self.hung[slot]:
            self.hung[slot] = False
            self.bank.release(slot, self._at, self._at - self.hung_since[slot])

    def restart(self, slot: int) -> None:
        """Delete the pod of a slot; its controller makes a new one, which starts cold."""
        self._forget_engine(slot)
        self.pods.create(slot, self._at)

    def remove(self, slot: int) -> None:
        """Take a slot out of use."""
        self._forget_engine(slot)
        self.pods.delete(slot)

    def lose_gpu(self, gpu: int, why: str) -> int | None:
        """A device falls off the bus; the slot of the engine that used it, None when it was free."""
        self.gpus.healthy[gpu] = False
        slot = int(self.pods.owner[gpu])
        if slot < 0:
            return None
        self.crash(slot, why)
        return slot

    # --- who is who ---------------------------------------------------------------------------------

    def pod_named(self, name: str) -> Pod | None:
        """The pod (and replica) of that name, if it exists."""
        return next((pod for pod in self.pods.pods if pod.name == name and pod.exists), None)

    def gpu_uuid(self, gpu: int) -> str:
        """The UUID of a device: fixed by cluster and place."""
        return gpu_uuid(self.spec.cluster, int(self.gpus.node[gpu]), int(self.gpus.index[gpu]))

    def entity(self, kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
        """An entity of this cluster."""
        return EntityRef(self.spec.cluster, kind, namespace, name)

    # --- inside -------------------------------------------------------------------------------------

    def _start_warm(self, start: float) -> None:
        for service in self.spec.services:
            for pod in self.pods.of_service(service.name)[: service.replicas]:
                self.pods.start_ready(pod.slot, self._at, start - WARM_SECONDS * AGE_FACTOR)
        for _ in range(round(WARM_SECONDS / TICK_SECONDS)):
            self._tick(TICK_SECONDS)
        self.bank.counters.scale(AGE_FACTOR)
        self.cpu_seconds *= AGE_FACTOR
        self.gpus.temperature = self.gpus.steady_temperature(self.gpus.power, start)
        self._at = start  # whole seconds again, whatever the additions left

    def _forget_engine(self, slot: int) -> None:
        _ = self.traffic.edge  # what it has answered is counted before its counters start anew
        cut = self.bank.drop(slot)
        self.traffic.unanswered(np.full(cut, self.spec.services.index(self.pods.pods[slot].service)))
        self.hung[slot] = False
        self.cpu_seconds[slot] = 0.0

    def _tick(self, seconds: float) -> None:
        self.levers.reset()
        for injection in list(self.injections):
            if injection.advance(self):
                self.injections.remove(injection)
        self.pods.advance(self._at)
        rates = self.traffic.rates(self._at)
        shares = self.router.shares(self._at)
        ready = np.array([pod.ready for pod in self.pods.pods])
        slow = self._slow()
        parts = max(1, round(seconds / self.spec.slice_seconds))
        span = seconds / parts
        works = []
        for part in range(parts):
            begin = self._at + part * span
            self._deliver(begin, span, rates, shares, ready)
            works.append(self.bank.step(begin, span, self._conditions(slow)))
        self._at += seconds
        self._advance_hardware(seconds, works, ready, shares, rates)

    def _deliver(self, begin: float, span: float, rates: Floats, shares: Floats, ready: np.ndarray) -> None:
        arrivals = self.traffic.draw(begin, span, rates)
        slot = self.router.route(arrivals, shares)
        taken = (slot >= 0) & ready[np.maximum(slot, 0)]
        self.bank.refuse(int((~taken).sum()))
        self.traffic.unanswered(arrivals.service[~taken])
        self.bank.reject(slot[taken & arrivals.bad])
        good = taken & ~arrivals.bad
        self.bank.accept(
            slot[good],
            arrivals.at[good],
            arrivals.prompt[good],
            arrivals.computed[good],
            arrivals.output[good],
            arrivals.aborts_at[good],
        )

    def _conditions(self, slow: Floats) -> Conditions:
        """What bends the engines now."""
        lever = self.levers.slots
        still = self.hung | (lever.hung > 0.5) | (lever.core_dead > 0.5) | (lever.asleep > 0.5)
        return Conditions(
            slow=slow * lever.step_factor,
            prefill=lever.prefill_factor,
            kv=lever.kv_factor,
            batch=lever.batch_factor,
            stalled=still,
            transfer_failures=lever.kv_transfer_failures_per_second,
        )

    def _slow(self) -> Floats:
        """A tensor-parallel group runs at the pace of its slowest device."""
        slow = np.ones(self.bank.size)
        used = self.pods.owner >= 0
        np.maximum.at(slow, self.pods.owner[used], self.gpus.slow[used])
        return slow

    def _advance_hardware(
        self, seconds: float, works: list[Work], ready: np.ndarray, shares: Floats, rates: Floats
    ) -> None:
        def mean(name: str) -> Floats:
            return np.asarray(np.mean([getattr(work, name) for work in works], axis=0), dtype=np.float64)

        def on_gpus(values: Floats) -> Floats:
            return np.where(self.pods.owner >= 0, values[np.maximum(self.pods.owner, 0)], 0.0)

        batch, busy = mean("batch"), mean("busy_ratio") * ready
        shown = activity(batch, self._max_batch, mean("prefill_ratio"), busy)
        tokens = mean("tokens_per_second") + mean("prompt_tokens_per_second")
        loaded = np.array(
            [LOADED_RATIO.get(pod.phase, 0.0) * pod.service.engine.memory_reserved_ratio for pod in self.pods.pods]
        )
        self.gpus.advance(
            self._at,
            seconds,
            Activity(
                on_gpus(shown.utilization),
                on_gpus(shown.tensor),
                on_gpus(shown.memory_bandwidth),
                on_gpus(shown.power_share),
            ),
            on_gpus(loaded),
            on_gpus(tokens),
        )
        by_service = np.array([self.spec.services.index(pod.service) for pod in self.pods.pods])
        self.requests_per_second = shares * rates[by_service]
        self.cpu_seconds += seconds * ready * np.where(self.hung, 0.02, 0.9)
        self._advance_nodes(seconds, ready)

    def _advance_nodes(self, seconds: float, ready: np.ndarray) -> None:
        placed = [pod for pod in self.pods.pods if pod.node is not None]
        where = np.array([pod.node for pod in placed], dtype=np.int64)
        slots = np.array([pod.slot for pod in placed], dtype=np.int64)
        loading = np.array([pod.phase is Phase.LOADING for pod in placed], dtype=np.float64)
        size = self.nodes.size
        self.nodes.advance(
            seconds,
            group_sum(where, self.requests_per_second[slots], size),
            group_sum(where, ready[slots].astype(np.float64), size),
            group_sum(where, loading, size),
        )
