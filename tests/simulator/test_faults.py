from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.catalog import signals
from outrider.errors import UsageError
from outrider.faults import faults
from outrider.model import EntityKind
from simulator import story
from simulator.control import Control
from simulator.faults import FAULTS, inject
from simulator.fleet import Fleet
from simulator.pods import Phase
from simulator.spec import default_spec
from simulator.targets import Pages, targets

SPEC = replace(default_spec(), slice_seconds=1.0)  # half the work of the usual grain
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(SPEC, seed=5, start=NOON)


def page(fleet: Fleet, name: str) -> str | None:
    found = Pages(fleet).all()[name]
    return None if found is None else found.decode()


def value(text: str, start: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))


def tpot(fleet: Fleet, slot: int, span: timedelta) -> float:
    counters = fleet.bank.counters
    before = counters.sums["tpot"][slot], counters.buckets["tpot"][slot].sum()
    fleet.step(span)
    return float((counters.sums["tpot"][slot] - before[0]) / (counters.buckets["tpot"][slot].sum() - before[1]))


def test_every_fault_is_of_the_vocabulary() -> None:
    for name, kind in FAULTS.items():
        assert kind.fault == name
        assert faults()[name].entity is kind.kind
        assert set(kind.symptoms) <= set(signals())


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_begins_ends_and_leaves_the_fleet_whole(fleet: Fleet, name: str) -> None:
    truth = inject(fleet, name, start=NOON + MINUTE, duration=3 * MINUTE, seed=3)
    assert (truth.start, truth.end) == (NOON + MINUTE, NOON + 4 * MINUTE)
    assert truth.entity.kind is faults()[name].entity
    fleet.step(MINUTE - timedelta(seconds=1))
    assert not fleet.injections[0].started
    fleet.step(2 * MINUTE)
    assert fleet.injections[0].started
    fleet.step(6 * MINUTE)
    assert fleet.injections == []
    assert sum(pod.ready for pod in fleet.pods.pods) == 16
    assert fleet.gpus.healthy.all()
    assert fleet.gpus.visible.all()
    assert not fleet.hung.any()
    assert not fleet.exporters_down
    assert not fleet.traffic.surges
    assert (fleet.gpus.cooling_loss == 1.0).all()


def test_gpu_lost_shows_the_xid_then_the_engine_dies_then_the_rows_vanish(fleet: Fleet) -> None:
    gpu = fleet.gpu_uuid(5)
    inject(fleet, "gpu-lost", gpu)
    assert page(fleet, "chat-70b-1") is not None
    fleet.step(timedelta(seconds=15))
    device = page(fleet, "dcgm-node-0")
    assert device is not None
    assert f'UUID="{gpu}"' in device
    assert 'err_code="79",err_msg="GPU has fallen off the bus"} 79' in device
    assert page(fleet, "chat-70b-1") is None
    fleet.step(timedelta(seconds=15))
    device = page(fleet, "dcgm-node-0")
    assert device is not None
    assert gpu not in device
    assert device.count("DCGM_FI_DEV_GPU_TEMP{") == 7
    cluster = page(fleet, "kube-state")
    assert cluster is not None
    assert value(cluster, 'kube_node_status_capacity{node="node-0",resource="nvidia_com_gpu"') == 8
    assert value(cluster, 'kube_node_status_allocatable{node="node-0",resource="nvidia_com_gpu"') == 7
    assert 'pod="chat-70b-1"' in next(line for line in cluster.splitlines() if "CrashLoopBackOff" in line)
    fleet.step(2 * MINUTE)
    assert fleet.pods.pods[1].restarts > 1
    assert fleet.pods.pods[0].ready


def test_gpu_lost_is_cured_by_a_new_pod_elsewhere(fleet: Fleet) -> None:
    inject(fleet, "gpu-lost", fleet.gpu_uuid(5))
    fleet.step(MINUTE)
    control = Control(fleet)
    control.act("1", "cordon", "node-0")
    control.act("2", "restart_pod", "chat-70b-1")
    fleet.step(6 * MINUTE)
    pod = fleet.pods.pods[1]
    assert pod.ready
    assert pod.node == 6
    assert fleet.bank.running[1] > 0


