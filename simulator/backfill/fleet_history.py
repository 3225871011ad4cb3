"""History of a fleet as blocks: the values that collecting it would have stored.

It has no faults; launches and holidays are in the load shapes, rollouts and restarts are included with ``maintenance``.
Levels follow the traffic and the profile of each engine; counts are drawn as in the live fleet. A gauge that is a rate
covers the last 15 s of its step, as in a scrape; a delta covers the whole step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.clock import from_unix
from outrider.model import (
    SUM_BUCKET,
    CellStatus,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Floats,
    SignalKey,
    SignalKind,
    Statuses,
)
from outrider.vocabulary import catalog
from simulator.backfill.replica_profile import SAMPLE_SECONDS, Profile, profile
from simulator.cluster.pods import Pod, Pods
from simulator.hardware.gpus import Gpus, ambient_celsius
from simulator.hardware.nodes import Nodes, steady_cpu, steady_memory_available
from simulator.maintenance import MaintenanceTask, planned, under_maintenance
from simulator.spec.fleets import FleetSpec, ServiceSpec
from simulator.spec.names import gpu_uuid
from simulator.traffic.arrivals import rates

BLOCK = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class HistoryBlock:
    """Values of shape (entities, times, keys), with unix ``times``; ``status`` is PRESENT or UNDEFINED."""

    kind: EntityKind
    times: Floats
    keys: tuple[SignalKey, ...]
    entities: tuple[EntityRef, ...]
    values: Floats
    status: Statuses


def backfill(
    spec: FleetSpec,
    seed: int,
    start: datetime,
    end: datetime,
    step: timedelta = timedelta(minutes=5),
    *,
    maintenance: bool = False,
) -> Iterator[HistoryBlock]:
    """Yields the history in [start, end) on a grid of ``step``, by day and entity kind, oldest first.

    Kinds: service, replica, gpu and node. The same seed gives the same history, and entities are those of
    ``Fleet(spec, seed)``. With ``maintenance``, replicas are down during planned rollouts and restarts: ABSENT cells,
    engine_up 0, and no increase in their first step after that. ``events`` returns these rollouts and restarts.
    """
    grid = np.arange(start.timestamp(), end.timestamp(), step.total_seconds())
    longest = (1 + max(service.replicas for service in spec.services)) * spec.startup.total_seconds
    before = start.timestamp() - longest  # a rollout that started earlier may still be running
    past = _History(spec, seed, planned(spec, seed, before, end.timestamp()) if maintenance else ())
    per_block = max(1, round(BLOCK / step))
    for number in range(0, grid.size, per_block):
        yield from past.blocks(grid[number : number + per_block], step.total_seconds())


def events(spec: FleetSpec, seed: int, start: datetime, end: datetime) -> tuple[Event, ...]:
    """Returns the planned rollouts and restarts in [start, end) as platform events."""
    result = []
    for task in planned(spec, seed, start.timestamp(), end.timestamp()):
        service = spec.service(task.service)
        if task.replica is None:
            kind, code, about = EventKind.CHANGE, "rollout", (EntityKind.SERVICE, service.name)
        else:
            kind, code, about = EventKind.KUBERNETES, "Killing", (EntityKind.POD, f"{service.name}-{task.replica}")
        entity = EntityRef(spec.cluster, about[0], service.namespace, about[1])
        key = f"{entity.key}/{code}/{task.at:.0f}"
        result.append(Event(key, kind, entity, from_unix(task.at), kind.value, code, {}, key))
    return tuple(result)


class _History:
    def __init__(self, spec: FleetSpec, seed: int, tasks: Sequence[MaintenanceTask]) -> None:
        self._spec, self._seed, self._actions = spec, seed, tasks
        self._gpus = Gpus(spec, seed)
        self._nodes = Nodes(spec, seed, 0.0)
        self._pods = Pods(spec, self._gpus.node, self._gpus.healthy, seed)
        for service in spec.services:
            for pod in self._pods.of_service(service.name)[: service.replicas]:
                self._pods.start_ready(pod.slot, 0.0, 0.0)
        self._ready = [pod for pod in self._pods.pods if pod.ready]

    def blocks(self, times: Floats, step: float) -> Iterator[HistoryBlock]:
        """Yields one block of each kind."""
        random = np.random.default_rng([self._seed, 8, int(times[0])])
        services, replicas, names, node_rate = [], [], [], np.zeros((self._nodes.size, times.size))
        absent: list[np.ndarray] = []
        gpu_values = self._idle_gpus(times)
        for service in self._spec.services:
            pods = [pod for pod in self._ready if pod.service is service]
            gone = under_maintenance(self._spec, service.name, self._actions, times)
            drawn = _SampledLoad.draw(service, ~gone, times, step, self._seed, random)
            replicas += [_replica_columns(drawn, place, step) for place in range(len(pods))]
            absent.append(gone)
            services.append(_service_columns(drawn, step))
            for place, pod in enumerate(pods):
                node_rate[pod.node] += drawn.load * drawn.up[place]
                index = np.array(pod.gpus)
                busy = self._gpu_columns(pod, drawn, times, random)
                gpu_values[index] = np.where(drawn.up[place][None, :, None], busy, gpu_values[index])
            names += [self._ref(EntityKind.REPLICA, pod.name, service.namespace) for pod in pods]
        of_services = [self._ref(EntityKind.SERVICE, s.name, s.namespace) for s in self._spec.services]
        yield _block(EntityKind.SERVICE, times, of_services, services)
        yield _without(_block(EntityKind.REPLICA, times, names, replicas), np.concatenate(absent))
        yield self._gpu_block(times, gpu_values)
        yield self._node_block(times, node_rate, random)

    def _ref(self, kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
        return EntityRef(self._spec.cluster, kind, namespace, name)

    def _idle_gpus(self, times: Floats) -> Floats:
        gpus = self._gpus
        values = np.zeros((gpus.size, times.size, len(_GPU_KEYS)))
        values[:, :, 2] = (4.0 / gpus.memory)[:, None]
        values[:, :, 3] = ambient_celsius(times) + (2.0 + gpus.offset + gpus.kelvin_per_watt * gpus.idle)[:, None]
        values[:, :, 4] = gpus.idle[:, None]
        return values

    def _gpu_columns(self, pod: Pod, drawn: _SampledLoad, times: Floats, random: np.random.Generator) -> Floats:
        """Returns utilization, tensor activity, memory ratio, temperature and power of a pod's devices."""
        gpus, index = self._gpus, np.array(pod.gpus)
        shape = (index.size, times.size)
        values = np.empty((*shape, len(_GPU_KEYS)))
        # Devices of one group work in lockstep: one draw for all, plus sensor noise.
        common = random.standard_normal(times.size)
        sensor = 1.0 + random.normal(0.0, 0.008, shape)
        for column, name in ((0, "utilization"), (1, "tensor")):
            level = drawn.at(name, "mean") + common * drawn.at(name, "spread")
            values[:, :, column] = np.clip(level * sensor, 0.0, 1.0)
        share = np.clip(drawn.at("power_share", "mean") + common * drawn.at("power_share", "spread"), 0.0, 1.0)
        power = (gpus.idle[index, None] + (gpus.limit - gpus.idle)[index, None] * share) * sensor
        # The heat sink averages over a minute: the temperature follows the mean, not the sample.
        warm = gpus.idle[index, None] + (gpus.limit - gpus.idle)[index, None] * drawn.at("power_share", "mean")
        memory_share = pod.service.engine.memory_reserved_ratio - gpus.spread[index] / gpus.memory[index]
        values[:, :, 2] = memory_share[:, None]
        values[:, :, 3] = ambient_celsius(times) + (2.0 + gpus.offset[index])[:, None]
        values[:, :, 3] += gpus.kelvin_per_watt[index, None] * warm
        values[:, :, 3] += random.normal(0.0, 0.4, shape)
        values[:, :, 4] = power
        return values

    def _gpu_block(self, times: Floats, values: Floats) -> HistoryBlock:
        gpus = self._gpus
        shown = values.copy()
        shown[:, :, 0] = np.round(values[:, :, 0], 2)  # pages show whole percent and whole degrees
        shown[:, :, 3] = np.rint(values[:, :, 3])
        names = [
            self._ref(EntityKind.GPU, gpu_uuid(self._spec.cluster, int(node), int(index)))
            for node, index in zip(gpus.node, gpus.index, strict=True)
        ]
        return HistoryBlock(
            EntityKind.GPU, times, _GPU_KEYS, tuple(names), shown, np.zeros(shown.shape, dtype=np.uint8)
        )

    def _node_block(self, times: Floats, rate: Floats, random: np.random.Generator) -> HistoryBlock:
        pods = np.zeros(self._nodes.size)
        for pod in self._ready:
            pods[pod.node] += 1
        noise = random.normal(0.0, 0.004, (2, *rate.shape))
        cpu = np.clip(steady_cpu(rate, pods[:, None]) + noise[0], 0.005, 1.0)
        memory = np.clip(steady_memory_available(pods)[:, None] + noise[1] * 0.5, 0.02, 1.0)
        values = np.stack([cpu, memory], axis=2)
        names = [self._ref(EntityKind.NODE, name) for name in self._nodes.names]
        return HistoryBlock(
            EntityKind.NODE, times, _NODE_KEYS, tuple(names), values, np.zeros(values.shape, dtype=np.uint8)
        )


