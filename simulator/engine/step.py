"""Input and output of one slice of the engine model: parameters, limits, plans, results."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outrider.model import Floats
from simulator.spec.parts import EngineModel

FINE_RATIO = 0.02  # a run of steps ends if one sequence less changes a step by more


class Parameters:
    """The engine models as columns, shape (replicas,)."""

    def __init__(self, models: list[EngineModel]) -> None:
        def column(name: str) -> Floats:
            return np.array([getattr(model, name) for model in models], dtype=np.float64)

        self.step = column("step_seconds")
        self.sequence = column("step_per_sequence_seconds")
        self.context = column("step_per_context_token_seconds")
        self.prompt = column("prefill_per_token_seconds")
        self.pair = column("prefill_per_token_pair_seconds")
        self.front = column("front_seconds")
        self.max_sequences = column("max_sequences")
        self.budget = column("token_budget")
        self.block = column("block_size")
        self.kv_blocks = column("kv_blocks")
        self.steps = np.stack([self.step, self.sequence, self.context])
        self.fine = self.sequence > FINE_RATIO * self.step


@dataclass(slots=True)
class Limits:
    """Limits of the replicas in one slice, shape (replicas,)."""

    slow: Floats
    prefill: Floats
    blocks: Floats
    sequences: Floats
    stalled: np.ndarray


@dataclass(slots=True)
class StepResult:
    """Result of one slice, shape (replicas,): seconds in steps, seconds in steps with prompts, seconds x batch."""

    replicas: int
    busy: Floats = field(init=False)
    prefill: Floats = field(init=False)
    batch: Floats = field(init=False)
    generated: Floats = field(init=False)  # tokens generated
    computed: Floats = field(init=False)  # prompt tokens
    finished: list[tuple[np.ndarray, ...]] = field(default_factory=list)  # rows, times

    def __post_init__(self) -> None:
        for name in ("busy", "prefill", "batch", "generated", "computed"):
            setattr(self, name, np.zeros(self.replicas))


class Plan:
    """Steps about to start, one per replica: remaining budget and seats, and the prompts to compute."""

    def __init__(self, replica: np.ndarray, left: Floats, seats: Floats) -> None:
        self.replica, self.left, self.seats = replica, left, seats
        self.tokens, self.pairs, self.prompts, self.used = np.zeros((4, replica.size))
        self.exact = np.zeros(replica.size, dtype=bool)
        self.completing: list[np.ndarray] = []
