"""External conditions of an engine, failing requests, and their counters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fleet.recorded.loads import SMALL_LLAMA
from simulator.engine.engine import Conditions, EngineBank
from simulator.spec.fleets import default_spec

CHAT = default_spec().service("chat-70b").engine


def accept(bank: EngineBank, at: float, prompt: float, output: float, **more: np.ndarray) -> None:
    """The same request for every replica."""
    size = np.ones(bank.size)
    bank.accept(np.arange(bank.size), at * size, prompt * size, prompt * size, output * size, **more)


def run(bank: EngineBank, seconds: float, conditions: Conditions | None = None, start: float = 0.0) -> None:
    for number in range(round(seconds)):
        bank.step(start + number, 1.0, conditions or Conditions())


def test_a_slow_prefill_delays_the_first_token_and_no_other() -> None:
    bank = EngineBank([CHAT] * 2, 0, 120.0)
    accept(bank, 0.0, 8000.0, 200.0)
    run(bank, 20.0, Conditions(prefill=np.array([1.0, 3.0])))
    first, decode = bank.counters.sums["ttft"], bank.counters.sums["decode"]
    assert first[1] - first[0] == pytest.approx(2 * 8000 * CHAT.prefill_per_token_seconds)
    assert decode[1] == pytest.approx(decode[0])


def test_slow_devices_stretch_everything() -> None:
    bank = EngineBank([CHAT] * 2, 0, 120.0)
    accept(bank, 0.0, 8000.0, 200.0)
    run(bank, 30.0, Conditions(slow=np.array([1.0, 2.0])))
    assert bank.counters.sums["e2e"][1] == pytest.approx(2 * bank.counters.sums["e2e"][0], rel=1e-4)


def test_fewer_sequences_at_once_make_a_queue() -> None:
    bank = EngineBank([CHAT] * 2, 0, 120.0)
    for number in range(20):
        accept(bank, 0.01 * number, 100.0, 2000.0)
    run(bank, 5.0, Conditions(batch=np.array([1.0, 0.05])))
    assert bank.running.tolist() == [20.0, 4.0]
    assert bank.waiting.tolist() == [0.0, 16.0]


def test_lost_kv_blocks_count_as_used_and_push_sequences_out() -> None:
    bank = EngineBank([replace(CHAT, kv_blocks=1000)] * 2, 0, 600.0)
    for number in range(8):
        accept(bank, 0.01 * number, 800.0, 900.0)
    conditions = Conditions(kv=np.array([1.0, 0.45]))
    run(bank, 10.0, conditions)
    assert bank.kv_used_ratio[1] > 0.95
    assert bank.counters.plain["preemptions"][1] > 0 == bank.counters.plain["preemptions"][0]
    run(bank, 120.0, conditions, start=10.0)
    assert bank.totals.finished == 16
    assert bank.kv_used_ratio.tolist() == [0.0, 0.55]


def test_a_request_larger_than_what_is_left_of_the_cache_is_served_alone() -> None:
    bank = EngineBank([replace(CHAT, kv_blocks=100)], 0, 600.0)
    for _ in range(2):
        accept(bank, 0.0, 1500.0, 100.0)
    run(bank, 30.0, Conditions(kv=np.array([0.2])))
    assert bank.totals.finished == 2


def test_a_stall_postpones_work_in_progress_without_loss() -> None:
    moved, still = EngineBank([CHAT], 0, 600.0), EngineBank([CHAT], 0, 600.0)
    for bank in (moved, still):
        accept(bank, 0.0, 1000.0, 500.0)
        run(bank, 3.0)
    run(still, 10.0, Conditions(stalled=np.array([True])), start=3.0)
    run(moved, 20.0, start=3.0)
    run(still, 20.0, start=13.0)
    assert still.counters.sums["e2e"][0] == pytest.approx(moved.counters.sums["e2e"][0] + 10.0, abs=0.05)
    assert still.counters.sums["decode"][0] == pytest.approx(moved.counters.sums["decode"][0] + 10.0, abs=0.05)


def test_a_transfer_that_fails_makes_the_prompt_be_computed_in_full() -> None:
    bank = EngineBank([CHAT] * 2, 0, 120.0)
    two = np.full(2, 4000.0)
    run(bank, 1.0, Conditions(transfer_failures=np.array([0.0, 1.0])))
    bank.accept(np.arange(2), np.full(2, 1.0), two, two / 100, np.full(2, 10.0))
    run(bank, 10.0, start=1.0)
    computed = bank.counters.sums["computed_length"]
    assert computed.tolist() == [40.0, 4000.0]
    assert bank.counters.plain["kv_transfer_failures"].tolist() == [0.0, 1.0]
    assert bank.counters.sums["ttft"][1] > 5 * bank.counters.sums["ttft"][0]


def test_failures_are_counted_as_on_a_real_page() -> None:
    bank = EngineBank([CHAT] * 3, 0, 120.0)
    bank.fail(np.array([0, 0]))
    bank.refuse_by_server(np.array([1, 1, 1]))
    bank.reject(np.array([2]))
    plain = bank.counters.plain
    assert plain["http_5xx"].tolist() == [2.0, 3.0, 0.0]
    assert plain["finished_error"].tolist() == [2.0, 0.0, 0.0]
    assert plain["http_4xx"].tolist() == [0.0, 0.0, 1.0]
    assert plain["http_ok"].sum() == 0.0
    assert (bank.totals.arrived, bank.totals.failed) == (6, 6)


def test_clients_that_leave_show_in_first_tokens_and_2xx_only() -> None:
    bank = EngineBank([CHAT], 0, 120.0)
    accept(bank, 0.0, 500.0, 3000.0, leaves=np.array([4.5]))
    run(bank, 3.0)
    assert bank.running[0] == 1.0
    run(bank, 3.0, start=3.0)
    plain = bank.counters.plain
    assert (bank.running[0], bank.in_flight[0], bank.totals.gave_up) == (0.0, 0.0, 1)
    assert bank.counters.buckets["ttft"].sum() == 1.0
    assert plain["http_ok"][0] == 1.0
    assert plain["finished_abort"][0] == plain["finished_stop"][0] == plain["finished_length"][0] == 0.0
    assert bank.counters.buckets["e2e"].sum() == 0.0


def test_requests_aborted_by_the_engine_count_as_aborted() -> None:
    bank = EngineBank([CHAT], 0, 120.0)
    for output in (3000.0, 2000.0):
        accept(bank, 0.0, 500.0, output)
    run(bank, 2.0)
    rows = bank.table.rows()
    bank.abort(rows[:1], np.array([2.0]), counted=True)
    run(bank, 200.0, start=2.0)
    assert bank.counters.plain["finished_abort"][0] == 1.0
    assert (bank.totals.finished, bank.totals.gave_up) == (1, 1)


def test_a_client_that_leaves_while_its_prompt_is_cut_frees_its_blocks() -> None:
    bank = EngineBank([SMALL_LLAMA], 0, 600.0)
    accept(bank, 0.0, 4000.0, 50.0, leaves=np.array([1.0]))
    accept(bank, 0.1, 4000.0, 50.0)
    run(bank, 1.0)
    assert bank.in_flight[0] == 2.0
    run(bank, 10.0, start=1.0)
    assert (bank.totals.finished, bank.totals.gave_up) == (1, 1)
    assert bank.kv_used_ratio[0] == 0.0


def test_gauges_show_the_end_of_the_last_step() -> None:
    bank = EngineBank([SMALL_LLAMA], 0, 600.0)
    accept(bank, 0.0, 4000.0, 50.0)  # its prompt takes two steps of about a second
    bank.step(0.0, 0.2, Conditions())
    assert (bank.running[0], bank.waiting[0], bank.kv_used_ratio[0]) == (0.0, 0.0, 0.0)
    accept(bank, 0.3, 100.0, 5.0)
    bank.step(0.2, 1.0, Conditions())
    assert (bank.running[0], bank.waiting[0]) == (1.0, 0.0)
    assert bank.kv_used_ratio[0] == pytest.approx(16 / 39)
    assert bank.in_flight[0] == 2.0


def test_requests_with_the_same_prefix_share_its_blocks() -> None:
    shared, apart = EngineBank([SMALL_LLAMA], 0, 600.0), EngineBank([SMALL_LLAMA], 0, 600.0)
    for bank in (shared, apart):
        prefix = np.array([0]) if bank is shared else np.array([-1])
        for at in (0.0, 1.0, 2.0):
            accept(bank, at, 1064.0, 400.0, prefix=prefix, common=np.array([1024.0]))
        run(bank, 4.0)
    assert shared.running[0] == apart.running[0] == 3.0
    assert apart.kv_used_ratio[0] - shared.kv_used_ratio[0] == pytest.approx(2 * 8 / 39)
    run(shared, 60.0, start=4.0)
    assert shared.kv_used_ratio[0] == 0.0


def test_work_adds_up_for_any_slice_length() -> None:
    result = []
    for span in (0.1, 2.5):
        bank = EngineBank([SMALL_LLAMA], 0, 600.0)
        for number in range(12):
            accept(bank, 0.7 * number, 300.0, 60.0)
        works = [bank.step(number * span, span, Conditions()) for number in range(round(10.0 / span))]
        result.append(
            [span * sum(getattr(work, name)[0] for work in works) for name in ("busy_ratio", "tokens_per_second")]
        )
        assert all(0.0 <= work.prefill_ratio[0] <= work.busy_ratio[0] <= 1.0 for work in works)
    assert result[0] == pytest.approx(result[1], rel=0.02)