@dataclass(frozen=True, slots=True)
class _SampledLoad:
    """Load of a service's replicas in every step: arrays of shape (replicas, times)."""

    up: np.ndarray  # bool: the replica serves
    load: Floats  # requests/s of each serving replica, (times,)
    shape: Profile
    requests: Floats
    last: Floats  # requests of the last sample
    tokens: Floats  # generated per second in the last sample
    generated: Floats  # generated in the step
    running: Floats
    waiting: Floats
    kv: Floats
    ttft: Floats  # (replicas, times, buckets)
    tpot: Floats  # of the service, (times, buckets)
    e2e: Floats

    @staticmethod
    def draw(
        service: ServiceSpec, up: np.ndarray, times: Floats, step: float, seed: int, random: np.random.Generator
    ) -> _SampledLoad:
        """Draws every step of a service; serving replicas share the total load."""
        shape, size = profile(service), up.shape
        load = rates(service, times, seed) / np.maximum(up.sum(axis=0), 1)
        sample = min(SAMPLE_SECONDS, step)
        serves = up.astype(np.float64)
        last = np.asarray(random.poisson(load * sample, size) * serves, dtype=np.float64)
        requests = last + random.poisson(load * (step - sample), size) * serves
        tokens = shape.mean_at("tokens", load) + shape.spread_at("tokens", load) * random.standard_normal(size)
        running = shape.mean_at("running", load) + shape.spread_at("running", load) * random.standard_normal(size)
        running = np.clip(np.rint(running), 0.0, service.engine.max_sequences) * serves
        kv = shape.mean_at("kv", load) * running / np.maximum(shape.mean_at("running", load), 1e-9)
        total = requests.sum(axis=0).astype(np.int64)
        return _SampledLoad(
            up=up,
            load=load,
            shape=shape,
            requests=requests,
            last=last,
            tokens=np.maximum(tokens, 0.0) * serves,
            generated=np.rint(requests * shape.mean_at("tokens", load) / np.maximum(load, 1e-9)),
            running=running,
            waiting=np.asarray(random.poisson(shape.mean_at("waiting", load), size) * serves, dtype=np.float64),
            kv=np.clip(kv, 0.0, 1.0),
            ttft=random.multinomial(requests.astype(np.int64), shape.buckets_at("ttft", load)).astype(np.float64),
            tpot=random.multinomial(total, shape.buckets_at("tpot", load)).astype(np.float64),
            e2e=random.multinomial(total, shape.buckets_at("e2e", load)).astype(np.float64),
        )

    def at(self, name: str, statistic: str) -> Floats:
        """Returns a curve of the profile at one replica's load, (times,)."""
        return (self.shape.mean_at if statistic == "mean" else self.shape.spread_at)(name, self.load)

    def sum_of(self, name: str, counts: Floats) -> Floats:
        """Returns the sum of a histogram with ``counts`` requests."""
        per_request = np.interp(self.load, self.shape.rates, self.shape.per_request[name])
        return np.asarray(counts * per_request, dtype=np.float64)