def test_engine_dead_refuses_until_its_pod_is_new(fleet: Fleet) -> None:
    inject(fleet, "engine-dead", "chat-70b-3", duration=30 * MINUTE)
    fleet.step(timedelta(seconds=15))
    assert page(fleet, "chat-70b-3") is None
    refused = fleet.bank.ledger.failed
    assert refused > 0
    fleet.step(MINUTE)
    assert fleet.bank.ledger.failed == refused  # the router has noticed
    Control(fleet).act("1", "restart_pod", "chat-70b-3")
    fleet.step(6 * MINUTE)
    text = page(fleet, "chat-70b-3")
    assert text is not None
    assert value(text, "process_start_time_seconds") > NOON.timestamp()
    finished = value(text, 'vllm:request_success_total{engine="0",finished_reason="stop"')
    assert 0 < finished < 5000


def test_engine_hung_freezes_its_page_while_requests_pile_up(fleet: Fleet) -> None:
    inject(fleet, "engine-hung", "code-14b-2", duration=4 * MINUTE)
    fleet.step(timedelta(seconds=15))
    first, load = page(fleet, "code-14b-2"), fleet.bank.in_flight[15]
    fleet.step(2 * MINUTE)
    second = page(fleet, "code-14b-2")
    assert first is not None
    assert second is not None
    frozen = [[line for line in text.splitlines() if line.startswith("vllm:")] for text in (first, second)]
    assert frozen[0] == frozen[1]
    assert first != second
    assert fleet.bank.in_flight[15] > load + 100
    assert value(second, "process_open_fds") > value(first, "process_open_fds") + 100
    replica = next(target for target in targets(fleet) if target.name == "code-14b-2")
    assert Pages(fleet).probe(replica) == (200, fleet.bank.in_flight[15])
    assert fleet.bank.running[14] > 0
    fleet.step(2 * MINUTE + timedelta(seconds=2))
    assert fleet.bank.waiting[15] > 50  # the backlog
    fleet.step(3 * MINUTE)
    assert fleet.bank.waiting[15] < 5


def test_engine_hung_is_cured_by_a_restart(fleet: Fleet) -> None:
    inject(fleet, "engine-hung", "code-14b-2", duration=30 * MINUTE)
    fleet.step(MINUTE)
    Control(fleet).act("1", "restart_pod", "code-14b-2")
    fleet.step(6 * MINUTE)
    assert fleet.pods.pods[15].ready
    assert not fleet.hung[15]
    assert fleet.bank.running[15] > 0


def test_thermal_throttle_heats_slows_and_touches_one_group_only(fleet: Fleet) -> None:
    usual = tpot(fleet, 0, 2 * MINUTE)
    inject(fleet, "gpu-thermal-throttle", fleet.gpu_uuid(0), duration=8 * MINUTE)
    fleet.step(4 * MINUTE)
    assert fleet.gpus.temperature[0] > 84
    assert fleet.gpus.clock_ratio[0] < 0.75
    assert fleet.gpus.thermal_nanoseconds[0] > 0
    assert (fleet.gpus.clock_ratio[1:] == 1.0).all()
    assert tpot(fleet, 0, 2 * MINUTE) > 1.25 * usual
    assert tpot(fleet, 1, 2 * MINUTE) < 1.2 * usual
    device = page(fleet, "dcgm-node-0")
    assert device is not None
    assert value(device, 'DCGM_FI_DEV_SM_CLOCK{gpu="0"') < 1500
    assert value(device, 'DCGM_FI_DEV_SM_CLOCK{gpu="1"') == 1980
    fleet.step(8 * MINUTE)
    assert fleet.gpus.clock_ratio[0] == 1.0


