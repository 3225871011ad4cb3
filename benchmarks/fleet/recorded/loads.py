"""The recorded loads that the engine model is checked against, and the engine they were recorded on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet.recorded.reading import Recording, read
from simulator.spec.parts import EngineModel


@dataclass(frozen=True, slots=True)
class Load:
    """A load by its name; ``parts`` and ``prefixes`` as ``read`` takes them."""

    name: str
    parts: tuple[str, ...] = ()
    prefixes: Mapping[str, int] = field(default_factory=dict)


LOADS = (
    Load("b_steady"),
    Load("c_ramp"),
    Load("d_longburst", parts=("d_longburst.short", "d_longburst.long")),
    Load("f_prefix", prefixes={"prefix0": 1024, "prefix1": 1024}),
)

# vLLM 0.32 on a CPU with a random model of 98 M parameters. The page states blocks of 128 tokens and 40 of them
# (one is vLLM's own); never more than 8 ran at once; the first part of a prompt of 3,950 tokens took 16 blocks.
# The step times are results of ``fitting.fit`` on every other minute of the four loads, seed 0.
SMALL_LLAMA = EngineModel(
    model="small-llama",
    step_seconds=0.02388,
    step_per_sequence_seconds=0.001267,
    step_per_context_token_seconds=2.156e-06,
    prefill_per_token_seconds=0.0003139,
    max_sequences=8,
    token_budget=2048,
    kv_blocks=39,
    max_model_length=4096,
    block_size=128,
    prefill_per_token_pair_seconds=1.042e-07,
    front_seconds=0.01684,
)
# Start of a fit: round figures, each off by a fifth to a half.
GUESS = EngineModel(
    model="small-llama",
    step_seconds=0.02,
    step_per_sequence_seconds=0.001,
    step_per_context_token_seconds=2e-06,
    prefill_per_token_seconds=0.0003,
    max_sequences=8,
    token_budget=2048,
    kv_blocks=39,
    max_model_length=4096,
    block_size=128,
    prefill_per_token_pair_seconds=1e-07,
    front_seconds=0.01,
)


def read_all(folder: Path) -> list[Recording]:
    """Every load of ``LOADS``. Raises UsageError when one is not there."""
    return [read(folder, load.name, load.parts, load.prefixes) for load in LOADS]