Columns = dict[SignalKey, Floats]
_GPU_KEYS = tuple(
    SignalKey(name)
    for name in (
        "hw_accel_utilization_ratio",
        "hw_accel_tensor_active_ratio",
        "hw_accel_memory_used_ratio",
        "hw_accel_temperature_celsius",
        "hw_accel_power_watts",
    )
)
_INCREASES = (SignalKind.DELTA, SignalKind.HISTOGRAM)
_RATES = ("engine_generation_tokens_per_second", "engine_requests_per_second")
_NODE_KEYS = (SignalKey("node_cpu_utilization_ratio"), SignalKey("node_memory_available_ratio"))


def _service_columns(drawn: _SampledLoad, step: float) -> Columns:
    requests = drawn.requests.sum(axis=0)
    ready = drawn.up.sum(axis=0).astype(np.float64)
    result = {
        SignalKey("svc_requests_per_second"): drawn.last.sum(axis=0) / min(SAMPLE_SECONDS, step),
        SignalKey("svc_requests_total"): requests,
        SignalKey("svc_failed_total"): np.zeros(requests.shape),
        SignalKey("svc_success_ratio"): np.where(requests > 0, 1.0, np.nan),
        SignalKey("svc_generation_tokens_total"): drawn.generated.sum(axis=0),
        SignalKey("svc_tokens_per_second"): drawn.tokens.sum(axis=0),
        SignalKey("svc_inflight_requests"): (drawn.running + drawn.waiting).sum(axis=0),
        SignalKey("svc_queue_requests"): drawn.waiting.sum(axis=0),
        SignalKey("svc_ready_backends"): ready,
    }
    result |= _histogram("svc_ttft_seconds", drawn.ttft.sum(axis=0), drawn.sum_of("ttft", requests))
    result |= _histogram("svc_tpot_seconds", drawn.tpot, drawn.sum_of("tpot", requests))
    return result | _histogram("svc_latency_seconds", drawn.e2e, drawn.sum_of("e2e", requests))


