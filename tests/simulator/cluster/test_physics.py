from __future__ import annotations

import numpy as np
import pytest

from simulator.cluster.pods import Phase
from simulator.fleet import Fleet
from simulator.hardware import coupling
from tests.simulator.small import Bent, coarse_fleet, small_fleet, step


@pytest.fixture
def fleet() -> Fleet:
    return small_fleet()


def gpus_of(fleet: Fleet, slot: int) -> list[int]:
    return list(fleet.pods.pods[slot].gpus)


def test_a_lower_power_limit_lowers_power_and_clock_and_is_counted(fleet: Fleet) -> None:
    gpu, other = gpus_of(fleet, 0)
    Bent(fleet, ("gpus", "power_limit_ratio", gpu, 0.4))
    step(fleet, 90)
    assert fleet.gpus.power_limit[gpu] == pytest.approx(0.4 * fleet.gpus.limit[gpu])
    assert fleet.gpus.power[gpu] <= 1.03 * fleet.gpus.power_limit[gpu]
    assert fleet.gpus.clock_ratio[gpu] < 0.9
    assert fleet.gpus.clock_ratio[other] == 1.0
    assert fleet.gpus.power_nanoseconds[gpu] > 60e9
    assert fleet.gpus.power_nanoseconds[other] == 0
    assert fleet.gpus.thermal_nanoseconds[gpu] == 0
    assert coupling.stretch(fleet)[0] > 1.1
    assert (coupling.stretch(fleet)[1:] == 1.0).all()


@pytest.mark.slow
def test_lost_cooling_and_lost_fans_throttle_by_heat(fleet: Fleet) -> None:
    gpu = gpus_of(fleet, 0)[0]
    far = gpus_of(fleet, 3)[0]
    Bent(fleet, ("gpus", "cooling_factor", gpu, 4.5), ("nodes", "fan_factor", int(fleet.gpus.node[far]), 0.3))
    step(fleet, 300)
    assert fleet.gpus.clock_ratio[[gpu, far]].max() < 0.95
    assert fleet.gpus.thermal_nanoseconds[[gpu, far]].min() > 0
    assert fleet.gpus.power_nanoseconds.max() == 0
    assert fleet.nodes.fan_rpm[fleet.gpus.node[far]] < fleet.nodes.fan_rpm[2]


def test_a_lost_link_slows_its_group_and_moves_traffic_to_pcie(fleet: Fleet) -> None:
    gpu, peer = gpus_of(fleet, 1)
    before = fleet.gpus.nvlink[gpu], fleet.gpus.pcie[gpu]
    Bent(fleet, ("gpus", "link_factor", gpu, 0.25), ("gpus", "link_errors_per_second", gpu, 20.0))
    step(fleet, 60)
    assert coupling.stretch(fleet)[1] == pytest.approx(1 + 3 * coupling.REDUCE_RATIO)
    assert fleet.gpus.nvlink[gpu] < 0.6 * before[0]
    assert fleet.gpus.pcie[gpu] > 2 * before[1]
    assert fleet.gpus.link_errors[gpu] == pytest.approx(1200)
    assert fleet.gpus.link_errors[peer] == 0


def test_memory_errors_retire_rows(fleet: Fleet) -> None:
    Bent(
        fleet,
        ("gpus", "ecc_correctable_per_second", 0, 100.0),
        ("gpus", "ecc_uncorrectable_per_second", 1, 0.1),
        ("gpus", "pcie_replays_per_second", 2, 5.0),
    )
    step(fleet, 65)
    assert fleet.gpus.ecc_correctable[0] == pytest.approx(6500)
    assert fleet.gpus.rows_remapped[:3].tolist() == [3, 6, 0]
    assert fleet.gpus.pcie_replays[:3] == pytest.approx([0, 0, 325])


def test_a_device_memory_leak_stops_at_its_capacity(fleet: Fleet) -> None:
    gpu, before = 0, fleet.gpus.memory_used[0]
    Bent(fleet, ("gpus", "extra_memory_mebibytes", gpu, 2000.0), ("gpus", "extra_memory_mebibytes", 1, 1e9))
    step(fleet, 5)
    assert fleet.gpus.memory_used[gpu] == pytest.approx(before + 2000, abs=1)
    assert fleet.gpus.memory_used[1] < fleet.gpus.memory[1]


def test_a_noisy_neighbour_and_a_cpu_limit_slow_steps_and_are_counted(fleet: Fleet) -> None:
    node, busy = int(fleet.pods.node_of_slot[0]), fleet.gpus.utilization[gpus_of(fleet, 3)].mean()
    cpu = fleet.nodes.cpu_busy_ratio[node]
    Bent(
        fleet,
        ("nodes", "neighbor_cpu_ratio", node, 0.6),
        ("nodes", "neighbor_factor", node, 1.3),
        ("slots", "cpu_throttled_ratio", 3, 0.5),
    )
    step(fleet, 60)
    assert fleet.nodes.cpu_busy_ratio[node] > cpu + 0.5
    assert coupling.stretch(fleet)[0] == pytest.approx(1.3)
    assert coupling.stretch(fleet)[3] == pytest.approx(1 + 0.5 * coupling.THROTTLED_STRETCH)
    assert fleet.gpus.utilization[gpus_of(fleet, 3)].mean() < 0.8 * busy
    containers = fleet.containers
    assert containers.throttled_periods[3] / containers.throttled_seconds[3] > 0
    assert containers.throttled_seconds[0] == 0


