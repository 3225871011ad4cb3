"""The simulated fleet with all its parts; only ``step`` advances its time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Protocol

import numpy as np

from outrider.clock import from_unix
from outrider.errors import UsageError
from outrider.model import ActionKind, EntityKind, EntityRef, Floats
from simulator.cluster.autoscaler import Autoscaler
from simulator.cluster.load_balancer import Router
from simulator.cluster.operations import Operations
from simulator.cluster.pods import Pod, Pods
from simulator.cluster.rollouts import Rollouts
from simulator.effects import FleetEffects
from simulator.engine.engine import Conditions, EngineBank, Work
from simulator.hardware import coupling
from simulator.hardware.containers import Containers
from simulator.hardware.gpus import Gpus
from simulator.hardware.kubelet import Kubelets
from simulator.hardware.nodes import Nodes
from simulator.journal import Journal, JournalEntry, JournalSource
from simulator.spec.fleets import FleetSpec, default_spec
from simulator.spec.names import gpu_uuid
from simulator.traffic.arrivals import Arrivals, Traffic
from simulator.traffic.degradation import Degradations

WARM_SECONDS = 180.0
AGE_FACTOR = 960  # the counters of the warm-up are multiplied by this: engines appear two days old


class ActiveFault(Protocol):
    """A fault as the fleet knows it."""

    def advance(self, fleet: Fleet) -> bool:
        """Applies the fault at the fleet's time. Returns True once it is over."""
        ...

    def stop(self, fleet: Fleet) -> None:
        """Ends the fault now and undoes its actions."""
        ...

    def cure(self, fleet: Fleet, action: ActionKind, kind: EntityKind, numbers: np.ndarray) -> bool:
        """Ends its effects if the action on these entities cures it."""
        ...


