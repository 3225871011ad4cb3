"""Look-alikes on a small fleet: what they have in common, and what tells them apart."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import Floats
from simulator.faults import Injection, Truth, inject
from simulator.faults.places import Places, places
from simulator.fleet import Fleet
from simulator.journal import Voice
from simulator.parts import FleetSpec, PoolSpec, StartupSpec, TrafficSpec
from simulator.spec import H100, drill_spec
from simulator.targets import Pages, Status, targets

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
STARTUP = StartupSpec(4.0, 12.0, 40.0, 20.0)
BUSY = TrafficSpec(shape="steady", peak_ratio=0.6, noise_ratio=0.0)
CALM = TrafficSpec(shape="steady", peak_ratio=0.05, noise_ratio=0.0)
MINUTE = timedelta(minutes=1)


def spec(load: TrafficSpec) -> FleetSpec:
    """Three replicas of chat-70b under a load, and two of code-14b with hardly any."""
    chat, code = drill_spec().services
    return FleetSpec(
        "small",
        (PoolSpec("h100-a", H100, 3),),
        (
            replace(chat, replicas=3, ceiling=4, tenants=(), traffic=load),
            replace(code, replicas=2, ceiling=3, traffic=CALM),
        ),
        startup=STARTUP,
        slice_seconds=2.0,
        tick_seconds=2.0,
    )


@pytest.fixture(scope="module")
def fresh() -> dict[TrafficSpec, Fleet]:
    return {load: Fleet(spec(load), seed=5, start=NOON) for load in (BUSY, CALM)}


@pytest.fixture
def busy(fresh: dict[TrafficSpec, Fleet]) -> Fleet:
    return deepcopy(fresh[BUSY])


@pytest.fixture
def calm(fresh: dict[TrafficSpec, Fleet]) -> Fleet:
    return deepcopy(fresh[CALM])


@dataclass
class Window:
    """What happened in a stretch of time, by slot."""

    ttft_seconds: Floats
    tpot_seconds: Floats
    finished: Floats
    failed: Floats
    tokens: Floats


def window(fleet: Fleet, span: timedelta) -> Window:
    """Move on, and see what happened meanwhile."""
    counters = fleet.bank.counters

    def totals() -> list[Floats]:
        plain = counters.plain
        return [
            counters.sums["ttft"].copy(),
            counters.buckets["ttft"].sum(axis=1),
            counters.sums["tpot"].copy(),
            counters.buckets["tpot"].sum(axis=1),
            plain["finished_stop"] + plain["finished_length"],
            plain["finished_error"].copy(),
            plain["generation_tokens"].copy(),
        ]

    before = totals()
    fleet.step(span)
    ttft, first, tpot, whole, finished, failed, tokens = (
        now - then for now, then in zip(totals(), before, strict=True)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return Window(ttft / first, tpot / whole, finished, failed, tokens)


def strike(fleet: Fleet, fault: str, entity: str, lasts: timedelta = 20 * MINUTE) -> tuple[Truth, Injection, Places]:
    truth = inject(fleet, fault, entity, duration=lasts, seed=3)
    return truth, fleet.injections[-1], places(fleet, truth.entity)


def said(fleet: Fleet, voice: Voice) -> Iterator[str]:
    """Codes of what was said since the fleet began, in order."""
    return (line.code for line in fleet.journal.after() if line.voice is voice)


# --- slow ---------------------------------------------------------------------------------------------


def test_slow_kernels_slow_a_whole_service_at_full_clock_until_they_are_rolled_back(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    _, injection, here = strike(busy, "kernel-regression", "chat-70b")
    busy.step(MINUTE)
    slow = window(busy, MINUTE)
    chat, code = here.slots, np.arange(4, 6)
    assert (slow.tpot_seconds[chat] > 1.25 * before.tpot_seconds[chat]).all()
    assert slow.tpot_seconds[code] == pytest.approx(before.tpot_seconds[code], rel=0.1)
    assert (busy.gpus.clock_ratio[here.gpus] == 1.0).all()
    assert list(said(busy, Voice.CHANGE)) == ["flags"]
    assert set(injection.harm(busy)) == set(chat)
    assert busy.pods.ready[chat].all()  # a reload, no restart
    busy.rollback("chat-70b")
    busy.step(MINUTE)
    assert injection.harm(busy).size == 0
    assert window(busy, MINUTE).tpot_seconds[chat] == pytest.approx(before.tpot_seconds[chat], rel=0.15)


def test_a_throttled_gpu_slows_one_replica_and_says_so(busy: Fleet) -> None:
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


def test_a_misset_batch_makes_requests_wait_and_steps_fast(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    _, _, here = strike(busy, "batch-misconfigured", "chat-70b")
    busy.step(MINUTE)
    small = window(busy, MINUTE)
    assert (small.ttft_seconds[here.slots] > 10 * before.ttft_seconds[here.slots]).all()
    assert (small.tpot_seconds[here.slots] < before.tpot_seconds[here.slots]).all()
    assert (busy.bank.waiting[here.slots] > busy.bank.running[here.slots]).all()
    assert list(said(busy, Voice.CHANGE)) == ["flags"]
    line = next(line for line in busy.journal.after() if line.voice is Voice.CHANGE)
    assert line.attributes["from"] == f"--max-num-seqs={busy.spec.services[0].engine.max_sequences}"


# --- queues -------------------------------------------------------------------------------------------


def test_kv_blocks_that_are_not_given_back_fill_one_cache_at_the_usual_load(busy: Fleet) -> None:
    strike(busy, "kv-pressure", "chat-70b-1")
    before = busy.bank.counters.plain["preemptions"][1]
    busy.step(3 * MINUTE)
    assert busy.bank.kv_used_ratio[1] > 0.85
    assert busy.bank.waiting[1] > 20
    assert busy.bank.counters.plain["preemptions"][1] > before
    assert (busy.bank.waiting[[0, 2]] <= 2).all()
    assert (busy.bank.kv_used_ratio[[0, 2]] < 0.75).all()


def test_a_skewed_replica_queues_while_its_peers_have_less_to_do(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    strike(busy, "traffic-skew", "chat-70b-1")
    busy.step(MINUTE)
    skewed = window(busy, 2 * MINUTE)
    assert busy.requests_per_second[1] > 1.3 * busy.requests_per_second[[0, 2]].max()
    assert (skewed.tpot_seconds[[0, 2]] < before.tpot_seconds[[0, 2]]).all()
    assert skewed.tokens[1] > skewed.tokens[[0, 2]].max()  # it works, and more than its peers
    assert busy.bank.running[1] > 1.5 * busy.bank.running[[0, 2]].max()


def test_long_prompts_make_short_ones_wait_at_the_same_rate(busy: Fleet) -> None:
    before = window(busy, MINUTE)
    rate = busy.traffic.rates(busy.at)[0]
    _, _, here = strike(busy, "long-prompt-burst", "chat-70b")
    busy.step(MINUTE)
    during = window(busy, 2 * MINUTE)
    assert busy.traffic.rates(busy.at)[0] == pytest.approx(rate)
    assert (during.ttft_seconds[here.slots] > 5 * before.ttft_seconds[here.slots]).all()


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


def test_a_saturated_service_keeps_its_promise(busy: Fleet) -> None:
    _, _, here = strike(busy, "engine-saturated", "chat-70b")
    busy.step(5 * MINUTE)
    full = window(busy, 5 * MINUTE)
    assert busy.bank.running[here.slots].mean() > 0.65 * busy.bank.max_sequences[0]
    assert (full.ttft_seconds[here.slots] < 1.0).all()
    assert full.failed.sum() == 0


# --- standing still -----------------------------------------------------------------------------------


def test_a_stalled_collective_is_a_hang_until_the_watchdog_speaks(busy: Fleet) -> None:
    _, injection, _ = strike(busy, "nccl-timeout", "chat-70b-1")
    still = window(busy, MINUTE)
    assert still.tokens[1] == 0
    assert busy.bank.in_flight[1] > busy.bank.in_flight[[0, 2]].max()
    assert busy.pods.ready[1]
    assert list(said(busy, Voice.ENGINE)) == []
    busy.step(4 * MINUTE)
    assert list(said(busy, Voice.ENGINE)) == ["nccl_timeout", "nccl_error", "engine_dead"]
    assert not busy.pods.ready[1]
    busy.restart(1)
    busy.step(2 * MINUTE)
    assert window(busy, MINUTE).tokens[1] > 0
    assert injection.harm(busy).size == 0


def test_asleep_hangs_and_core_dead_fails_at_once(busy: Fleet) -> None:
    strike(busy, "engine-asleep", "chat-70b-1")
    strike(busy, "engine-core-dead", "chat-70b-2")
    pages = Pages(busy)
    found = window(busy, MINUTE)
    answers = {target.name: pages.answer(target) for target in targets(busy) if target.slot in (1, 2)}
    assert found.tokens[1] == 0
    assert (answers["chat-70b-1"].status, answers["chat-70b-1"].health) == (Status.OK, 200)
    assert busy.bank.in_flight[1] > 50
    assert (answers["chat-70b-2"].status, answers["chat-70b-2"].health) == (Status.HTTP_503, 503)
    assert busy.bank.in_flight[2] == 0
    assert list(said(busy, Voice.ENGINE)) == ["sleep", "cuda_error", "engine_dead"]


def test_a_stale_page_stands_still_while_its_engine_works(busy: Fleet) -> None:
    node = busy.nodes.names[busy.pods.pods[0].node or 0]
    _, _, here = strike(busy, "stale-metrics", node)
    pages = Pages(busy)
    target = next(target for target in targets(busy) if target.slot == here.slots[0])
    busy.step(timedelta(seconds=15))
    first = pages.answer(target).body
    working = window(busy, MINUTE)
    assert pages.answer(target).body == first
    assert working.tokens[here.slots[0]] > 0


def test_an_idle_replica_has_nothing_to_do_and_is_well(busy: Fleet) -> None:
    strike(busy, "engine-idle", "chat-70b-1", 3 * MINUTE)
    busy.step(2 * MINUTE)
    idle = window(busy, timedelta(seconds=30))
    assert (idle.tokens[1], busy.bank.in_flight[1]) == (0, 0)
    assert busy.pods.ready[1]
    busy.step(MINUTE)
    assert window(busy, timedelta(seconds=30)).tokens[1] > 0


# --- memory and loading -------------------------------------------------------------------------------


def test_device_memory_leaks_without_load_and_fits(calm: Fleet) -> None:
    gpu = calm.pods.pods[1].gpus[0]
    _, injection, _ = strike(calm, "gpu-memory-leak", "chat-70b-1")
    calm.step(2 * MINUTE)
    early = calm.gpus.memory_used[gpu]
    calm.step(4 * MINUTE)
    late = calm.gpus.memory_used[gpu]
    assert late - early > 800
    assert late < calm.gpus.memory[gpu]
    assert calm.bank.kv_used_ratio[1] < 0.2
    assert injection.harm(calm).size == 0
    calm.restart(1)
    calm.step(2 * MINUTE)
    assert calm.gpus.memory_used[calm.pods.pods[1].gpus[0]] < early


def test_warm_up_grows_and_stays(calm: Fleet) -> None:
    strike(calm, "memory-warm-up", "chat-70b-1")
    calm.step(5 * MINUTE)
    growing = calm.gpus.memory_used[calm.pods.pods[1].gpus[0]]
    calm.step(3 * MINUTE)
    full = calm.gpus.memory_used[calm.pods.pods[1].gpus[0]]
    calm.step(2 * MINUTE)
    assert full > growing + 200
    assert calm.gpus.memory_used[calm.pods.pods[1].gpus[0]] == pytest.approx(full, abs=30)


def test_out_of_device_memory_fails_requests_then_the_process_and_leaves_host_memory_alone(busy: Fleet) -> None:
    host = busy.containers.working_set_bytes[1]
    strike(busy, "gpu-oom", "chat-70b-1")
    failing = window(busy, 2 * MINUTE)
    assert failing.failed[1] > 5
    assert failing.failed[[0, 2]].sum() == 0
    assert busy.containers.working_set_bytes[1] == pytest.approx(host, rel=0.05)
    busy.step(3 * MINUTE)
    assert not busy.pods.ready[1]
    assert "oom-kill" not in said(busy, Voice.KERNEL)
    assert {"cuda_oom", "engine_dead"} <= set(said(busy, Voice.ENGINE))


def test_fragments_fail_requests_now_and_then_with_memory_left(busy: Fleet) -> None:
    gpu = busy.pods.pods[1].gpus[0]
    before = busy.gpus.memory_used[gpu]
    strike(busy, "gpu-memory-fragmentation", "chat-70b-1")
    on, off = window(busy, timedelta(seconds=40)), window(busy, timedelta(seconds=45))
    assert on.failed[1] > off.failed[1]
    assert busy.gpus.memory_used[gpu] == pytest.approx(before, rel=0.01)
    assert set(said(busy, Voice.ENGINE)) == {"memory_fragmented"}


def test_weights_that_cannot_be_loaded_end_every_start_and_a_slow_one_ends_late(calm: Fleet) -> None:
    strike(calm, "model-load-failed", "chat-70b-1")
    strike(calm, "slow-start", "chat-70b-2")
    calm.step(2 * MINUTE)
    assert not calm.pods.ready[[1, 2]].any()  # alike so far, and well over a usual start
    calm.step(4 * MINUTE)
    broken, slow = calm.pods.pods[1], calm.pods.pods[2]
    assert not broken.ready
    assert slow.ready
    assert broken.restarts >= 2
    assert slow.restarts == 0
    words = list(said(calm, Voice.ENGINE))
    assert set(words) == {"weights_corrupt"}
    assert broken.restarts <= len(words) <= broken.restarts + 1  # last words of each process, once


# --- the edge and what comes through it -------------------------------------------------------------------


def test_who_answers_tells_gateway_certificate_bad_requests_and_a_drop_apart(busy: Fleet) -> None:
    seen = {}
    for fault in ("gateway-fault", "cert-or-dns", "bad-requests", "traffic-drop", "client-aborts"):
        fleet = deepcopy(busy)
        strike(fleet, fault, "chat-70b")
        fleet.step(MINUTE)
        edge = fleet.traffic.edge
        names = ("answered_2xx", "answered_4xx", "answered_5xx", "disconnects")
        before = {name: getattr(edge, name)[0] for name in names}
        fleet.step(MINUTE)
        grown = {name: (getattr(fleet.traffic.edge, name)[0] - before[name]) / 60 for name in names}
        seen[fault] = {name for name, rate in grown.items() if rate > 1.0}
        assert fleet.pods.ready[:3].all()
        assert fleet.bank.counters.plain["finished_error"][:3].sum() == 0
    assert seen["gateway-fault"] - {"answered_2xx"} == {"answered_5xx"}
    assert seen["cert-or-dns"] == set()
    assert seen["bad-requests"] == {"answered_2xx", "answered_4xx"}
    assert seen["client-aborts"] == {"answered_2xx", "disconnects"}
    assert seen["traffic-drop"] <= {"answered_2xx"}


def test_a_collapsed_prefix_cache_computes_what_it_used_to_find(busy: Fleet) -> None:
    def found_ratio() -> float:
        plain = busy.bank.counters.plain
        before = plain["cached_tokens"][:3].sum(), plain["prompt_tokens"][:3].sum()
        busy.step(MINUTE)
        return float((plain["cached_tokens"][:3].sum() - before[0]) / (plain["prompt_tokens"][:3].sum() - before[1]))

    usual = found_ratio()
    strike(busy, "prefix-cache-collapse", "chat-70b")
    busy.step(MINUTE)
    assert found_ratio() < 0.3 * usual
    assert list(said(busy, Voice.CHANGE)) == ["template"]


def test_a_renamed_metric_is_gone_from_new_pods_only_and_they_work(calm: Fleet) -> None:
    strike(calm, "metric-renamed", "code-14b")
    calm.step(2 * MINUTE)
    pages = Pages(calm)
    answers = {target.slot: pages.answer(target) for target in targets(calm) if target.adapter == "vllm"}
    bodies = {slot: answer.body for slot, answer in answers.items() if answer.body is not None}
    new = [slot for slot, body in bodies.items() if b"vllm:kv_cache_usage_perc" not in body]
    assert new == [pod.slot for pod in calm.pods.of_service("code-14b") if pod.revision == "v2" and pod.ready]
    assert len(new) == 1
    assert b"vllm:gpu_cache_usage_perc" in bodies[new[0]]


def test_a_bad_release_hurts_its_own_pods_and_a_good_one_nobody(calm: Fleet) -> None:
    _, bad, _ = strike(calm, "bad-rollout", "chat-70b")
    _, good, _ = strike(calm, "planned-rollout", "code-14b")
    out = []
    for _ in range(6):
        calm.step(timedelta(seconds=30))
        out.append(int((calm.pods.existing & ~calm.pods.ready)[:4].sum()))
    assert max(out) <= calm.spec.services[0].max_unavailable
    new = [pod.slot for pod in calm.pods.of_service("chat-70b") if pod.revision == "v2" and pod.ready]
    assert new
    assert set(new) <= set(bad.harm(calm))
    assert not set(bad.harm(calm)) - set(new) - {pod.slot for pod in calm.pods.pods if not pod.ready}
    assert good.truth.negative
    assert [pod.revision for pod in calm.pods.of_service("code-14b") if pod.exists] == ["v2", "v2"]
    assert list(said(calm, Voice.CHANGE)) == ["rollout", "rollout"]


def test_a_blind_monitor_sees_no_page_of_a_cluster_that_works(busy: Fleet) -> None:
    strike(busy, "monitor-blind", "small")
    working = window(busy, MINUTE)
    pages = Pages(busy)
    inside = [target for target in targets(busy) if target.adapter != "probe"]
    assert {pages.answer(target).status for target in inside} == {Status.TIMEOUT}
    assert (working.finished[:3] > 0).all()
