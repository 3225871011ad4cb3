"""Specification of a fleet: engines, traffic, tenants, services, pools, start-up times.

Everything is frozen and hashable, so that engine profiles can be cached by their specification. Constructors reject an
invalid specification.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outrider.errors import UsageError
from simulator.spec.devices import GPU_TYPES
from simulator.spec.devices import gpu_type as find_gpu_type
from simulator.spec.trace import Trace

ENGINE_KINDS = ("vllm", "sglang", "tgi", "triton", "mindie")


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Timing model of one vLLM replica.

    A step takes ``step_seconds + step_per_sequence_seconds * batch + step_per_context_token_seconds * context``. Each
    uncached prompt token computed in it adds ``prefill_per_token_seconds``, and ``prefill_per_token_pair_seconds`` for
    each token before it, at most ``token_budget`` tokens a step (chunked prefill). ``front_seconds`` pass before the
    scheduler gets a request (HTTP, tokenizer).
    """

    model: str
    step_seconds: float
    step_per_sequence_seconds: float
    step_per_context_token_seconds: float
    prefill_per_token_seconds: float
    max_sequences: int
    token_budget: int
    kv_blocks: int
    max_model_length: int
    block_size: int = 16
    memory_reserved_ratio: float = 0.92
    prefill_per_token_pair_seconds: float = 0.0
    front_seconds: float = 0.0

    def on(self, gpu_type: str) -> EngineModel:
        """Returns this model, given for an H100, on another device. Raises UsageError for an unknown device."""
        kind = find_gpu_type(gpu_type)
        return replace(
            self,
            step_seconds=self.step_seconds / kind.decode_speed,
            step_per_sequence_seconds=self.step_per_sequence_seconds / kind.decode_speed,
            step_per_context_token_seconds=self.step_per_context_token_seconds / kind.decode_speed,
            prefill_per_token_seconds=self.prefill_per_token_seconds / kind.prefill_speed,
            prefill_per_token_pair_seconds=self.prefill_per_token_pair_seconds / kind.prefill_speed,
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal prompt and output lengths in tokens, and the prefix-cached share of a prompt."""

    prompt_mean: float
    prompt_sigma: float
    output_mean: float
    output_sigma: float
    cached_ratio: float


@dataclass(frozen=True, slots=True)
class TrafficSpec:
    """Load of a service: ``peak_ratio`` of its capacity at the daily peak, with a shape around it.

    ``trough_ratio`` and ``weekend_ratio`` are relative to the peak. ``noise_ratio`` is the standard deviation of the
    slow noise on top; arrivals are Poisson around the total. ``shape`` is a name of
    ``simulator.traffic.shapes.SHAPES``. The event of a shape (a launch, a holiday, a wave) starts at ``event_at`` (unix
    seconds; None: once a week, by the seed), takes ``event_seconds`` and has the strength ``event_factor``; None means
    the default of the shape. ``trace`` is replayed by shape ``trace``.
    """

    peak_ratio: float = 0.66
    trough_ratio: float = 0.36
    weekend_ratio: float = 0.78
    peak_hour: float = 14.5
    noise_ratio: float = 0.025
    shape: str = "weekly"
    event_at: float | None = None
    event_seconds: float | None = None
    event_factor: float | None = None
    trace: Trace | None = None

    def __post_init__(self) -> None:
        """Rejects a load of 0 or less."""
        if not self.peak_ratio > 0:
            raise UsageError(
                f"peak_ratio {self.peak_ratio:g} is not above 0", hint="give a peak_ratio above 0, such as 0.66"
            )


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """Tenant that sends ``share`` of a service's requests (relative to the others' shares).

    ``lengths`` None: those of the service. Engines with priorities serve a smaller ``priority`` first.
    """

    name: str
    share: float
    lengths: Lengths | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A model service: ``replicas`` run at the start, ``ceiling`` is the maximum.

    ``gpu_type`` is the only device type it is placed on, any if empty. ``max_unavailable`` is the number of replicas
    that a rolling update may take down at once. ``fallback_model`` is the smaller model that its replicas can serve
    instead, with steps of ``fallback_step_factor`` times the length; empty for none.
    """

    name: str
    engine: EngineModel
    lengths: Lengths
    tensor_parallel: int
    replicas: int
    ceiling: int
    traffic: TrafficSpec = field(default_factory=TrafficSpec)
    namespace: str = "serving"
    tenants: tuple[TenantSpec, ...] = ()
    engine_kind: str = "vllm"
    gpu_type: str = ""
    max_unavailable: int = 1
    fallback_model: str = ""
    fallback_step_factor: float = 0.5

    def __post_init__(self) -> None:
        """Rejects an invalid service."""
        if self.engine_kind not in ENGINE_KINDS:
            raise UsageError(
                f"service {self.name} has an unknown engine {self.engine_kind!r}",
                hint=f"engines: {', '.join(ENGINE_KINDS)}",
            )
        if self.replicas < 1 or self.ceiling < self.replicas:
            raise UsageError(
                f"service {self.name} has {self.replicas} replicas and a ceiling of {self.ceiling}",
                hint="give it 1 replica or more, and a ceiling of at least as many",
            )
        if self.tensor_parallel < 1:
            raise UsageError(
                f"service {self.name} has groups of {self.tensor_parallel} GPUs", hint="give tensor_parallel 1 or more"
            )

    def capacity_per_second(self, replicas: int | None = None) -> float:
        """Returns the requests/s that ``replicas`` (default: those at the start) sustain with full batches.

        Little's law at a full batch: N = rate x output x step / (1 - rate x prefill), solved for the rate.
        """
        engine, lengths = self.engine, self.lengths
        batch = min(
            engine.max_sequences,
            engine.kv_blocks * engine.block_size / (lengths.prompt_mean + lengths.output_mean / 2),
        )
        context = batch * (lengths.prompt_mean + lengths.output_mean / 2)
        step = (
            engine.step_seconds
            + engine.step_per_sequence_seconds * batch
            + engine.step_per_context_token_seconds * context
        )
        prefill = lengths.prompt_mean * (1 - lengths.cached_ratio) * engine.prefill_per_token_seconds
        per_replica = batch / (lengths.output_mean * step + batch * prefill)
        return per_replica * (self.replicas if replicas is None else replicas)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Nodes of one kind, in racks of ``nodes_per_rack``, with weights from one ``storage``."""

    name: str
    gpu_type: str
    nodes: int
    gpus_per_node: int = 8
    cpus: int = 32
    memory_bytes: float = 2.0e12
    nodes_per_rack: int = 4
    storage: str = "models-0"

    def __post_init__(self) -> None:
        """Rejects an empty pool and unknown devices."""
        if self.gpu_type not in GPU_TYPES:
            raise UsageError(
                f"pool {self.name} has GPUs of an unknown type {self.gpu_type!r}",
                hint=f"known: {', '.join(GPU_TYPES)}",
            )
        if self.nodes < 1 or self.gpus_per_node < 1 or self.nodes_per_rack < 1:
            raise UsageError(
                f"pool {self.name} has no GPUs",
                hint="give it 1 node or more, each with 1 GPU or more, in racks of 1 or more",
            )


@dataclass(frozen=True, slots=True)
class StartupSpec:
    """Seconds of each phase of a cold start, with a relative scatter of ``scatter_ratio``."""

    schedule_seconds: float = 4.0
    pull_seconds: float = 32.0
    load_seconds: float = 118.0
    warm_seconds: float = 56.0
    scatter_ratio: float = 0.12

    @property
    def total_seconds(self) -> float:
        """Mean seconds from scale-out to the first served request."""
        return self.schedule_seconds + self.pull_seconds + self.load_seconds + self.warm_seconds


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A whole fleet. ``patience_seconds``: client timeout for the first token.

    ``slice_seconds`` is the interval at which engines get new requests and conditions; within it every step is exact.
    ``tick_seconds`` is the interval at which faults, pods, routing and devices advance. ``prefix`` starts the names of
    nodes, racks and storages, so that two clusters have different names.
    """

    cluster: str
    pools: tuple[PoolSpec, ...]
    services: tuple[ServiceSpec, ...]
    startup: StartupSpec = field(default_factory=StartupSpec)
    patience_seconds: float = 120.0
    health_check_seconds: float = 5.0
    slice_seconds: float = 0.5
    tick_seconds: float = 1.0
    prefix: str = ""

    def __post_init__(self) -> None:
        """Rejects a fleet whose services do not fit."""
        if not self.pools or not self.services:
            missing = "GPUs" if not self.pools else "services"
            raise UsageError(f"fleet {self.cluster} has no {missing}", hint="give it a pool and a service or more")
        _reject_duplicates("pool", [pool.name for pool in self.pools])
        _reject_duplicates("service", [service.name for service in self.services])
        for service in self.services:
            self._reject_unplaceable(service)
        for kind in {service.gpu_type for service in self.services}:
            homes = self.pools_of(kind)
            needed = sum(
                service.replicas * service.tensor_parallel for service in self.services if service.gpu_type == kind
            )
            if needed > sum(pool.nodes * pool.gpus_per_node for pool in homes):
                raise UsageError(
                    f"the services of fleet {self.cluster} need {needed} {kind or 'GPU'} devices, more than it has",
                    hint="give it more nodes, or its services fewer replicas",
                )

    @property
    def gpus(self) -> int:
        """Number of devices."""
        return sum(pool.nodes * pool.gpus_per_node for pool in self.pools)

    def pools_of(self, gpu_type: str) -> tuple[PoolSpec, ...]:
        """Returns the pools with devices of a type; all for an empty type."""
        return tuple(pool for pool in self.pools if gpu_type in ("", pool.gpu_type))

    def _reject_unplaceable(self, service: ServiceSpec) -> None:
        homes = self.pools_of(service.gpu_type)
        if not homes:
            raise UsageError(
                f"service {service.name} needs {service.gpu_type!r}, which no pool of fleet {self.cluster} has",
                hint=f"its pools have: {', '.join(sorted({pool.gpu_type for pool in self.pools}))}",
            )
        if len({pool.gpu_type for pool in homes}) > 1:
            raise UsageError(
                f"service {service.name} has no gpu_type, but fleet {self.cluster} has several GPU types",
                hint="give it a gpu_type: engine step times apply to one type",
            )
        largest = max(pool.gpus_per_node for pool in homes)
        if service.tensor_parallel > largest:
            raise UsageError(
                f"service {service.name} has groups of {service.tensor_parallel} GPUs, its nodes have {largest}",
                hint="a tensor-parallel group needs one node",
            )

    def service(self, name: str) -> ServiceSpec:
        """Returns the service of a name. Raises UsageError if it is unknown."""
        for service in self.services:
            if service.name == name:
                return service
        known = ", ".join(service.name for service in self.services)
        raise UsageError(f"the fleet has no service {name!r}", hint=f"its services are: {known}")


def _reject_duplicates(noun: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"the fleet has two {noun}s called {twice}", hint=f"give each {noun} its own name")
