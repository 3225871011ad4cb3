from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from simulator.cluster.pods import Phase
from simulator.fleet import Fleet
from simulator.hardware.kubelet import SILENT_SECONDS, TOLERATION_SECONDS
from simulator.journal import JournalSource
from tests.simulator.small import Bent, coarse_fleet, small_fleet, step


@pytest.fixture
def fleet() -> Fleet:
    return small_fleet()


def entries(fleet: Fleet, source: JournalSource = JournalSource.KUBERNETES) -> Sequence[tuple[str, str]]:
    return [(line.entity.name, line.code) for line in fleet.journal.after() if line.source is source]


@pytest.mark.slow
def test_the_arrays_follow_every_pod() -> None:
    fleet = coarse_fleet()
    fleet.crash(0, "test")
    fleet.restart(1)
    fleet.remove(2)
    for _ in range(30):
        step(fleet, 10)
        for pod in fleet.pods.pods:
            slot = pod.slot
            assert fleet.pods.ready[slot] == pod.ready
            assert fleet.pods.existing[slot] == pod.exists
            assert fleet.pods.loading[slot] == (pod.phase is Phase.LOADING)
            assert fleet.pods.node_of_slot[slot] == (-1 if pod.node is None else pod.node)
            assert np.flatnonzero(fleet.pods.owner == slot).tolist() == sorted(pod.gpus)
    assert [pod.phase for pod in fleet.pods.pods[:3]] == [Phase.CRASHED, Phase.READY, Phase.ABSENT]


@pytest.mark.slow
def test_a_start_reports_its_phases() -> None:
    fleet = coarse_fleet()
    fleet.restart(0)
    step(fleet, 300)
    pod = fleet.pods.pods[0]
    assert [code for name, code in entries(fleet) if name == pod.name] == ["Killing", "Scheduled", "Pulled", "Started"]
    assert list(pod.phase_seconds) == ["schedule", "pull", "load", "warm"]
    assert sum(pod.phase_seconds.values()) == pytest.approx((pod.ready_at or 0) - pod.created_at)
    assert (pod.generation, pod.restarts, pod.process) == (2, 0, 2)


@pytest.mark.slow
def test_a_held_pod_stays_down_until_it_is_cured() -> None:
    fleet = coarse_fleet()
    fleet.crash(0, "test")
    step(fleet, 200)
    pod = fleet.pods.pods[0]
    assert pod.phase is Phase.CRASHED
    assert pod.waiting_reason == "CrashLoopBackOff"
    assert pod.restarts >= 3
    assert pod.process == 1
    fleet.pods.cure(0, pod.generation, "another reason", fleet.at)
    assert pod.phase is Phase.CRASHED
    fleet.pods.cure(0, pod.generation, "test", fleet.at)
    step(fleet, 250)
    assert pod.ready
    assert pod.process == 2
    assert (pod.waiting_reason, pod.last_terminated) == ("", "Error")


@pytest.mark.slow
def test_other_crashed_pods_restart_after_back_off_unless_their_device_is_lost() -> None:
    fleet = coarse_fleet()
    fleet.crash(0, "test", held=False)
    fleet.crash(1, "test", held=False)
    fleet.gpus.healthy[fleet.pods.pods[1].gpus[0]] = False
    step(fleet, 260)
    assert fleet.pods.pods[0].ready
    assert fleet.pods.pods[0].restarts == 1
    assert fleet.pods.pods[1].phase is Phase.CRASHED
    assert fleet.pods.pods[1].restarts > 2


@pytest.mark.slow
def test_failing_loads_cause_a_crash_loop_until_they_succeed() -> None:
    fleet = coarse_fleet()
    bent = Bent(fleet, ("slots", "load_fails", 0, 1.0))
    fleet.restart(0)
    phases = set()
    for _ in range(40):
        step(fleet, 15)
        phases.add(fleet.pods.pods[0].phase)
    assert phases - {Phase.PENDING} == {Phase.PULLING, Phase.LOADING, Phase.CRASHED}
    assert fleet.pods.pods[0].restarts >= 3
    assert fleet.pods.pods[0].process >= 5
    bent.stop(fleet)
    step(fleet, 500)
    assert fleet.pods.pods[0].ready


@pytest.mark.slow
def test_a_dead_host_becomes_not_ready_and_then_its_pods_move(fleet: Fleet) -> None:
    node = int(fleet.pods.node_of_slot[0])
    moved = [pod.slot for pod in fleet.pods.on_node(node)]
    boot = fleet.nodes.boot[node]
    bent = Bent(fleet, ("nodes", "alive", node, 0.0))
    step(fleet, SILENT_SECONDS - 5)
    assert fleet.nodes.ready[node]
    assert not fleet.pods.ready[moved].any()
    assert not fleet.kubelets.pod_ready[moved].any()
    step(fleet, 10)
    assert not fleet.nodes.ready[node]
    assert {fleet.pods.pods[slot].restarts for slot in moved} == {0}  # no kubelet is left to restart them
    step(fleet, TOLERATION_SECONDS - 10)
    assert {fleet.pods.pods[slot].generation for slot in moved} == {1}
    step(fleet, 15)
    assert {fleet.pods.pods[slot].generation for slot in moved} == {2}
    assert node not in fleet.pods.node_of_slot[moved]
    bent.stop(fleet)
    step(fleet, 2)
    assert fleet.nodes.ready[node]
    assert fleet.nodes.boot[node] > boot
    assert fleet.nodes.idle_seconds[node] < 100
    codes = [code for name, code in entries(fleet) if name == fleet.nodes.names[node]]
    assert codes == ["NodeNotReady", "Rebooted", "NodeReady"]


