"""The queueing model against the engine model of the simulated fleet, and invariants for every load."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import UsageError
from planner.performance.queueing import (
    AtSlo,
    Bounds,
    OutOfReach,
    Slo,
    SloReason,
    StepTimes,
    Work,
    at_slo,
    most,
    predict,
    seats,
)
from simulator.engine.engine import Conditions, EngineBank
from simulator.spec.parts import EngineModel, Lengths, ServiceSpec
from simulator.traffic.arrivals import fit_to_engine

ENGINE = EngineModel("lab", 0.012, 3e-4, 4e-8, 4e-5, 24, 2048, 1200, 8192)
LENGTHS = Lengths(prompt_mean=400, prompt_sigma=0.6, output_mean=80, output_sigma=0.6, cached_ratio=0.2)
TIMES = StepTimes(
    ENGINE.step_seconds,
    ENGINE.step_per_sequence_seconds,
    ENGINE.step_per_context_token_seconds,
    ENGINE.prefill_per_token_seconds,
)
BOUNDS = Bounds(ENGINE.max_sequences, ENGINE.kv_blocks * ENGINE.block_size, ENGINE.token_budget, ENGINE.block_size)


def simulated(rate: float, warm: int = 40, seconds: int = 200, twins: int = 3, engine: EngineModel = ENGINE):
    """Running sequences, TTFT and TPOT of the engine model at a rate, and its work."""
    service = ServiceSpec("lab", engine, LENGTHS, 1, 1, 1)
    bank = EngineBank([engine] * twins, 1, patience_seconds=1e6)
    random, done, sent, running = np.random.default_rng(3), [], [], []
    bank.answered = lambda order, replica, first, at: done.append(np.stack([order, first, at]))
    for second in range(warm + seconds):
        replica = random.permutation(np.repeat(np.arange(twins), random.poisson(rate, twins)))
        at = second + np.sort(random.random(replica.size))
        drawn = fit_to_engine(random, [service], np.zeros(replica.size, dtype=np.int64), at)
        bank.accept(replica, at, drawn.prompt, drawn.computed, drawn.output)
        sent.append(np.stack([at, drawn.prompt, drawn.computed, drawn.output]))
        bank.step(float(second), 1.0, Conditions())
        if second >= warm:
            running.append(bank.running.mean())
    at, prompt, computed, output = np.concatenate(sent, axis=1)
    order, first, end = np.concatenate(done, axis=1)
    order = order.astype(int) - int(order.min())
    kept = (at[order] > warm) & (output[order] > 1)
    ttft = (first - at[order])[kept]
    tpot = ((end - first) / np.maximum(output[order] - 1, 1))[kept]
    work = Work(
        float(prompt.mean()),
        float(output.mean()),
        float(prompt.std() / prompt.mean()),
        float(output.std() / output.mean()),
        1.0 - float(computed.sum() / prompt.sum()),
    )
    return float(np.mean(running)), ttft, tpot, work


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_it_agrees_with_the_engine_model_of_the_simulated_fleet(load):
    rate = load * most(TIMES, BOUNDS, Work(400, 80, 0.6, 0.6, 0.2))
    running, ttft, tpot, work = simulated(rate)
    text = predict(TIMES, BOUNDS, work, rate)
    assert text.running == pytest.approx(running, rel=0.15)
    assert text.tpot_mean == pytest.approx(tpot.mean(), rel=0.1)
    assert text.tpot == pytest.approx(np.quantile(tpot, 0.95), rel=0.15)
    assert text.ttft_mean == pytest.approx(ttft.mean(), rel=0.25)
    assert text.ttft == pytest.approx(np.quantile(ttft, 0.95), rel=0.3)


def test_above_the_maximum_rate_the_queue_grows_and_latency_is_infinite():
    work = Work(400, 80, 0.6, 0.6, 0.2)
    rate = 1.3 * most(TIMES, BOUNDS, work)
    _, ttft, _, _ = simulated(rate, seconds=120)
    assert ttft[-100:].mean() > 3 * ttft[:100].mean()
    text = predict(TIMES, BOUNDS, work, rate)
    assert not text.stable
    assert (text.ttft, text.tpot) == (inf, inf)


def test_the_kv_cache_bounds_the_seats():
    work = Work(1000, 200, output_cv=0)
    assert seats(Bounds(256, kv_tokens=22_000), work) == int(22_000 / (1100 + 8))
    assert seats(Bounds(8, kv_tokens=22_000), work) == 8
    assert seats(Bounds(8, kv_tokens=100), work) == 0
    assert not predict(TIMES, Bounds(8, kv_tokens=100), work, 0.1).stable


_works = st.builds(Work, st.floats(1, 8000), st.floats(2, 2000), st.floats(0, 2), st.floats(0, 2), st.floats(0, 0.9))


@settings(max_examples=60, deadline=None)
@given(_works, st.floats(0.01, 0.9), st.floats(1.05, 1.5))
def test_more_load_is_never_faster(work, load, more):
    limit = most(TIMES, BOUNDS, work)
    low, high = (predict(TIMES, BOUNDS, work, limit * share) for share in (load, min(load * more, 0.99)))
    for name in ("running", "ttft_mean", "tpot_mean", "waits_ratio"):
        assert getattr(high, name) >= getattr(low, name) * (1 - 1e-6)
    assert 0 <= low.kv_ratio <= 1


@settings(max_examples=30, deadline=None)
@given(_works, st.floats(0.02, 0.1), st.floats(0.2, 10))
def test_the_largest_load_within_the_slo_is_sharp(work, tpot, ttft):
    slo = Slo(ttft, tpot)
    result = at_slo(TIMES, BOUNDS, work, slo)
    if isinstance(result, OutOfReach):
        assert not result.best.meets(slo)
        return
    assert result.prediction.meets(slo)
    if result.binds != "stability":
        assert not predict(TIMES, BOUNDS, work, result.prediction.rate * 1.01).meets(slo)


def test_an_slo_out_of_reach_names_the_objective():
    work = Work(400, 80)
    assert isinstance(at_slo(TIMES, BOUNDS, work, Slo(1.0, 0.05)), AtSlo)
    too_fast = at_slo(TIMES, BOUNDS, work, Slo(tpot=0.001))
    assert isinstance(too_fast, OutOfReach)
    assert too_fast.reason is SloReason.TPOT_TOO_SHORT
    assert at_slo(TIMES, BOUNDS, work, Slo(ttft=0.001)).reason is SloReason.TTFT_TOO_SHORT


@pytest.mark.parametrize("wrong", [{"prompt": 0}, {"output": 0}, {"cached_ratio": 1.0}, {"output_cv": -1}])
def test_impossible_requests_are_refused(wrong):
    with pytest.raises(UsageError):
        Work(**{"prompt": 10, "output": 10, **wrong})


def test_impossible_step_times_are_refused():
    with pytest.raises(UsageError):
        StepTimes(0.0, 0.0, 0.0, 0.0)
