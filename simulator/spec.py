"""What a fleet consists of: GPU types, engines, services, pools, start-up times.

Everything is frozen and hashable, so that profiles of an engine can be cached by its description.
The constants are priors for a plausible fleet, sized from public figures (H100 TP2 serving a 70 B
model: 1,294 output tokens/s at batch <= 64; weights of tens of GB load in 0.5 to 2 minutes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from outrider.errors import UsageError

if TYPE_CHECKING:
    from simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class GpuType:
    """A device model. ``clock_megahertz`` is the boost clock it holds while it is cool."""

    name: str
    memory_mebibytes: int
    idle_watts: float
    limit_watts: float
    clock_megahertz: float
    memory_clock_megahertz: float
    throttle_celsius: float


GPU_TYPES = {
    gpu.name: gpu
    for gpu in (
        GpuType("NVIDIA H100 80GB HBM3", 81559, 72.0, 700.0, 1980.0, 2619.0, 84.0),
        GpuType("NVIDIA A100-SXM4-80GB", 81920, 60.0, 400.0, 1410.0, 1593.0, 82.0),
    )
}


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How one vLLM replica behaves.

    A decode step takes ``step_seconds + step_per_sequence_seconds * batch +
    step_per_context_token_seconds * context``; a prompt token that is not cached adds
    ``prefill_per_token_seconds``, at most ``token_budget`` tokens a step (chunked prefill).
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


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal prompt and output lengths in tokens, and the share of a prompt found in the prefix cache."""

    prompt_mean: float
    prompt_sigma: float
    output_mean: float
    output_sigma: float
    cached_ratio: float


@dataclass(frozen=True, slots=True)
class TrafficSpec:
    """A service's load: ``peak_ratio`` of its capacity at the daily peak, with a shape around it.

    ``trough_ratio`` and ``weekend_ratio`` are relative to the peak. ``noise_ratio`` is the standard
    deviation of the slow noise on top; arrivals are Poisson around all of that. ``shape`` is a name of
    ``simulator.shapes.SHAPES``. What a shape is named after (a launch, a holiday, a wave) begins at
    ``event_at`` (unix seconds; None: once in every week, when the seed says), takes ``event_seconds``
    and is ``event_factor`` strong; None leaves both to the shape. ``trace`` is what shape ``trace`` replays.
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


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """Who sends a part of a service's requests: ``share`` of them (relative to the others' shares).

    ``lengths`` None: those of the service. A smaller ``priority`` is served first by engines that know priorities.
    """

    name: str
    share: float
    lengths: Lengths | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A model service: ``replicas`` run at the start, ``ceiling`` is the most it may ever have."""

    name: str
    engine: EngineModel
    lengths: Lengths
    tensor_parallel: int
    replicas: int
    ceiling: int
    traffic: TrafficSpec = field(default_factory=TrafficSpec)
    namespace: str = "serving"
    tenants: tuple[TenantSpec, ...] = ()

    def capacity_per_second(self, replicas: int | None = None) -> float:
        """Requests per second that ``replicas`` (default: those at the start) sustain with full batches.

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
    """Nodes of one kind."""

    name: str
    gpu_type: str
    nodes: int
    gpus_per_node: int = 8
    cpus: int = 32
    memory_bytes: float = 2.0e12


@dataclass(frozen=True, slots=True)
class StartupSpec:
    """Seconds of each phase of a cold start; each start scatters them by ``scatter_ratio``."""

    schedule_seconds: float = 4.0
    pull_seconds: float = 32.0
    load_seconds: float = 118.0
    warm_seconds: float = 56.0
    scatter_ratio: float = 0.12

    @property
    def total_seconds(self) -> float:
        """Mean time from the order to the first served request."""
        return self.schedule_seconds + self.pull_seconds + self.load_seconds + self.warm_seconds


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A whole fleet. ``patience_seconds``: a client that has no first token by then goes away.

    ``slice_seconds`` is the grain of the engine model: within it a request's times are exact,
    while a freed batch slot is refilled at the next slice.
    """

    cluster: str
    pools: tuple[PoolSpec, ...]
    services: tuple[ServiceSpec, ...]
    startup: StartupSpec = field(default_factory=StartupSpec)
    patience_seconds: float = 120.0
    health_check_seconds: float = 5.0
    slice_seconds: float = 0.5

    def service(self, name: str) -> ServiceSpec:
        """The service of that name. Raises UsageError when there is none."""
        for service in self.services:
            if service.name == name:
                return service
        known = ", ".join(service.name for service in self.services)
        raise UsageError(f"the fleet has no service {name!r}", hint=f"its services are: {known}")


_CHAT = EngineModel(
    model="chat-70b-instruct-fp8",
    step_seconds=0.0145,
    step_per_sequence_seconds=1.2e-4,
    step_per_context_token_seconds=2.2e-8,
    prefill_per_token_seconds=3.0e-5,
    max_sequences=96,
    token_budget=8192,
    kv_blocks=9216,
    max_model_length=16384,
)
_CODE = EngineModel(
    model="code-14b-instruct",
    step_seconds=0.0085,
    step_per_sequence_seconds=9.0e-5,
    step_per_context_token_seconds=2.5e-8,
    prefill_per_token_seconds=2.0e-5,
    max_sequences=64,
    token_budget=8192,
    kv_blocks=12288,
    max_model_length=16384,
)


def default_spec(size: Literal["small"] = "small") -> FleetSpec:
    """The demo's fleet: 2 services, 16 replicas, 8 nodes, 64 GPUs, 12 of them spare."""
    del size
    return FleetSpec(
        cluster="demo",
        pools=(PoolSpec("h100-a", "NVIDIA H100 80GB HBM3", 4), PoolSpec("h100-b", "NVIDIA H100 80GB HBM3", 4)),
        services=(
            ServiceSpec(
                name="chat-70b",
                engine=_CHAT,
                lengths=Lengths(
                    prompt_mean=900, prompt_sigma=0.7, output_mean=300, output_sigma=0.6, cached_ratio=0.45
                ),
                tensor_parallel=4,
                replicas=10,
                ceiling=13,
            ),
            ServiceSpec(
                name="code-14b",
                engine=_CODE,
                lengths=Lengths(
                    prompt_mean=1600, prompt_sigma=0.6, output_mean=380, output_sigma=0.7, cached_ratio=0.6
                ),
                tensor_parallel=2,
                replicas=6,
                ceiling=10,
                traffic=TrafficSpec(peak_ratio=0.64, trough_ratio=0.3, weekend_ratio=0.6, peak_hour=15.5),
            ),
        ),
    )
