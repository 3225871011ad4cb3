"""Prefill and decode pools: against a simulation of single requests, and invariants for any sizes."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from outrider.errors import UsageError
from planner.capacity.disaggregated import NoPools, Pools, PoolsRefusal, lines, size
from planner.performance import prefill
from planner.performance.prefill import Bind, Link, PoolRole
from planner.performance.queueing import Bounds, Slo, StepTimes, Work

TIMES = StepTimes(0.012, 3e-4, 4e-8, 4e-5, 0.01, source="lab")
PREFILL = PoolRole(TIMES, Bounds(256, 400_000.0), 2, "H100 TP 2")
DECODE = PoolRole(TIMES, Bounds(64, 200_000.0), 4, "H100 TP 4")
LINK = Link(131072.0, 50e9)
WORK = Work(2000, 200, prompt_cv=0.8)
SLO = Slo(1.0, 0.05)


def waits(gaps, service):
    """Lindley's recursion: wait of each request in a queue with one server."""
    result, wait = np.empty(service.size), 0.0
    for index, (gap, seconds) in enumerate(zip(gaps, service, strict=True)):
        result[index] = wait
        wait = max(0.0, wait + seconds - gap)
    return result


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("rate", [50e9, 2.5e9])
def test_the_first_token_is_that_of_a_simulated_prefill_replica_and_its_link(load, rate):
    random, link = np.random.default_rng(4), Link(131072.0, rate)
    sigma = np.sqrt(np.log1p(WORK.prompt_cv**2))
    count = 200_000
    prompts = WORK.prompt * np.exp(sigma * random.standard_normal(count) - sigma**2 / 2)
    service = TIMES.base * np.maximum(1.0, np.ceil(prompts / 8192)) + TIMES.prompt * prompts
    arriving = load / max(service.mean(), link.seconds(WORK.prompt))
    arrivals = np.cumsum(random.exponential(1 / arriving, count))
    gaps = np.diff(arrivals, append=arrivals[-1])
    done = arrivals + waits(gaps, service) + service
    moved = np.array([link.seconds(tokens) for tokens in prompts])
    through = done + waits(np.diff(done, append=done[-1]), moved) + moved
    simulated = np.quantile(through - arrivals + TIMES.front, 0.95)
    predicted = prefill.first_token(PREFILL, link, WORK, arriving, 0.95)
    assert predicted == pytest.approx(simulated, rel=0.15)


def test_sizes_meet_the_slo_and_every_step_is_derived():
    result = size(PREFILL, DECODE, LINK, WORK, 40, SLO)
    assert isinstance(result, Pools)
    assert result.ttft <= SLO.ttft
    assert result.tpot <= SLO.tpot
    assert result.prefill.replicas * result.prefill.rate >= 50
    assert (result.prefill.replicas - 1) * result.prefill.rate < 50
    assert result.gpus == 2 * result.prefill.replicas + 4 * result.decode.replicas
    assert result.transfer_seconds == pytest.approx(2e-3 + 2000 * 131072 / 50e9)
    for language in ("en", "zh"):
        text = lines(result, language)
        assert len(text) == 8
        assert not any("{" in line for line in text)
    assert f"{result.prefill.replicas} replicas" in lines(result)[2]


def test_a_longer_prompt_needs_prefill_and_a_longer_answer_needs_decode():
    usual = size(PREFILL, DECODE, LINK, WORK, 40, SLO)
    prompts = size(PREFILL, DECODE, LINK, replace(WORK, prompt=4000), 40, Slo(3.0, 0.05))
    answers = size(PREFILL, DECODE, LINK, replace(WORK, output=800), 40, SLO)
    assert prompts.prefill.replicas > usual.prefill.replicas
    assert answers.decode.replicas > 3 * usual.decode.replicas
    assert answers.prefill.replicas == pytest.approx(usual.prefill.replicas, abs=1)


def test_kv_memory_and_the_link_bind_where_they_are_short():
    tight = replace(DECODE, bounds=Bounds(64, 20_000.0))
    result = size(PREFILL, tight, LINK, WORK, 40, SLO)
    assert result.decode.binds in (Bind.KV, Bind.TPOT)
    assert result.decode.replicas > size(PREFILL, DECODE, LINK, WORK, 40, SLO).decode.replicas
    slow = size(PREFILL, DECODE, Link(131072.0, 1e9), WORK, 40, Slo(inf, 0.05))
    assert slow.prefill.binds is Bind.LINK
    assert slow.prefill.rate == pytest.approx(1 / slow.transfer_seconds, rel=0.01)


def test_an_slo_that_idle_replicas_violate_is_refused_with_their_latency():
    prompt = size(PREFILL, DECODE, LINK, WORK, 40, Slo(0.05, 0.05))
    step = size(PREFILL, DECODE, LINK, WORK, 40, Slo(1.0, 0.005))
    memory = size(PREFILL, replace(DECODE, bounds=Bounds(64, 1000.0)), LINK, WORK, 40, SLO)
    assert [result.reason for result in (prompt, step, memory)] == [
        PoolsRefusal.PROMPT,
        PoolsRefusal.STEP,
        PoolsRefusal.NO_KV,
    ]
    assert isinstance(prompt, NoPools)
    assert prompt.best > 0.05
    assert f"{prompt.best:.4g}" in prompt.text("zh")


def test_no_load_needs_no_replica_and_invalid_loads_are_refused():
    none = size(PREFILL, DECODE, LINK, WORK, 0, SLO)
    assert (none.gpus, none.prefill.replicas, none.decode.replicas) == (0, 0, 0)
    for qps in (-1.0, float("nan"), inf):
        with pytest.raises(UsageError, match="requests/s"):
            size(PREFILL, DECODE, LINK, WORK, qps, SLO)
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="link"):
            Link(131072.0, rate)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("pool", "index"), [("prefill", 2), ("decode", 5)])
def test_the_limit_of_a_pool_is_reported(language, pool, index):
    result = size(PREFILL, DECODE, LINK, WORK, 40, SLO)
    assert isinstance(result, Pools)
    binds = {"prefill": (Bind.TTFT, Bind.LINK, Bind.STABILITY), "decode": set(Bind) - {Bind.LINK}}[pool]
    facts = set()
    for bind in binds:
        text = lines(replace(result, derivation={**result.derivation, f"{pool}_binds": bind.value}), language)
        assert not any("{" in line or "capacity." in line or f"({bind.value}" in line for line in text)
        assert "95 %" in text[-2]
        facts.add(text[index])
    assert len(facts) == len(binds)


def test_an_slo_just_above_idle_latency_is_sized_or_refused():
    best = size(PREFILL, DECODE, LINK, WORK, 40, replace(SLO, ttft=1e-3))
    assert isinstance(best, NoPools)
    sized = []
    for above in (1.0, 1.0 + 1e-9, 1.001, 1.01, 1.03, 1.1):
        result = size(PREFILL, DECODE, LINK, WORK, 40, replace(SLO, ttft=best.best * above))
        sized.append(isinstance(result, Pools))
        if isinstance(result, Pools):
            assert result.ttft <= best.best * above
    assert sized == sorted(sized)
    assert sized[-3:] == [True] * 3
