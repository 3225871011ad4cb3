from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.engine import Conditions, EngineBank
from simulator.spec.fleets import EngineModel, ServiceSpec, default_spec
from simulator.traffic.arrivals import fit_to_engine

CHAT = default_spec().service("chat-70b")


def bank_of(engine: EngineModel, replicas: int = 1, patience: float = 120.0) -> EngineBank:
    return EngineBank([engine] * replicas, 1, patience)


def run(
    bank: EngineBank, service: ServiceSpec, per_second: float, seconds: float, seed: int = 0, slow: float = 1.0
) -> None:
    random = np.random.default_rng(seed)
    conditions = Conditions(slow=np.full(bank.size, slow))
    for number in range(round(seconds / 0.5)):
        start = number * 0.5
        count = int(random.poisson(per_second * bank.size * 0.5))
        at = start + 0.5 * np.sort(random.random(count))
        drawn = fit_to_engine(random, [service], np.zeros(count, dtype=np.int64), at)
        bank.accept(random.integers(bank.size, size=count), at, drawn.prompt, drawn.computed, drawn.output)
        bank.step(start, 0.5, conditions)


def accept(bank: EngineBank, at: float, prompt: float, output: float, replica: int = 0) -> None:
    bank.accept(np.array([replica]), np.array([at]), np.array([prompt]), np.array([prompt]), np.array([output]))


def steps(bank: EngineBank, seconds: float, start: float = 0.0, stalled: bool = False) -> None:
    for number in range(round(seconds / 0.5)):
        bank.step(start + number * 0.5, 0.5, Conditions(stalled=np.full(bank.size, stalled)))


