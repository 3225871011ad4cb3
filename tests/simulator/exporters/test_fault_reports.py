"""Faults of memory, loading, releases and the gateway on a small fleet: visible and invisible effects."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta

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


# --- memory and loading -------------------------------------------------------------------------------


@pytest.mark.slow
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
    assert injection.impact(calm).size == 0
    calm.restart(1)
    calm.step(2 * MINUTE)
    assert calm.gpus.memory_used[calm.pods.pods[1].gpus[0]] < early


def test_warm_up_memory_grows_and_stays(calm: Fleet) -> None:
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
    assert "oom-kill" not in logged(busy, JournalSource.KERNEL)
    assert {"cuda_oom", "engine_dead"} <= set(logged(busy, JournalSource.ENGINE))


def test_fragmentation_fails_some_requests_with_free_memory(busy: Fleet) -> None:
    gpu = busy.pods.pods[1].gpus[0]
    before = busy.gpus.memory_used[gpu]
    strike(busy, "gpu-memory-fragmentation", "chat-70b-1")
    on, off = window(busy, timedelta(seconds=40)), window(busy, timedelta(seconds=45))
    assert on.failed[1] > off.failed[1]
    assert busy.gpus.memory_used[gpu] == pytest.approx(before, rel=0.01)
    assert set(logged(busy, JournalSource.ENGINE)) == {"memory_fragmented"}


def test_failing_loads_end_every_start_and_a_slow_load_ends_late(calm: Fleet) -> None:
    strike(calm, "model-load-failed", "chat-70b-1")
    strike(calm, "slow-start", "chat-70b-2")
    calm.step(2 * MINUTE)
    assert not calm.pods.ready[[1, 2]].any()  # equal so far, and well over a normal start
    calm.step(4 * MINUTE)
    broken, slow = calm.pods.pods[1], calm.pods.pods[2]
    assert not broken.ready
    assert slow.ready
    assert broken.restarts >= 2
    assert slow.restarts == 0
    words = list(logged(calm, JournalSource.ENGINE))
    assert set(words) == {"weights_corrupt"}
    assert broken.restarts <= len(words) <= broken.restarts + 1  # one last log line per process


@pytest.mark.parametrize("tick", [1.0, 5.0])
def test_the_last_lines_of_a_process_are_logged_for_any_step(tick: float) -> None:
    fleet = Fleet(replace(spec(CALM), slice_seconds=tick, tick_seconds=tick), seed=5, start=NOON)
    strike(fleet, "model-load-failed", "chat-70b-1")
    fleet.step(8 * MINUTE)
    pod = fleet.pods.pods[1]
    assert pod.restarts <= len(list(logged(fleet, JournalSource.ENGINE))) <= pod.restarts + 1


# --- gateway and requests ---------------------------------------------------------------------------------


def test_the_status_separates_gateway_certificate_bad_requests_and_a_drop(busy: Fleet) -> None:
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


def test_a_collapsed_prefix_cache_recomputes_prompts(busy: Fleet) -> None:
    def found_ratio() -> float:
        plain = busy.bank.counters.plain
        before = plain["cached_tokens"][:3].sum(), plain["prompt_tokens"][:3].sum()
        busy.step(MINUTE)
        return float((plain["cached_tokens"][:3].sum() - before[0]) / (plain["prompt_tokens"][:3].sum() - before[1]))

    usual = found_ratio()
    strike(busy, "prefix-cache-collapse", "chat-70b")
    busy.step(MINUTE)
    assert found_ratio() < 0.3 * usual
    assert list(logged(busy, JournalSource.CHANGE)) == ["template"]


def test_a_renamed_metric_is_missing_only_on_new_pods_which_work(calm: Fleet) -> None:
    strike(calm, "metric-renamed", "code-14b")
    calm.step(2 * MINUTE)
    pages = Pages(calm)
    answers = {target.slot: pages.answer(target) for target in targets(calm) if target.adapter == "vllm"}
    bodies = {slot: answer.body for slot, answer in answers.items() if answer.body is not None}
    new = [slot for slot, body in bodies.items() if b"vllm:kv_cache_usage_perc" not in body]
    assert new == [pod.slot for pod in calm.pods.of_service("code-14b") if pod.revision == "v2" and pod.ready]
    assert len(new) == 1
    assert b"vllm:gpu_cache_usage_perc" in bodies[new[0]]


def test_a_bad_release_affects_its_own_pods_and_a_good_one_none(calm: Fleet) -> None:
    _, bad, _ = strike(calm, "bad-rollout", "chat-70b")
    _, good, _ = strike(calm, "planned-rollout", "code-14b")
    out = []
    for _ in range(6):
        calm.step(timedelta(seconds=30))
        out.append(int((calm.pods.existing & ~calm.pods.ready)[:4].sum()))
    assert max(out) <= calm.spec.services[0].max_unavailable
    new = [pod.slot for pod in calm.pods.of_service("chat-70b") if pod.revision == "v2" and pod.ready]
    assert new
    assert set(new) <= set(bad.impact(calm))
    assert not set(bad.impact(calm)) - set(new) - {pod.slot for pod in calm.pods.pods if not pod.ready}
    assert good.truth.negative
    assert [pod.revision for pod in calm.pods.of_service("code-14b") if pod.exists] == ["v2", "v2"]
    assert list(logged(calm, JournalSource.CHANGE)) == ["rollout", "rollout"]


def test_a_blind_monitor_sees_no_page_of_a_cluster_that_works(busy: Fleet) -> None:
    strike(busy, "monitor-blind", "small")
    working = window(busy, MINUTE)
    pages = Pages(busy)
    inside = [target for target in targets(busy) if target.adapter != "probe"]
    assert {pages.answer(target).status for target in inside} == {Status.TIMEOUT}
    assert (working.finished[:3] > 0).all()