def _replica_columns(drawn: _SampledLoad, place: int, step: float) -> Columns:
    prompt = drawn.at("prompt_tokens", "mean")
    result = {
        SignalKey("engine_up"): np.ones(prompt.shape),
        SignalKey("engine_requests_running"): drawn.running[place],
        SignalKey("engine_requests_waiting"): drawn.waiting[place],
        SignalKey("engine_inflight_requests"): drawn.running[place] + drawn.waiting[place],
        SignalKey("engine_kv_cache_usage_ratio"): drawn.kv[place],
        SignalKey("engine_generation_tokens_per_second"): drawn.tokens[place],
        SignalKey("engine_generation_tokens_total"): drawn.generated[place],
        SignalKey("engine_requests_per_second"): drawn.last[place] / min(SAMPLE_SECONDS, step),
        SignalKey("engine_requests_finished_total"): drawn.requests[place],
    }
    counts = drawn.ttft[place]
    return result | _histogram("engine_ttft_seconds", counts, drawn.sum_of("ttft", drawn.requests[place]))


def _histogram(name: str, counts: Floats, total: Floats) -> Columns:
    result: Columns = {}
    for key in catalog.signal(name).bucket_keys:
        result[key] = total if key.bucket == SUM_BUCKET else counts[:, key.bucket or 0]
    return result


def _block(kind: EntityKind, times: Floats, names: Sequence[EntityRef], columns: Sequence[Columns]) -> HistoryBlock:
    keys = tuple(columns[0])
    values = np.stack([np.stack([mine[key] for key in keys], axis=1) for mine in columns])
    status = np.where(np.isnan(values), CellStatus.UNDEFINED, CellStatus.PRESENT).astype(np.uint8)
    return HistoryBlock(kind, times, keys, tuple(names), values, status)


def _without(block: HistoryBlock, gone: np.ndarray) -> HistoryBlock:
    """Removes the values of replicas that are down (``gone``, shape (replicas, times))."""
    if not gone.any():
        return block
    values, status = block.values, block.status
    up = block.keys.index(SignalKey("engine_up"))
    first = np.zeros_like(gone)
    first[:, 1:] = gone[:, :-1] & ~gone[:, 1:]
    counted = np.array([catalog.signal(key.name).kind in _INCREASES or key.name in _RATES for key in block.keys])
    values[gone], status[gone] = np.nan, CellStatus.ABSENT
    values[gone, up], status[gone, up] = 0.0, CellStatus.PRESENT
    values[first[:, :, None] & counted], status[first[:, :, None] & counted] = np.nan, CellStatus.RESET
    return block