@pytest.mark.slow
@given(load=st.floats(0.1, 1.6), seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_no_request_is_lost(load: float, seed: int) -> None:
    bank = bank_of(CHAT.engine, 3, patience=20.0)
    run(bank, CHAT, load * CHAT.capacity_per_second(1), 40.0, seed)
    totals = bank.totals
    assert totals.arrived == totals.finished + totals.failed + totals.gave_up + len(bank.table)
    assert (bank.running + bank.waiting <= bank.in_flight).all()
    assert bank.in_flight.sum() == len(bank.table)
    counters = bank.counters
    assert counters.plain["finished_stop"].sum() + counters.plain["finished_length"].sum() == totals.finished
    assert (bank.kv_used_ratio <= 1.0).all()
    assert (bank.running <= CHAT.engine.max_sequences).all()


def test_tokens_of_finished_requests_are_counted_exactly() -> None:
    bank = bank_of(CHAT.engine, 2)
    run(bank, CHAT, 3.0, 20.0)
    steps(bank, 120.0, start=20.0)
    assert len(bank.table) == 0
    assert bank.counters.plain["generation_tokens"].sum() == bank.counters.sums["output_length"].sum()
    assert bank.counters.plain["prompt_tokens"].sum() == bank.counters.sums["prompt_length"].sum()
    gaps = bank.counters.buckets["itl"].sum() + bank.totals.finished
    assert gaps == bank.counters.plain["generation_tokens"].sum()


def test_counters_never_fall_while_it_runs() -> None:
    bank = bank_of(CHAT.engine, 2)
    random = np.random.default_rng(3)
    before = {name: values.copy() for name, values in bank.counters.buckets.items()}
    for number in range(60):
        at = number * 0.5 + 0.5 * np.sort(random.random(4))
        drawn = fit_to_engine(random, [CHAT], np.zeros(4, dtype=np.int64), at)
        bank.accept(random.integers(2, size=4), at, drawn.prompt, drawn.computed, drawn.output)
        bank.step(number * 0.5, 0.5, Conditions())
        for name, values in bank.counters.buckets.items():
            assert (values >= before[name]).all(), name
        before = {name: values.copy() for name, values in bank.counters.buckets.items()}


def test_a_lone_request_takes_prefill_plus_its_tokens() -> None:
    engine = CHAT.engine
    bank = bank_of(engine)
    accept(bank, 0.1, prompt=1000.0, output=101.0)
    steps(bank, 10.0)
    first = bank.counters.sums["ttft"][0]
    step = engine.step_seconds + engine.step_per_sequence_seconds
    assert first == pytest.approx(step + 1000 * engine.prefill_per_token_seconds, rel=1e-6)
    assert bank.counters.sums["tpot"][0] == pytest.approx(engine.step_seconds, rel=0.05)
    assert bank.counters.sums["e2e"][0] == pytest.approx(first + 100 * engine.step_seconds, rel=0.05)


def test_requests_are_served_in_order_of_arrival_when_slots_are_short() -> None:
    bank = bank_of(replace(CHAT.engine, max_sequences=1))
    for number in range(4):
        accept(bank, 0.01 * number, prompt=100.0, output=40.0)
    steps(bank, 0.5)
    assert bank.waiting[0] == 3.0
    assert bank.running[0] == 1.0
    steps(bank, 5.0, start=0.5)
    assert bank.totals.finished == 4


def test_prefill_slows_the_decoding_of_others() -> None:
    quiet, busy = bank_of(CHAT.engine), bank_of(CHAT.engine)
    for bank in (quiet, busy):
        accept(bank, 0.0, prompt=100.0, output=300.0)
    accept(busy, 1.0, prompt=12000.0, output=10.0)
    for bank in (quiet, busy):
        steps(bank, 20.0)
    assert busy.counters.sums["e2e"][0] > quiet.counters.sums["e2e"][0]
    assert busy.counters.buckets["itl"][0, 3:].sum() > 0
    assert quiet.counters.buckets["itl"][0, 3:].sum() == 0


def test_a_full_cache_preempts_the_newest_and_loses_nothing() -> None:
    small = replace(CHAT.engine, kv_blocks=400)
    bank = bank_of(small)
    for number in range(8):
        accept(bank, 0.01 * number, prompt=760.0, output=600.0)
    steps(bank, 120.0)
    assert bank.counters.plain["preemptions"][0] > 0
    assert bank.totals.finished == 8
    assert bank.counters.plain["generation_tokens"][0] == 8 * 600


def test_slower_clocks_make_tokens_slower() -> None:
    normal, hot = bank_of(CHAT.engine, 2), bank_of(CHAT.engine, 2)
    run(normal, CHAT, 3.0, 60.0)
    run(hot, CHAT, 3.0, 60.0, slow=1.5)
    mean = [bank.counters.sums["tpot"].sum() / bank.counters.buckets["tpot"].sum() for bank in (normal, hot)]
    assert mean[1] > 1.4 * mean[0]


def test_a_stalled_engine_freezes_its_gauges_and_continues_later() -> None:
    bank = bank_of(CHAT.engine)
    accept(bank, 0.0, prompt=500.0, output=200.0)
    steps(bank, 1.0)
    tokens = bank.counters.plain["generation_tokens"][0]
    for number in range(10):
        accept(bank, 1.0 + number, prompt=100.0, output=10.0)
    steps(bank, 10.0, start=1.0, stalled=True)
    assert (bank.running[0], bank.waiting[0]) == (1.0, 0.0)
    assert bank.counters.plain["generation_tokens"][0] == tokens
    assert bank.in_flight[0] == 11.0
    steps(bank, 30.0, start=11.0)
    assert bank.totals.finished == 11


def test_clients_time_out_in_a_queue() -> None:
    bank = bank_of(replace(CHAT.engine, max_sequences=1), patience=5.0)
    for _ in range(3):
        accept(bank, 0.0, prompt=100.0, output=1000.0)
    steps(bank, 10.0)
    assert bank.totals.gave_up == 2


def test_a_dropped_engine_fails_its_requests_and_counts_from_zero() -> None:
    bank = bank_of(CHAT.engine, 2)
    run(bank, CHAT, 3.0, 10.0)
    held = int(bank.in_flight[0])
    assert bank.drop(0) == held > 0
    assert bank.totals.failed == held
    assert bank.counters.plain["generation_tokens"][0] == 0.0
    assert bank.counters.plain["generation_tokens"][1] > 0.0