class Fleet:
    """A cluster of services on GPUs. It starts warm: queues, temperatures and counters in steady state.

    ``now`` advances by ``step`` only. Every random draw comes from ``seed``: the same seed, start and sequence of
    steps, faults and actions give the same fleet. Not thread-safe. ``entry`` is the share of each service's demand that
    this cluster receives, shape (services,); ``stalled`` are the slots whose engine core is hung (bool). ``desired``
    replicas are by service.
    """

    def __init__(self, spec: FleetSpec | None = None, seed: int = 7, start: datetime | None = None) -> None:
        """``start`` must have a time zone; the default is a fixed Wednesday at 10:00 UTC."""
        first = datetime(2026, 11, 18, 10, tzinfo=UTC) if start is None else start
        if first.tzinfo is None:
            raise UsageError("the start of a fleet has no time zone", hint="give it one, such as UTC")
        self.spec = default_spec() if spec is None else spec
        self.seed = seed
        self._at = first.timestamp() - WARM_SECONDS
        self.journal = Journal()
        self.gpus = Gpus(self.spec, seed)
        self.nodes = Nodes(self.spec, seed, self._at)
        self.pods = Pods(self.spec, self.gpus.node, self.gpus.healthy, seed, self.journal)
        self.router = Router(self.pods, self.spec.health_check_seconds, seed)
        self.traffic = Traffic(self.spec, seed)
        self.bank = EngineBank([pod.service.engine for pod in self.pods.pods], seed, self.spec.patience_seconds)
        slots = len(self.pods.pods)
        self.effects = FleetEffects(self.gpus.size, self.nodes.size, slots, len(self.spec.services))
        self.traffic.attend(self.effects.services, self.bank, self.pods.service_of_slot)
        self.containers = Containers(self.pods)
        self.kubelets = Kubelets(self)
        self.rollouts = Rollouts(self)
        self.autoscaler = Autoscaler(self.spec)
        self.operations = Operations(slots, self.nodes.size)
        self.stalled = np.zeros(slots, dtype=bool)
        self.reserved_ratio = np.array([pod.service.engine.memory_reserved_ratio for pod in self.pods.pods])
        self.desired = {service.name: service.replicas for service in self.spec.services}
        self.entry = np.ones(len(self.spec.services))
        self.degradations = Degradations(self.spec.services)
        self.demand: Callable[[float], Floats] = self.traffic.rates
        self.exporters_down: set[str] = set()
        self.injections: list[ActiveFault] = []
        self.after_step: list[Callable[[], None]] = []
        self.requests_per_second = np.zeros(slots)
        self._coreless = np.zeros(slots, dtype=bool)
        self._random = np.random.default_rng([seed, 10])
        self._start_warm(first.timestamp())

    @property
    def now(self) -> datetime:
        """The fleet's time."""
        return from_unix(self._at)

    @property
    def at(self) -> float:
        """The fleet's time in unix seconds."""
        return self._at

    @property
    def cpu_seconds(self) -> Floats:
        """CPU time of each slot's process, shape (slots,)."""
        return self.containers.cpu_seconds

    def step(self, duration: timedelta) -> None:
        """Advances by ``duration``."""
        left = duration.total_seconds()
        while left > 1e-9:
            seconds = min(self.spec.tick_seconds, left)
            self.tick(seconds)
            left -= seconds
        self.notify()

    def notify(self) -> None:
        """Notifies the followers of the fleet that it has advanced."""
        for follower in self.after_step:
            follower()

    # --- used by faults and actions -----------------------------------------------------------------

    def crash(self, slot: int, reason: str, *, held: bool = True, ended: str = "Error") -> None:
        """Ends the engine process of a slot; its requests fail. While ``held`` it stays down (see ``Pods.crash``)."""
        self.pods.crash(slot, self._at, reason, held=held, ended=ended)
        self._forget_engine(slot)

    def restart(self, slot: int) -> None:
        """Deletes the pod of a slot; its controller creates a new one, which starts cold."""
        self._forget_engine(slot)
        self.pods.create(slot, self._at)

    def remove(self, slot: int) -> None:
        """Takes a slot out of use."""
        self._forget_engine(slot)
        self.pods.delete(slot, self._at)

    def scale(self, service: str, replicas: int) -> int:
        """Scales a service and returns its previous replicas. Removes replicas that do not serve, then the newest.

        Raises UsageError for an unknown service, and for more replicas than its ceiling or fewer than 0.
        """
        if not 0 <= replicas <= self.spec.service(service).ceiling:
            most = self.spec.service(service).ceiling
            raise UsageError(f"{service} has a ceiling of {most} replicas", hint=f"give a number from 0 to {most}")
        slots = self.pods.of_service(service)
        present = [pod for pod in slots if pod.exists]
        for pod in [pod for pod in slots if not pod.exists][: max(0, replicas - len(present))]:
            self.pods.create(pod.slot, self._at)
        leaving = sorted(present, key=lambda pod: (pod.ready, -pod.created_at, -pod.slot))
        for pod in leaving[: max(0, len(present) - replicas)]:
            self.remove(pod.slot)
        self.desired[service] = replicas
        return len(present)

    def sleep_engine(self, slot: int) -> None:
        """Puts the engine of a slot to sleep; its weights leave the device, and requests hang."""
        self.operations.sleep(slot, self.pods.pods[slot].process)

    def wake_engine(self, slot: int) -> None:
        """Wakes the engine of a slot, whoever put it to sleep."""
        self.operations.wake(slot)
        self._cure(ActionKind.WAKE_ENGINE, EntityKind.REPLICA, np.array([slot]))

    def reset_gpus(self, gpus: np.ndarray) -> None:
        """Resets devices that no process uses; ends the faults that a reset cures."""
        mask = np.zeros(self.gpus.size, dtype=bool)
        mask[gpus] = True
        self.gpus.reload(mask)
        self._cure(ActionKind.RESET_GPU, EntityKind.GPU, gpus)

    def _cure(self, action: ActionKind, kind: EntityKind, numbers: np.ndarray) -> None:
        for injection in self.injections:
            injection.cure(self, action, kind, numbers)

    def change(self, entity: EntityRef, code: str, text: str, **attributes: str) -> JournalEntry:
        """Writes a change to the journal."""
        return self.journal.write(self._at, JournalSource.CHANGE, entity, code, text, **attributes)

    def rollout(self, service: str, revision: str, *, text: str = "", instantly: bool = False) -> None:
        """Rolls a service out to a revision, pod by pod; ``instantly``: in the running processes, as for a flag.

        Raises UsageError for an unknown service, and if it is already at that revision.
        """
        self.rollouts.begin(self.spec.service(service).name, revision, text=text, instantly=instantly)

    def rollback(self, service: str, *, text: str = "") -> str | None:
        """Rolls a service back to its previous revision and returns its name, None if there is none.

        Raises UsageError for an unknown service.
        """
        return self.rollouts.back(self.spec.service(service).name, text=text)

    def restore(self) -> None:
        """Ends every fault at once and undoes changes of faults and operators: weights, cordons, revisions."""
        for injection in list(self.injections):
            injection.stop(self)
        self.injections.clear()
        self.exporters_down.clear()
        self.effects.reset()
        self.gpus.healthy[:] = self.gpus.visible[:] = True
        self.gpus.xid[:] = 0
        self.router.weights[:] = 1.0
        self.router.balanced[:] = np.nan
        self.degradations.clear()
        self.pods.cordoned[:] = False
        self.rollouts.reset()
        self.operations.reset()
        for service in self.spec.services:
            if self.desired[service.name] != service.replicas:
                self.scale(service.name, service.replicas)
        for pod in self.pods.pods:
            self.pods.cure(pod.slot, pod.generation, pod.reason, self._at)

    # --- lookups ------------------------------------------------------------------------------------

    def pod_named(self, name: str) -> Pod | None:
        """Returns the pod (and replica) of that name, if it exists."""
        slot = self.pods.slot_named.get(name)
        return self.pods.pods[slot] if slot is not None and self.pods.existing[slot] else None

    def gpu_uuid(self, gpu: int) -> str:
        """Returns the UUID of a device, fixed by cluster and index."""
        return gpu_uuid(self.spec.cluster, int(self.gpus.node[gpu]), int(self.gpus.index[gpu]))

    @cached_property
    def gpu_named(self) -> dict[str, int]:
        """The index of each device by its UUID."""
        return {self.gpu_uuid(gpu): gpu for gpu in range(self.gpus.size)}

    @cached_property
    def node_named(self) -> dict[str, int]:
        """The index of each host by its name."""
        return {name: node for node, name in enumerate(self.nodes.names)}

    def node_of(self, entity: EntityRef) -> int | None:
        """Returns the host of a device or pod, or the host itself; None for other entities."""
        if entity.kind is EntityKind.GPU and entity.name in self.gpu_named:
            return int(self.gpus.node[self.gpu_named[entity.name]])
        if entity.name in self.pods.slot_named:
            return self.pods.pods[self.pods.slot_named[entity.name]].node
        return self.node_named.get(entity.name)

    def entity(self, kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
        """Returns an entity of this cluster."""
        return EntityRef(self.spec.cluster, kind, namespace, name)

    # --- internals ----------------------------------------------------------------------------------

    def _start_warm(self, start: float) -> None:
        for service in self.spec.services:
            for pod in self.pods.of_service(service.name)[: service.replicas]:
                self.pods.start_ready(pod.slot, self._at, start - WARM_SECONDS * AGE_FACTOR)
        self.router.assume_ready()
        self.containers.settle()
        for _ in range(round(WARM_SECONDS / self.spec.tick_seconds)):
            self.tick(self.spec.tick_seconds)
        self.bank.counters.scale(AGE_FACTOR)
        self.containers.age(AGE_FACTOR)
        self.gpus.temperature = self.gpus.steady_temperature(self.gpus.power, start)
        self._at = start  # exact, without rounding errors of the steps

    def _forget_engine(self, slot: int) -> None:
        _ = self.traffic.edge  # count its responses before its counters restart
        cut = self.bank.drop(slot)
        self.traffic.unanswered(np.full(cut, self.pods.service_of_slot[slot]))
        self.containers.forget(slot)

    def tick(self, seconds: float) -> None:
        """Advances by one tick of at most ``spec.tick_seconds``, without notification. Call ``step`` instead."""
        self.effects.reset()
        for node in self.operations.booted(self._at):
            self._cure(ActionKind.REBOOT_NODE, EntityKind.NODE, np.array([node]))
            self._cure(ActionKind.REBOOT_NODE, EntityKind.GPU, np.flatnonzero(self.gpus.node == node))
        for injection in list(self.injections):
            if injection.advance(self) and injection in self.injections:
                self.injections.remove(injection)
        self.operations.apply(self.effects, self.pods.process)
        self.kubelets.advance()
        self.rollouts.advance()
        self.pods.advance(self._at, coupling.pace(self))
        self._lose_cores()
        self.stalled = coupling.stalled(self)
        self.router.check_health(self._at, coupling.answering(self))
        rates = self.demand(self._at) * self.entry
        shares = self.router.shares(self.effects)
        conditions, failing = self._conditions(), coupling.failing_ratio(self)
        parts = max(1, round(seconds / self.spec.slice_seconds))
        span = seconds / parts
        works = []
        for part in range(parts):
            begin = self._at + part * span
            self._deliver(begin, span, rates, shares, failing)
            works.append(self.bank.step(begin, span, conditions))
        self._at += seconds
        self.requests_per_second = shares * rates[self.pods.service_of_slot]
        self._advance_hardware(seconds, works)

    def _deliver(self, begin: float, span: float, rates: Floats, shares: Floats, failing: Floats) -> None:
        arrivals = self._admitted(self.traffic.draw(begin, span, rates), begin + span)
        if self.effects.cluster.alive[0] < 0.5:
            self.bank.refuse(len(arrivals))  # the gateway is down as well and counts nothing
            return
        slot = self.router.route(arrivals, shares)
        place = np.maximum(slot, 0)
        there = coupling.on_slots(self, self.effects.nodes.reachable, 1.0) > 0.5
        taken = (slot >= 0) & (self.pods.ready & there)[place]
        self.bank.refuse(int((~taken).sum()))
        self.traffic.unanswered(arrivals.service[~taken])
        coreless = taken & self._coreless[place]
        if coreless.any():
            self.bank.refuse_by_server(slot[coreless])
            taken &= ~coreless
        self.bank.reject(slot[taken & arrivals.bad])
        good = taken & ~arrivals.bad
        cold = self.operations.cold_ratio(begin)[place]
        computed = arrivals.computed + (arrivals.prompt - arrivals.computed) * cold
        if failing.any():
            fails = good & (self._random.random(len(arrivals)) < failing[place])
            self.bank.fail(slot[fails])
            good &= ~fails
        self.traffic.accepted(arrivals.selected(good))
        self.bank.accept(
            slot[good],
            arrivals.at[good],
            arrivals.prompt[good],
            computed[good],
            arrivals.output[good],
            arrivals.aborts_at[good],
        )

    def _admitted(self, arrivals: Arrivals, end: float) -> Arrivals:
        """Returns the requests that the gateway passes on until ``end``; it rejects others with 429, or holds them."""
        levels = self.degradations
        if not levels.active or self.effects.cluster.alive[0] < 0.5:
            return arrivals
        rejected = levels.rejected(arrivals)
        self.traffic.rejected(arrivals.service[rejected])
        self.bank.refuse(int(rejected.sum()))
        return levels.passed(arrivals.selected(~rejected), end)

    def _lose_cores(self) -> None:
        """Fails the requests in flight when a core dies behind its HTTP server."""
        coreless = (self.effects.slots.core_dead > 0.5) & self.pods.ready
        for slot in np.flatnonzero(coreless & ~self._coreless).tolist():
            self._forget_engine(slot)
        self._coreless = coreless

    def _conditions(self) -> Conditions:
        """Returns the current conditions of the engines."""
        effects = self.effects.slots
        return Conditions(
            slow=coupling.stretch(self) * self.degradations.step_factor[self.pods.service_of_slot],
            prefill=effects.prefill_factor,
            kv=effects.kv_factor,
            batch=effects.batch_factor,
            stalled=self.stalled,
            transfer_failures=effects.kv_transfer_failures_per_second,
        )

    def _advance_hardware(self, seconds: float, works: list[Work]) -> None:
        work, load = coupling.device_work(self, works)
        self.gpus.advance(self._at, seconds, work, load, self.effects.gpus, self._fans())
        self.containers.advance(seconds, self.stalled, self.effects.slots)
        self.nodes.advance(seconds, coupling.host_work(self), self.effects.nodes)
        self.autoscaler.advance(seconds, self.desired, self.effects.services)

    def _fans(self) -> Floats:
        """Returns the factor of device heat due to reduced air flow, shape (gpus,)."""
        return 1.0 / np.maximum(self.effects.nodes.fan_factor, 0.1)[self.gpus.node]
