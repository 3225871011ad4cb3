"""Recorded loads for checking the engine model, and the engine they were recorded on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet.recorded.reading import Recording, read
from simulator.spec.parts import EngineModel


@dataclass(frozen=True, slots=True)
class Load:
    """A load by its name; ``parts`` and ``prefixes`` are arguments of ``read``."""

    name: str
    parts: tuple[str, ...] = ()
    prefixes: Mapping[str, int] = field(default_factory=dict)


LOADS = (
    Load("b_steady"),
    Load("c_ramp"),
    Load("d_longburst", parts=("d_longburst.short", "d_longburst.long")),
    Load("f_prefix", prefixes={"prefix0": 1024, "prefix1": 1024}),
)

# vLLM 0.32 on a CPU with a random model of 98 M parameters. The page reports 40 blocks of 128 tokens (vLLM reserves
# one). At most 8 requests ran at once; the first chunk of a prompt of 3,950 tokens took 16 blocks.
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
# Start of a fit: round numbers, each off by 20 to 50 %.
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
    """Returns all loads of ``LOADS``. Raises UsageError if one is missing."""
    return [read(folder, load.name, load.parts, load.prefixes) for load in LOADS]