@pytest.mark.slow
def test_a_host_that_reboots_quickly_restarts_its_own_pods() -> None:
    fleet = coarse_fleet()
    node = int(fleet.pods.node_of_slot[0])
    bent = Bent(fleet, ("nodes", "alive", node, 0.0))
    step(fleet, 60)
    bent.stop(fleet)
    step(fleet, 240)
    assert (fleet.pods.pods[0].node, fleet.pods.pods[0].generation) == (node, 1)
    assert (fleet.pods.pods[0].restarts, fleet.pods.pods[0].process) == (1, 2)
    assert fleet.pods.ready[0]


def test_an_unreachable_host_keeps_running_without_new_requests(fleet: Fleet) -> None:
    node = int(fleet.pods.node_of_slot[0])
    Bent(fleet, ("nodes", "reachable", node, 0.0))
    step(fleet, 60)
    assert fleet.pods.ready[0]
    assert not fleet.nodes.ready[node]
    assert fleet.router.shares(fleet.effects)[0] == 0
    assert fleet.bank.in_flight[0] == 0
    assert fleet.bank.totals.failed > 0


def test_a_full_disk_blocks_the_host_and_evicts_its_pods_one_after_another(fleet: Fleet) -> None:
    node = int(fleet.pods.node_of_slot[0])
    here = len(fleet.pods.on_node(node))
    bent = Bent(fleet, ("nodes", "disk_lost_ratio", node, 0.7))
    step(fleet, 30)
    assert fleet.nodes.disk_pressure[node]
    assert fleet.nodes.filesystem_available_ratio[node] < 0.05
    assert len(fleet.pods.on_node(node)) == here
    step(fleet, 60)
    assert len(fleet.pods.on_node(node)) == here - 1
    assert fleet.pods.free_gpus()[node] == 0
    bent.stop(fleet)
    step(fleet, 5)
    assert fleet.pods.free_gpus()[node] == 2
    assert [code for _, code in entries(fleet) if code != "Scheduled"][:2] == ["NodeHasDiskPressure", "Evicted"]


@pytest.mark.slow
def test_a_container_above_its_memory_limit_is_killed_and_starts_again(fleet: Fleet) -> None:
    limit, used = fleet.containers.memory_limit_bytes[0], fleet.containers.working_set_bytes[0]
    assert 0.5 * limit < used < 0.8 * limit
    node = int(fleet.pods.node_of_slot[0])
    free = fleet.nodes.memory_available_ratio[node]
    bent = Bent(fleet, ("slots", "host_memory_bytes", 0, 0.8 * (limit - used)))
    step(fleet, 5)
    assert fleet.pods.ready[0]
    assert fleet.nodes.memory_available_ratio[node] < free - 0.02
    bent.stop(fleet)
    bent = Bent(fleet, ("slots", "host_memory_bytes", 0, 1.2 * (limit - used)))
    step(fleet, 3)
    bent.stop(fleet)
    pod = fleet.pods.pods[0]
    assert (pod.phase, pod.last_terminated) == (Phase.CRASHED, "OOMKilled")
    assert fleet.nodes.oom_kills.tolist() == [1.0 if number == node else 0.0 for number in range(4)]
    assert fleet.containers.oom_kills[0] == 1
    assert entries(fleet, JournalSource.KERNEL) == [(pod.name, "oom-kill")]
    step(fleet, 260)
    assert pod.ready
    assert (pod.restarts, pod.generation) == (1, 1)


def test_a_pod_without_a_node_logs_it_once(fleet: Fleet) -> None:
    fleet.pods.cordoned[:] = True
    fleet.restart(0)
    step(fleet, 60)
    assert fleet.pods.pods[0].unschedulable
    assert [code for _, code in entries(fleet)] == ["Killing", "FailedScheduling"]
    fleet.pods.cordoned[:] = False
    step(fleet, 10)
    assert fleet.pods.pods[0].node is not None


def test_pods_and_devices_are_found_by_name(fleet: Fleet) -> None:
    assert fleet.gpu_named[fleet.gpu_uuid(9)] == 9
    assert fleet.node_named["node-2"] == 2
    assert fleet.pod_named("code-14b-1") is fleet.pods.pods[1]
    assert fleet.pod_named("code-14b-6") is None
    assert fleet.pod_named("nobody") is None
