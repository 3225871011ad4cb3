"""The vectorised engine against plain loops over every step: the same times for any slices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.recorded.loads import SMALL_LLAMA
from simulator.engine.engine import Conditions, EngineBank
from simulator.spec.parts import EngineModel
from tests.simulator.step_by_step import Request, StepByStep

# Small batches: each sequence less changes the step, so every step counts.
ENGINE = replace(SMALL_LLAMA, block_size=16, kv_blocks=200, token_budget=512, front_seconds=0.003)


def drawn(seed: int, count: int, per_second: float, prefixes: bool) -> list[Request]:
    random = np.random.default_rng(seed)
    at = np.cumsum(random.exponential(1 / per_second, count))
    result = []
    for instant in at:
        prefix = int(random.integers(-1, 2)) if prefixes else -1
        common = 64 if prefix >= 0 else 0
        prompt = common + int(random.integers(1, 900))
        cached = common if prefix >= 0 and random.random() < 0.8 else 0
        result.append(Request(float(instant), prompt, int(random.integers(1, 120)), cached, prefix, common))
    return result


def served(model: EngineModel, requests: list[Request], span: float) -> tuple[np.ndarray, np.ndarray, EngineBank]:
    bank = EngineBank([model], 0, patience_seconds=np.inf)
    first, end = np.full((2, len(requests)), np.nan)

    def note(order: np.ndarray, replica: np.ndarray, at: np.ndarray, done: np.ndarray) -> None:
        assert not replica.any()
        first[order], end[order] = at, done

    bank.answered = note
    table = np.array([(r.at, r.prompt, r.prompt - r.cached, r.output, r.prefix, r.common) for r in requests]).T
    number = 0
    while len(bank.table) or number * span <= table[0, -1]:
        now = (table[0] >= number * span) & (table[0] < (number + 1) * span)
        at, prompt, computed, output, prefix, common = table[:, now]
        none = np.zeros(at.size, dtype=np.int64)
        bank.accept(none, at, prompt, computed, output, prefix=prefix.astype(np.int64), common=common)
        bank.step(number * span, span, Conditions())
        assert 0.0 <= bank.kv_used_ratio[0] <= 1.0
        number += 1
    return first, end, bank


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    per_second=st.sampled_from([0.5, 2.0, 8.0]),
    kv_blocks=st.sampled_from([70, 120, 400]),
    max_sequences=st.sampled_from([2, 8, 32]),
    span=st.sampled_from([0.05, 0.5, 7.0]),
    prefixes=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_every_token_matches_plain_loops(
    seed: int, per_second: float, kv_blocks: int, max_sequences: int, span: float, prefixes: bool
) -> None:
    model = replace(ENGINE, kv_blocks=kv_blocks, max_sequences=max_sequences)
    requests = drawn(seed, 60, per_second, prefixes)
    first, end, bank = served(model, requests, span)
    plain = StepByStep(model)
    plain.serve(requests)
    assert first == pytest.approx([request.first for request in requests], abs=1e-6)
    assert end == pytest.approx([request.end for request in requests], abs=1e-6)
    assert bank.counters.plain["preemptions"][0] == plain.preemptions
    assert bank.counters.plain["generation_tokens"][0] == sum(request.output for request in requests)


def test_runs_of_steps_are_nearly_exact_for_large_batches() -> None:
    model = replace(ENGINE, step_per_sequence_seconds=1e-4, kv_blocks=4000, max_sequences=64)
    requests = drawn(3, 300, 12.0, prefixes=False)
    first, end, _ = served(model, requests, 1.0)
    StepByStep(model).serve(requests)
    sent = np.array([request.at for request in requests])
    for ours, theirs in ((first, [r.first for r in requests]), (end, [r.end for r in requests])):
        latency = np.array(theirs, dtype=np.float64) - sent
        assert np.abs(ours - sent - latency).mean() / latency.mean() < 0.02
