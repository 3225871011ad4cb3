"""Look-alikes on a small fleet: common and distinguishing effects."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta

import numpy as np
import pytest

from simulator.exporters.targets import Pages, Status, targets
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.spec.parts import TrafficSpec
from tests.simulator.faulted_fleet import BUSY, CALM, MINUTE, NOON, logged, spec, strike, window


@pytest.fixture(scope="module")
def fresh() -> dict[TrafficSpec, Fleet]:
    return {load: Fleet(spec(load), seed=5, start=NOON) for load in (BUSY, CALM)}


@pytest.fixture
def busy(fresh: dict[TrafficSpec, Fleet]) -> Fleet:
    return deepcopy(fresh[BUSY])


@pytest.fixture
def calm(fresh: dict[TrafficSpec, Fleet]) -> Fleet:
    return deepcopy(fresh[CALM])


# --- slow ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_slow_kernels_slow_a_service_at_full_clock_until_a_rollback(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    _, injection, here = strike(busy, "kernel-regression", "chat-70b")
    busy.step(MINUTE)
    slow = window(busy, MINUTE)
    chat, code = here.slots, np.arange(4, 6)
    assert (slow.tpot_seconds[chat] > 1.25 * before.tpot_seconds[chat]).all()
    assert slow.tpot_seconds[code] == pytest.approx(before.tpot_seconds[code], rel=0.1)
    assert (busy.gpus.clock_ratio[here.gpus] == 1.0).all()
    assert list(logged(busy, JournalSource.CHANGE)) == ["flags"]
    assert set(injection.impact(busy)) == set(chat)
    assert busy.pods.ready[chat].all()  # a reload, no restart
    busy.rollback("chat-70b")
    busy.step(MINUTE)
    assert injection.impact(busy).size == 0
    assert window(busy, MINUTE).tpot_seconds[chat] == pytest.approx(before.tpot_seconds[chat], rel=0.15)


def test_a_throttled_gpu_slows_one_replica_visibly(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    device = busy.gpu_uuid(busy.pods.pods[1].gpus[0])
    strike(busy, "gpu-thermal-throttle", device)
    busy.step(3 * MINUTE)
    slow = window(busy, MINUTE)
    assert slow.tpot_seconds[1] > 1.25 * before.tpot_seconds[1]
    assert (slow.tpot_seconds[[0, 2]] < 1.15 * before.tpot_seconds[[0, 2]]).all()
    assert busy.gpus.clock_ratio.min() < 0.95


def test_a_badly_placed_group_is_slower_than_its_peers_from_its_first_minute(busy: Fleet) -> None:
    strike(busy, "tp-topology-bad", "chat-70b-1")
    busy.step(2 * MINUTE)
    assert busy.pods.ready[1]
    first = window(busy, MINUTE)
    assert first.tpot_seconds[1] > 1.25 * first.tpot_seconds[[0, 2]].max()
    mine = np.asarray(busy.pods.pods[1].gpus)
    assert (busy.gpus.link_errors[mine] == 0).all()


def test_a_small_batch_limit_makes_requests_wait_with_fast_steps(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    _, _, here = strike(busy, "batch-misconfigured", "chat-70b")
    busy.step(MINUTE)
    small = window(busy, MINUTE)
    assert (small.ttft_seconds[here.slots] > 10 * before.ttft_seconds[here.slots]).all()
    assert (small.tpot_seconds[here.slots] < before.tpot_seconds[here.slots]).all()
    assert (busy.bank.waiting[here.slots] > busy.bank.running[here.slots]).all()
    assert list(logged(busy, JournalSource.CHANGE)) == ["flags"]
    line = next(line for line in busy.journal.after() if line.source is JournalSource.CHANGE)
    assert line.attributes["from"] == f"--max-num-seqs={busy.spec.services[0].engine.max_sequences}"


# --- queues -------------------------------------------------------------------------------------------


def test_leaked_kv_blocks_fill_one_cache_at_normal_load(busy: Fleet) -> None:
    strike(busy, "kv-pressure", "chat-70b-1")
    before = busy.bank.counters.plain["preemptions"][1]
    busy.step(3 * MINUTE)
    assert busy.bank.kv_used_ratio[1] > 0.85
    assert busy.bank.waiting[1] > 20
    assert busy.bank.counters.plain["preemptions"][1] > before
    assert (busy.bank.waiting[[0, 2]] <= 2).all()
    assert (busy.bank.kv_used_ratio[[0, 2]] < 0.75).all()


def test_a_skewed_replica_queues_while_its_peers_have_less_load(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    strike(busy, "traffic-skew", "chat-70b-1")
    busy.step(MINUTE)
    skewed = window(busy, 2 * MINUTE)
    assert busy.requests_per_second[1] > 1.3 * busy.requests_per_second[[0, 2]].max()
    assert (skewed.tpot_seconds[[0, 2]] < before.tpot_seconds[[0, 2]]).all()
    assert skewed.tokens[1] > skewed.tokens[[0, 2]].max()  # it generates more than its peers
    assert busy.bank.running[1] > 1.5 * busy.bank.running[[0, 2]].max()


def test_long_prompts_make_short_ones_wait_at_the_same_rate(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    rate = busy.traffic.rates(busy.at)[0]
    _, _, here = strike(busy, "long-prompt-burst", "chat-70b")
    busy.step(MINUTE)
    during = window(busy, 2 * MINUTE)
    assert busy.traffic.rates(busy.at)[0] == pytest.approx(rate)
    assert (during.ttft_seconds[here.slots] > 5 * before.ttft_seconds[here.slots]).all()


@pytest.mark.slow
def test_a_retry_storm_feeds_itself_after_its_peak_and_a_surge_does_not(busy: Fleet) -> None:
    surging = deepcopy(busy)
    strike(busy, "retry-storm", "chat-70b")
    edge = busy.traffic.edge
    busy.step(4 * MINUTE)  # the peak is over after 150 s
    retries, gone = edge.retries[0], edge.disconnects[0]
    rate = busy.traffic.rates(busy.at)[0]
    busy.step(MINUTE)
    assert (busy.traffic.edge.retries[0] - retries) / 60 > 0.5 * rate
    assert busy.traffic.edge.disconnects[0] > gone
    strike(surging, "traffic-surge", "chat-70b")
    surging.step(2 * MINUTE)
    assert surging.bank.waiting[:3].min() > 10
    assert surging.traffic.edge.retries[0] == 0


@pytest.mark.slow
def test_a_saturated_service_keeps_its_slo(busy: Fleet) -> None:
    _, _, here = strike(busy, "engine-saturated", "chat-70b")
    busy.step(5 * MINUTE)
    full = window(busy, 5 * MINUTE)
    assert busy.bank.running[here.slots].mean() > 0.4 * busy.bank.max_sequences[0]  # more breaks the SLO
    assert (full.ttft_seconds[here.slots] < 1.0).all()
    assert full.failed.sum() == 0


# --- hangs --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stalled_collective_is_a_hang_until_the_watchdog_logs_it(busy: Fleet) -> None:
    _, injection, _ = strike(busy, "nccl-timeout", "chat-70b-1")
    still = window(busy, MINUTE)
    assert still.tokens[1] == 0
    assert busy.bank.in_flight[1] > busy.bank.in_flight[[0, 2]].max()
    assert busy.pods.ready[1]
    assert list(logged(busy, JournalSource.ENGINE)) == []
    busy.step(4 * MINUTE)
    assert list(logged(busy, JournalSource.ENGINE)) == ["nccl_timeout", "nccl_error", "engine_dead"]
    assert not busy.pods.ready[1]
    busy.restart(1)
    busy.step(2 * MINUTE)
    assert window(busy, MINUTE).tokens[1] > 0
    assert injection.impact(busy).size == 0


def test_asleep_hangs_and_core_dead_fails_at_once(busy: Fleet) -> None:
    strike(busy, "engine-asleep", "chat-70b-1")
    strike(busy, "engine-core-dead", "chat-70b-2")
    pages = Pages(busy)
    result = window(busy, MINUTE)
    answers = {target.name: pages.answer(target) for target in targets(busy) if target.slot in (1, 2)}
    assert result.tokens[1] == 0
    assert (answers["chat-70b-1"].status, answers["chat-70b-1"].health) == (Status.OK, 200)
    assert busy.bank.in_flight[1] > 50
    assert (answers["chat-70b-2"].status, answers["chat-70b-2"].health) == (Status.HTTP_503, 503)
    assert busy.bank.in_flight[2] == 0
    assert list(logged(busy, JournalSource.ENGINE)) == ["sleep", "cuda_error", "engine_dead"]


def test_a_stale_page_is_frozen_while_its_engine_works(busy: Fleet) -> None:
    node = busy.nodes.names[busy.pods.pods[0].node or 0]
    _, _, here = strike(busy, "stale-metrics", node)
    pages = Pages(busy)
    target = next(target for target in targets(busy) if target.slot == here.slots[0])
    busy.step(timedelta(seconds=15))
    first = pages.answer(target).body
    working = window(busy, MINUTE)
    assert pages.answer(target).body == first
    assert working.tokens[here.slots[0]] > 0


@pytest.mark.slow
def test_an_idle_replica_has_no_requests_and_is_healthy(busy: Fleet) -> None:
    strike(busy, "engine-idle", "chat-70b-1", 3 * MINUTE)
    busy.step(2 * MINUTE)
    idle = window(busy, timedelta(seconds=30))
    assert (idle.tokens[1], busy.bank.in_flight[1]) == (0, 0)
    assert busy.pods.ready[1]
    busy.step(MINUTE)
    assert window(busy, timedelta(seconds=30)).tokens[1] > 0