def test_a_lossy_network_is_counted_and_fails_some_requests(fleet: Fleet) -> None:
    node = int(fleet.pods.node_of_slot[0])
    Bent(fleet, ("nodes", "packet_loss_ratio", node, 0.2))
    step(fleet, 60)
    hosts = fleet.nodes
    for counted in (hosts.receive_errors, hosts.receive_drops, hosts.transmit_drops, hosts.tcp_retransmits):
        assert counted[node] > 10
        assert np.delete(counted, node).max() == 0
    assert fleet.bank.counters.plain["http_5xx"][0] > 0
    assert fleet.bank.totals.failed > 0


def test_effects_change_ports_disks_clocks_and_power_supplies(fleet: Fleet) -> None:
    bent = Bent(
        fleet,
        ("nodes", "port_up", 0, 0.0),
        ("nodes", "rdma_errors_per_second", 0, 3.0),
        ("nodes", "clock_offset_seconds", 1, 0.4),
        ("nodes", "supplies_failed", 2, 1.0),
        ("nodes", "disk_factor", 3, 8.0),
    )
    before = fleet.nodes.disk_seconds.copy(), fleet.nodes.io_pressure_seconds.copy()
    step(fleet, 30)
    hosts = fleet.nodes
    assert not hosts.port_up[0]
    assert hosts.port_up[1:].all()
    assert hosts.link_downs.tolist() == [1, 0, 0, 0]
    assert hosts.rdma_errors[0] == pytest.approx(90)
    assert hosts.clock_offset[1] == pytest.approx(0.4, abs=0.01)
    assert hosts.supplies_failed.tolist() == [0, 0, 1, 0]
    assert (hosts.disk_seconds - before[0])[3] > 20
    assert (hosts.io_pressure_seconds - before[1])[3] > 2
    bent.stop(fleet)
    step(fleet, 5)
    assert fleet.nodes.port_up.all()
    assert abs(fleet.nodes.clock_offset[1]) < 0.001


@pytest.mark.parametrize(("effects", "share"), [("hung", 0.25), ("asleep", 0.25), ("core_dead", 0.0)])
def test_a_hung_core_keeps_its_share_unless_its_health_check_fails(fleet: Fleet, effects: str, share: float) -> None:
    Bent(fleet, ("slots", effects, 2, 1.0))
    tokens = fleet.bank.counters.plain["generation_tokens"][2]
    step(fleet, 30)
    assert fleet.router.shares(fleet.effects)[2] == pytest.approx(share)
    assert fleet.stalled.tolist() == [False, False, True, False, False, False, False]
    assert fleet.bank.counters.plain["generation_tokens"][2] in (tokens, 0.0)
    assert fleet.pods.pods[2].ready
    assert fleet.kubelets.pod_ready[2] == (share > 0)
    if effects == "core_dead":
        assert fleet.bank.in_flight[2] == 0
        assert fleet.bank.totals.failed > 0
    else:
        assert fleet.bank.in_flight[2] > 10


def test_wrong_weights_skew_the_load(fleet: Fleet) -> None:
    Bent(fleet, ("slots", "weight_factor", 1, 3.0))
    step(fleet, 30)
    assert fleet.router.shares(fleet.effects)[:4] == pytest.approx([1 / 6, 1 / 2, 1 / 6, 1 / 6])
    assert fleet.requests_per_second[1] == pytest.approx(3 * fleet.requests_per_second[0])


def test_a_share_of_requests_fails_at_once(fleet: Fleet) -> None:
    Bent(fleet, ("slots", "error_ratio", 0, 0.5))
    before = {name: values.copy() for name, values in fleet.bank.counters.plain.items()}
    step(fleet, 60)
    now = fleet.bank.counters.plain
    errors = now["finished_error"] - before["finished_error"]
    assert errors[0] > 20
    assert errors[1:].max() == 0
    totals = fleet.bank.totals
    assert totals.arrived == totals.finished + totals.failed + totals.gave_up + len(fleet.bank.table)


@pytest.mark.slow
def test_loading_takes_longer_from_slow_storage_and_pulling_from_a_slow_registry() -> None:
    spent = []
    for effects in ((), (("storage_factor", 3.0), ("pull_factor", 4.0))):
        fleet = coarse_fleet()
        Bent(fleet, *[("nodes", name, node, value) for name, value in effects for node in range(4)])
        step(fleet, 5)
        fleet.restart(0)
        step(fleet, 700)
        assert fleet.pods.pods[0].phase is Phase.READY
        spent.append(fleet.pods.pods[0].phase_seconds)
    calm, slow = spent
    assert slow["pull"] == pytest.approx(4 * calm["pull"], rel=0.05)
    assert slow["load"] == pytest.approx((1 + 2 * coupling.READ_RATIO) * calm["load"], rel=0.05)
    assert slow["warm"] == pytest.approx(calm["warm"], rel=0.01)
    assert fleet.pods.pods[0].startup_seconds == pytest.approx(slow["load"] + slow["warm"])


def test_a_dead_cluster_serves_no_request_and_recovers(fleet: Fleet) -> None:
    bent = Bent(fleet, ("cluster", "alive", 0, 0.0))
    step(fleet, 60)
    failed = fleet.bank.totals.failed
    assert failed > 100
    assert fleet.bank.in_flight.sum() == 0
    bent.stop(fleet)
    step(fleet, 30)
    assert fleet.bank.totals.failed == failed
    assert fleet.bank.in_flight.sum() > 10