def test_a_surge_fills_every_replica_of_its_service_and_drains(fleet: Fleet) -> None:
    inject(fleet, "traffic-surge", "chat-70b", duration=5 * MINUTE)
    fleet.step(4 * MINUTE)
    assert fleet.bank.waiting[:10].min() > 10
    assert fleet.bank.waiting[13:].max() < 5
    assert fleet.bank.running[:10].min() > 80
    before = fleet.bank.counters.buckets["ttft"][:10].copy()
    fleet.step(MINUTE)
    seen = (fleet.bank.counters.buckets["ttft"][:10] - before).sum(axis=0)
    assert seen[13:].sum() > 0.5 * seen.sum()  # most wait longer than 2.5 s
    fleet.step(8 * MINUTE)
    assert fleet.bank.waiting[:10].max() < 10


def test_more_replicas_shorten_a_surge() -> None:
    queues = []
    for scaled in (False, True):
        fleet = Fleet(SPEC, seed=5, start=NOON)
        inject(fleet, "traffic-surge", "chat-70b", duration=20 * MINUTE)
        fleet.step(2 * MINUTE)
        if scaled:
            Control(fleet).act("1", "scale", "chat-70b", {"replicas": 13})
        fleet.step(8 * MINUTE)
        queues.append(fleet.bank.waiting.sum())
    assert queues[1] < 0.75 * queues[0]


def test_exporter_down_takes_one_page_and_nothing_else(fleet: Fleet) -> None:
    inject(fleet, "exporter-down", "node-4")
    fleet.step(timedelta(seconds=15))
    found = Pages(fleet).all()
    assert [name for name, text in found.items() if text is None] == ["dcgm-node-4"]


def test_unknown_faults_and_entities_name_what_is_near(fleet: Fleet) -> None:
    with pytest.raises(UsageError) as refused:
        inject(fleet, "gpu-loss")
    assert "gpu-lost" in refused.value.hint
    with pytest.raises(UsageError) as refused:
        inject(fleet, "engine-dead", "chat-70b-99")
    assert "chat-70b-9" in refused.value.hint
    with pytest.raises(UsageError, match="no node"):
        inject(fleet, "exporter-down", "chat-70b-0")
    with pytest.raises(UsageError, match="longer than 0"):
        inject(fleet, "engine-dead", duration=timedelta(0))
    assert fleet.injections == []


def test_a_seed_chooses_the_entity(fleet: Fleet) -> None:
    chosen = {inject(fleet, "engine-dead", seed=seed).entity for seed in range(20)}
    again = [inject(fleet, "engine-dead", seed=3).entity for _ in range(2)]
    assert len(chosen) > 5
    assert again[0] == again[1]
    assert all(entity.kind is EntityKind.REPLICA for entity in chosen)


@pytest.mark.parametrize("seed", range(3))
def test_the_story_is_fixed_but_for_its_entities(seed: int) -> None:
    fleet = Fleet(SPEC, seed=1, start=NOON)
    lost, surge, hung = story.arrange(fleet, seed)
    assert [truth.fault for truth in (lost, surge, hung)] == ["gpu-lost", "traffic-surge", "engine-hung"]
    assert [(truth.start - NOON) / MINUTE for truth in (lost, surge, hung)] == [5, 20, 40]
    place = next(gpu for gpu in range(64) if fleet.gpu_uuid(gpu) == lost.entity.name)
    assert fleet.pods.pods[int(fleet.pods.owner[place])].name != hung.entity.name
    assert surge.entity.name == "chat-70b"


def test_two_faults_on_one_replica_do_not_undo_each_other(fleet: Fleet) -> None:
    inject(fleet, "engine-hung", "chat-70b-1", duration=2 * MINUTE)
    inject(fleet, "gpu-lost", fleet.gpu_uuid(5), start=NOON + MINUTE, duration=4 * MINUTE)
    fleet.step(4 * MINUTE)
    assert fleet.pods.pods[1].phase is Phase.CRASHED
    assert not fleet.hung[1]
    fleet.step(5 * MINUTE)
    assert fleet.pods.pods[1].ready
    assert np.isfinite(fleet.bank.running).all()
