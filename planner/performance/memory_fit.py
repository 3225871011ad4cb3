"""Memory fit of a model: weights, KV cache and overhead against the memory of a group of GPUs.

On each GPU of a group of ``tp`` x ``pp``:

    weights  = parameters x bits / 8 / tp x (layers of the largest stage / layers)
    KV       = 2 x layers of the stage x KV heads of the GPU x head size x bytes, a token; in whole blocks
    overhead = runtime + activations of one step's token budget
    weights + overhead + KV <= memory x utilization

as in vLLM's memory profiling. Runtime and activations are priors; a KV capacity from a metrics page replaces the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from planner.performance.gpu_catalog import GpuSpec, Slice
from planner.performance.model_specs import ModelShape

GIBIBYTE = 2**30
RUNTIME_BYTES = 1.5 * GIBIBYTE
"""Prior: driver context, communication buffers and captured graphs of one vLLM process."""
ACTIVATION_VECTORS = 16.0
"""Prior: vectors of the hidden size, at 16 bits, that a token in a step needs at the peak."""
BITS = (16.0, 8.0, 4.0)
_SCALES = {4.0: 4.25}  # a scale and a zero for each group of 128 weights, and layers that stay wider
_TP_SIZES = (1, 2, 4, 8, 16)


class FitReason(StrEnum):
    """Reasons why a model does not fit."""

    HEADS = "heads"  # attention heads cannot be divided evenly
    LAYERS = "layers"  # fewer layers than stages
    WEIGHTS = "weights"
    KV = "kv"  # the weights fit, the requested KV cache does not
    CONTEXT = "context"  # longer than the model's context
    PART = "part"  # slices and shares of GPUs have no link to each other


LEAST_BITS, MOST_BITS = 2.0, 32.0
"""Bits of a weight, and of a value in the KV cache: no model is served outside this range."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Serving setup of a model: groups, bits of weights and KV cache, and engine settings."""

    tp: int = 1
    pp: int = 1
    bits: float = 16.0
    kv_bits: float = 16.0
    utilisation: float = 0.9
    block: int = 16
    token_budget: int = 8192
    sequences: int = 256

    def __post_init__(self) -> None:
        """Refuses settings that no engine supports."""
        if min(self.tp, self.pp, self.block, self.token_budget, self.sequences) < 1:
            raise UsageError(
                "TP, PP, block size, token budget and sequences must be whole numbers of at least 1",
                hint="TP 1 and PP 1 mean no such groups",
            )
        if not 0 < self.utilisation <= 1:
            raise UsageError(
                f"invalid memory utilization {self.utilisation:g}", hint="give the engine's ratio, such as 0.9"
            )
        if not all(LEAST_BITS <= bits <= MOST_BITS for bits in (self.bits, self.kv_bits)):
            raise UsageError(
                f"invalid bits: weights {self.bits:g}, KV cache {self.kv_bits:g}", hint="16, 8 and 4 are usual"
            )

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp


@dataclass(frozen=True, slots=True)
class Fit:
    """The model fits. Bytes are those of the fullest GPU; ``kv_tokens`` is the KV cache of the whole replica.

    ``concurrency`` sequences of ``context`` tokens run at once; ``longest`` is the longest single sequence.
    """

    weights_bytes: float
    overhead_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float
    usable_bytes: float
    kv_tokens: int
    context: int
    concurrency: int
    longest: int

    def at(self, context: int, block: int = 16) -> int:
        """Concurrent sequences of ``context`` tokens, in whole blocks."""
        return int((self.kv_tokens // block) // max(1, -(-context // block)))


@dataclass(frozen=True, slots=True)
class NoFit:
    """The model does not fit, and what would.

    ``concurrency`` and ``context`` are the largest possible if weights fit.
    """

    reason: FitReason
    missing_bytes: float = 0.0
    context: int = 0
    concurrency: int = 0
    remedies: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)

    def text(self, language: Language = "en") -> str:
        """One sentence with the remedies."""
        text = translate(f"capacity.no_fit_{self.reason.value}", language, **self.arguments)
        if not self.remedies:
            return text
        either = translate("capacity.would_fit_or", language)
        return text + " " + translate("capacity.would_fit", language, remedies=either.join(self.remedies))


def fit(
    shape: ModelShape, gpu: GpuSpec, setup: Setup | None = None, *, context: int | None = None, concurrency: int = 1
) -> Fit | NoFit:
    """Checks if ``concurrency`` sequences of ``context`` tokens fit (default: one of the model's context length)."""
    chosen = setup or Setup()
    result = _fit(shape, gpu, chosen, context, concurrency)
    if isinstance(result, NoFit) and result.reason in (FitReason.WEIGHTS, FitReason.KV):
        return _with_remedies(result, shape, gpu, chosen, context, concurrency)
    return result


def slices(
    shape: ModelShape, gpu: GpuSpec, setup: Setup | None = None, *, context: int, concurrency: int
) -> list[Slice]:
    """Returns the MIG profiles of a device that hold the model and its load, smallest first.

    A slice is one GPU alone.
    """
    chosen = setup or Setup()
    if chosen.gpus > 1:
        return []
    return [
        cut
        for cut in sorted(gpu.slices, key=lambda cut: cut.memory_bytes)
        if isinstance(_fit(shape, gpu.part(cut), chosen, context, concurrency), Fit)
    ]


def processes(
    shape: ModelShape, gpu: GpuSpec, setup: Setup | None = None, *, context: int, concurrency: int
) -> tuple[int, float]:
    """Returns the replicas that share one GPU by MPS, and the memory utilization of each.

    Memory decides: MPS shares compute in time but does not partition memory, so each process gets its own limit.
    Devices without MPS, as of other vendors, hold none.
    """
    chosen = setup or Setup()
    if not gpu.mps:
        return 0, 0.0
    memory = _fit(shape, gpu, chosen, context, concurrency)
    if chosen.gpus > 1 or isinstance(memory, NoFit):
        return 0, 0.0
    per_sequence = -(-context // chosen.block) * chosen.block * memory.kv_bytes_per_token
    replica_bytes = memory.weights_bytes + memory.overhead_bytes + concurrency * per_sequence
    count = int(memory.usable_bytes // replica_bytes)
    return count, chosen.utilisation / count


def _fit(shape: ModelShape, gpu: GpuSpec, setup: Setup, context: int | None, concurrency: int) -> Fit | NoFit:
    if (context is not None and context < 1) or concurrency < 1:
        raise UsageError(
            "context and concurrency must be at least 1", hint="give tokens of one sequence, and sequences"
        )
    if gpu.whole and setup.gpus > 1:
        return NoFit(FitReason.PART, arguments={"gpu": gpu.name, "tp": str(setup.tp), "pp": str(setup.pp)})
    if shape.heads % setup.tp:
        return NoFit(FitReason.HEADS, arguments={"heads": str(shape.heads), "tp": str(setup.tp)})
    if setup.pp > shape.layers:
        return NoFit(FitReason.LAYERS, arguments={"layers": str(shape.layers), "pp": str(setup.pp)})
    if context is not None and context > shape.context:
        return NoFit(FitReason.CONTEXT, arguments={"context": str(context), "most": str(shape.context)})
    layers = -(-shape.layers // setup.pp)
    weights = shape.parameters * _SCALES.get(setup.bits, setup.bits) / 8.0 / setup.tp * layers / shape.layers
    overhead = RUNTIME_BYTES + setup.token_budget * shape.hidden * 2.0 * ACTIVATION_VECTORS / setup.tp
    usable = gpu.memory_bytes * setup.utilisation
    per_token = shape.kv_values(setup.tp, layers) * setup.kv_bits / 8.0
    room = usable - weights - overhead
    if room <= 0:
        return NoFit(FitReason.WEIGHTS, -room, arguments=_gib(needs=weights + overhead, has=usable, missing=-room))
    blocks = int(room // (setup.block * per_token))
    tokens = blocks * setup.block
    length = context or min(shape.context, max(tokens, 1))
    count = min(setup.sequences, blocks // -(-length // setup.block))
    longest = min(tokens, shape.context)
    if count < concurrency:
        missing = (concurrency * -(-length // setup.block) - blocks) * setup.block * per_token
        arguments = _gib(missing=missing) | {"context": str(length), "concurrency": str(concurrency)}
        arguments |= {"count": str(count), "longest": str(longest)}
        return NoFit(FitReason.KV, missing, longest, count, arguments=arguments)
    return Fit(weights, overhead, room, per_token, usable, tokens, length, count, longest)


def _with_remedies(
    refusal: NoFit, shape: ModelShape, gpu: GpuSpec, setup: Setup, context: int | None, concurrency: int
) -> NoFit:
    """Adds the smallest larger group and the widest narrower weights that fit."""
    remedies = []
    for tp in _TP_SIZES:
        other = replace(setup, tp=tp)
        if tp > setup.tp and isinstance(_fit(shape, gpu, other, context, concurrency), Fit):
            remedies.append(f"TP {tp}")
            break
    for bits in BITS:
        other = replace(setup, bits=bits)
        if bits < setup.bits and isinstance(_fit(shape, gpu, other, context, concurrency), Fit):
            remedies.append(f"{bits:g} bit")
            break
    return NoFit(
        refusal.reason, refusal.missing_bytes, refusal.context, refusal.concurrency, tuple(remedies), refusal.arguments
    )


def _gib(**amounts: float) -> dict[str, str]:
    return {name: f"{amount / GIBIBYTE:.1f}" for name, amount in amounts.items()}
