from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.errors import UsageError
from outrider.model import EntityKind
from outrider.vocabulary.catalog import signals
from outrider.vocabulary.faults import faults
from simulator import story
from simulator.cluster.pods import Phase
from simulator.exporters.targets import Pages, targets
from simulator.faults import FAULTS, Injection, inject
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.servers.control import Control
from simulator.spec.fleets import H100, default_spec, drill_spec
from simulator.spec.parts import FleetSpec, PoolSpec, StartupSpec, TrafficSpec

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
CALM = TrafficSpec(peak_ratio=0.1, trough_ratio=0.9)  # few requests simulate quickly
BUSY = TrafficSpec(peak_ratio=0.4, trough_ratio=0.9)


def spec(traffic: TrafficSpec = CALM, tick_seconds: float = 5.0) -> FleetSpec:
    """Node-0 has chat-70b-0 and -1, node-1 chat-70b-2, code-14b-0 and -1, node-2 code-14b-2 and 6 free GPUs."""
    chat, code = drill_spec().services
    return FleetSpec(
        "small",
        (PoolSpec("h100-a", H100, 2), PoolSpec("h100-b", H100, 1)),
        (
            replace(chat, replicas=3, ceiling=5, tenants=(), traffic=traffic),
            replace(code, replicas=3, ceiling=4, traffic=traffic),
        ),
        startup=StartupSpec(4.0, 12.0, 40.0, 20.0),
        slice_seconds=tick_seconds,
        tick_seconds=tick_seconds,
    )


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(spec(), seed=5, start=NOON)


@pytest.fixture
def fine() -> Fleet:
    """The same fleet with ticks of one second."""
    return Fleet(spec(tick_seconds=1.0), seed=5, start=NOON)


@pytest.fixture
def busy() -> Fleet:
    return Fleet(spec(BUSY), seed=5, start=NOON)


def page(fleet: Fleet, name: str) -> str | None:
    result = Pages(fleet).all()[name]
    return None if result is None else result.decode()


def value(text: str, start: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))


def tpot(fleet: Fleet, slot: int, span: timedelta) -> float:
    counters = fleet.bank.counters
    before = counters.sums["tpot"][slot], counters.buckets["tpot"][slot].sum()
    fleet.step(span)
    return float((counters.sums["tpot"][slot] - before[0]) / (counters.buckets["tpot"][slot].sum() - before[1]))


def broken(
    fleet: Fleet, fault: str, entity: str | None = None, lasts: timedelta = 30 * MINUTE, seed: int = 0
) -> Injection:
    inject(fleet, fault, entity, duration=lasts, seed=seed)
    return fleet.injections[-1]


def hurt(fleet: Fleet, injection: Injection) -> list[str]:
    return [fleet.pods.pods[slot].name for slot in injection.impact(fleet).tolist()]


def entries(fleet: Fleet, source: JournalSource) -> list[tuple[str, str]]:
    return [(line.code, line.entity.name) for line in fleet.journal.after() if line.source is source]


# --- vocabulary and magnitude ----------------------------------------------------------------------------


def test_every_fault_is_of_the_vocabulary() -> None:
    for name, declared in FAULTS.items():
        assert declared.fault == name
        assert set(declared.symptoms) <= set(signals())
        if not declared.negative:
            assert faults()[name].entity is declared.kind
            assert faults()[name].layer is declared.layer


def test_the_seed_draws_one_magnitude_for_the_whole_fault(fleet: Fleet) -> None:
    drawn = []
    for seed in range(3):
        injection = broken(fleet, "nvlink-degraded", fleet.gpu_uuid(0), seed=seed)
        fleet.step(MINUTE)
        drawn.append((fleet.effects.gpus.link_errors_per_second[0], fleet.effects.gpus.link_factor[0]))
        injection.stop(fleet)
    assert len({errors for errors, _ in drawn}) == 3
    # From mild to severe: more errors, less bandwidth, in proportion.
    assert [(errors - 20) / 380 for errors, _ in drawn] == pytest.approx([(0.4 - left) / 0.2 for _, left in drawn])


def test_a_seed_chooses_the_entity(fleet: Fleet) -> None:
    chosen, again = set(), []
    for seed in (*range(12), 3, 3):
        injection = broken(fleet, "engine-dead", seed=seed)
        chosen.add(injection.entity)
        again += [injection.entity] if seed == 3 else []
        injection.stop(fleet)
    assert len(chosen) > 3
    assert len(set(again)) == 1
    assert all(entity.kind is EntityKind.REPLICA for entity in chosen)


# --- progress ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine-hung", "gpu-lost", "node-lost", "gpu-thermal-throttle", "crash-loop"])
def test_a_fault_begins_ends_and_restores_the_fleet(fleet: Fleet, name: str) -> None:
    truth = inject(fleet, name, start=NOON + MINUTE, duration=3 * MINUTE, seed=3)
    assert (truth.start, truth.end) == (NOON + MINUTE, NOON + 4 * MINUTE)
    assert truth.entity.kind is faults()[name].entity
    fleet.step(MINUTE)
    assert not fleet.injections[0].started
    fleet.step(2 * MINUTE)
    assert fleet.injections[0].started
    fleet.step(4 * MINUTE)
    assert fleet.injections == []
    assert fleet.pods.ready.sum() == 6
    assert fleet.gpus.healthy.all()
    assert fleet.gpus.visible.all()
    assert not fleet.stalled.any()


def test_stop_ends_the_ground_truth_and_restores_the_fleet(fleet: Fleet) -> None:
    injection = broken(fleet, "gpu-lost", fleet.gpu_uuid(0))
    later = inject(fleet, "engine-dead", "code-14b-0", start=NOON + 3 * MINUTE)
    fleet.step(MINUTE)
    for each in list(fleet.injections):
        each.stop(fleet)
        each.stop(fleet)  # idempotent
    assert injection.truth.end == fleet.now
    assert fleet.injections == []
    assert fleet.gpus.healthy.all()
    assert not fleet.gpus.xid.any()
    fleet.step(4 * MINUTE)
    assert fleet.pods.ready.sum() == 6
    assert later.entity.name == "code-14b-0"
    assert fleet.pods.pods[5].restarts == 0


def test_gpu_lost_logs_an_xid_then_the_engine_dies_then_the_rows_disappear(fine: Fleet) -> None:
    fleet, gpu = fine, fine.gpu_uuid(5)
    inject(fleet, "gpu-lost", gpu)
    fleet.step(SECOND)
    assert page(fleet, "chat-70b-1") is not None
    fleet.step(14 * SECOND)
    device = page(fleet, "dcgm-node-0")
    assert device is not None
    assert f'UUID="{gpu}"' in device
    assert 'err_code="79",err_msg="GPU has fallen off the bus"} 79' in device
    assert page(fleet, "chat-70b-1") is None
    fleet.step(15 * SECOND)
    device = page(fleet, "dcgm-node-0")
    assert device is not None
    assert gpu not in device
    assert device.count("DCGM_FI_DEV_GPU_TEMP{") == 7
    cluster = page(fleet, "kube-state")
    assert cluster is not None
    assert value(cluster, 'kube_node_status_capacity{node="node-0",resource="nvidia_com_gpu"') == 8
    assert value(cluster, 'kube_node_status_allocatable{node="node-0",resource="nvidia_com_gpu"') == 7
    assert 'pod="chat-70b-1"' in next(line for line in cluster.splitlines() if "CrashLoopBackOff" in line)
    assert entries(fleet, JournalSource.KERNEL) == [("xid", gpu)]
    assert ("cuda_error", "chat-70b-1") in entries(fleet, JournalSource.ENGINE)
    fleet.step(2 * MINUTE)
    assert fleet.pods.pods[1].restarts > 1
    assert fleet.pods.pods[0].ready


def test_engine_dead_refuses_until_its_pod_is_new(busy: Fleet) -> None:
    fleet = busy
    injection = broken(fleet, "engine-dead", "code-14b-0")
    fleet.step(15 * SECOND)
    assert page(fleet, "code-14b-0") is None
    refused = fleet.bank.totals.failed
    assert refused > 0
    fleet.step(MINUTE)
    assert fleet.bank.totals.failed == refused  # the health check has failed
    assert hurt(fleet, injection) == ["code-14b-0"]
    Control(fleet).act("1", "restart_pod", "code-14b-0")
    fleet.step(3 * MINUTE)
    text = page(fleet, "code-14b-0")
    assert text is not None
    assert value(text, "process_start_time_seconds") > NOON.timestamp()
    assert 0 < value(text, 'vllm:request_success_total{engine="0",finished_reason="stop"') < 5000
    assert hurt(fleet, injection) == []


@pytest.mark.slow
def test_engine_hung_freezes_its_page_while_requests_queue(busy: Fleet) -> None:
    fleet = busy
    inject(fleet, "engine-hung", "code-14b-2", duration=4 * MINUTE)
    fleet.step(15 * SECOND)
    slot = fleet.pods.slot_named["code-14b-2"]
    first, load = page(fleet, "code-14b-2"), fleet.bank.in_flight[slot]
    fleet.step(2 * MINUTE)
    second = page(fleet, "code-14b-2")
    assert first is not None
    assert second is not None
    frozen = [[line for line in text.splitlines() if line.startswith("vllm:")] for text in (first, second)]
    assert frozen[0] == frozen[1]
    assert first != second
    assert fleet.bank.in_flight[slot] > load + 100
    assert value(second, "process_open_fds") > value(first, "process_open_fds") + 100
    replica = next(target for target in targets(fleet) if target.name == "code-14b-2")
    assert Pages(fleet).probe(replica) == (200, fleet.bank.in_flight[slot])
    assert fleet.bank.running[slot - 1] > 0
    fleet.step(2 * MINUTE)
    assert not fleet.stalled[slot]
    fleet.step(3 * MINUTE)
    assert fleet.bank.waiting[slot] < 5


@pytest.mark.slow
def test_thermal_throttle_heats_slows_and_touches_one_group_only(busy: Fleet) -> None:
    fleet = busy
    usual = tpot(fleet, 0, 2 * MINUTE)
    broken(fleet, "gpu-thermal-throttle", fleet.gpu_uuid(0))
    fleet.step(4 * MINUTE)
    assert fleet.gpus.temperature[0] > 84
    assert fleet.gpus.clock_ratio[0] < 0.85
    assert fleet.gpus.thermal_nanoseconds[0] > 0
    assert (fleet.gpus.clock_ratio[1:] == 1.0).all()
    counters = fleet.bank.counters
    before = counters.sums["tpot"][1], counters.buckets["tpot"][1].sum()
    assert tpot(fleet, 0, 2 * MINUTE) > 1.2 * usual
    seen = (counters.sums["tpot"][1] - before[0]) / (counters.buckets["tpot"][1].sum() - before[1])
    assert seen < 1.1 * usual
    device = page(fleet, "dcgm-node-0")
    assert device is not None
    assert value(device, 'DCGM_FI_DEV_SM_CLOCK{gpu="0"') < 1700
    assert value(device, 'DCGM_FI_DEV_SM_CLOCK{gpu="1"') == 1980


@pytest.mark.slow
def test_a_surge_fills_every_replica_of_its_service_and_drains(busy: Fleet) -> None:
    fleet = busy
    injection = broken(fleet, "traffic-surge", "code-14b", lasts=4 * MINUTE)
    fleet.step(3 * MINUTE)
    slots = [pod.slot for pod in fleet.pods.of_service("code-14b") if pod.exists]
    assert fleet.bank.waiting[slots].min() > 5
    assert fleet.bank.waiting[:3].max() < 5
    assert hurt(fleet, injection) == [f"code-14b-{number}" for number in range(3)]
    fleet.step(4 * MINUTE)
    assert fleet.bank.waiting[slots].max() < 5


@pytest.mark.slow
def test_more_replicas_shorten_a_surge() -> None:
    queues = []
    for scaled in (False, True):
        fleet = Fleet(spec(BUSY), seed=5, start=NOON)
        broken(fleet, "traffic-surge", "code-14b")
        fleet.step(MINUTE)
        if scaled:
            Control(fleet).act("1", "scale", "code-14b", {"replicas": 4})
        fleet.step(7 * MINUTE)
        queues.append(fleet.bank.waiting.sum())
    assert queues[1] < 0.2 * queues[0]


@pytest.mark.slow
def test_exporter_down_removes_only_one_page(fleet: Fleet) -> None:
    inject(fleet, "exporter-down", "node-1")
    fleet.step(15 * SECOND)
    assert [name for name, text in Pages(fleet).all().items() if text is None] == ["dcgm-node-1"]


def test_memory_grows_in_each_process_until_the_kernel_kills_it(fleet: Fleet) -> None:
    injection = broken(fleet, "pod-oom", "code-14b-1")
    fleet.step(12 * MINUTE)
    pod = fleet.pods.pods[fleet.pods.slot_named["code-14b-1"]]
    kills = [line for line in fleet.journal.after() if line.code == "OOMKilling"]
    assert len(kills) >= 2
    assert np.diff([line.at for line in kills]).min() > 90  # load and growth take that long
    assert pod.last_terminated == "OOMKilled"
    assert pod.restarts >= 2
    injection.stop(fleet)


def test_a_crash_loop_backs_off_longer_and_longer(fleet: Fleet) -> None:
    broken(fleet, "crash-loop", "code-14b-1")
    fleet.step(7 * MINUTE)
    dies = [line.at for line in fleet.journal.after() if line.code == "config_unreadable"]
    assert len(dies) >= 4
    assert (np.diff(dies)[1:] >= np.diff(dies)[:-1]).all()
    assert fleet.pods.pods[fleet.pods.slot_named["code-14b-1"]].restarts >= 4


def test_a_full_pool_leaves_pods_pending_and_is_as_before_at_the_end(fleet: Fleet) -> None:
    injection = broken(fleet, "pods-pending", "h100-b", lasts=5 * MINUTE)
    fleet.step(2 * MINUTE)
    pending = [pod.name for pod in fleet.pods.pods if pod.phase is Phase.PENDING]
    assert pending
    assert hurt(fleet, injection) == pending
    assert ("FailedScheduling", pending[0]) in entries(fleet, JournalSource.KUBERNETES)
    fleet.step(4 * MINUTE)
    assert fleet.desired == {"chat-70b": 3, "code-14b": 3}
    assert fleet.pods.existing.sum() == 6


# --- remedies: judged by the fleet's state ---------------------------------------------------------------


def test_gpu_lost_is_cured_by_a_new_pod_elsewhere(fleet: Fleet) -> None:
    injection = broken(fleet, "gpu-lost", fleet.gpu_uuid(5))
    fleet.step(MINUTE)
    assert hurt(fleet, injection) == ["chat-70b-1"]
    control = Control(fleet)
    control.act("1", "cordon", "node-0")
    control.act("2", "restart_pod", "chat-70b-1")
    fleet.step(30 * SECOND)
    assert hurt(fleet, injection) == ["chat-70b-1"]  # it does not serve yet
    fleet.step(3 * MINUTE)
    pod = fleet.pods.pods[1]
    assert pod.ready
    assert pod.node == 2
    assert fleet.requests_per_second[1] > 0
    assert hurt(fleet, injection) == []


def test_a_restart_on_the_same_bad_device_does_not_help_and_a_cordon_with_it_does(fleet: Fleet) -> None:
    injection = broken(fleet, "gpu-slow-peer", fleet.gpu_uuid(0))
    fleet.step(MINUTE)
    assert hurt(fleet, injection) == ["chat-70b-0"]
    control = Control(fleet)
    control.act("1", "restart_pod", "chat-70b-0")
    fleet.step(3 * MINUTE)
    assert fleet.pods.pods[0].gpus == (0, 1, 2, 3)
    assert hurt(fleet, injection) == ["chat-70b-0"]
    control.act("2", "cordon", "node-0")
    control.act("3", "restart_pod", "chat-70b-0")
    fleet.step(3 * MINUTE)
    assert fleet.pods.pods[0].node == 2
    assert hurt(fleet, injection) == []


@pytest.mark.parametrize("fault", ["nvlink-degraded", "gpu-slow-peer", "gpu-power-throttle"])
def test_traffic_shifted_away_ends_the_impact(busy: Fleet, fault: str) -> None:
    fleet = busy
    injection = broken(fleet, fault, fleet.gpu_uuid(0))
    fleet.step(2 * MINUTE)
    assert hurt(fleet, injection) == ["chat-70b-0"]
    Control(fleet).act("1", "shift_traffic", "chat-70b-0", {"weight": 0})
    fleet.step(15 * SECOND)
    assert hurt(fleet, injection) == []
    Control(fleet).act("2", "restore_traffic", "chat-70b-0")
    fleet.step(2 * MINUTE)
    assert hurt(fleet, injection) == ["chat-70b-0"]


def test_the_impact_of_a_skew_ends_with_balanced_weights_only(busy: Fleet) -> None:
    fleet, names = busy, ["chat-70b-0", "chat-70b-1", "chat-70b-2"]
    injection = broken(fleet, "traffic-skew", fleet.entity(EntityKind.REPLICA, names[0], "serving"))
    fleet.step(MINUTE)
    assert hurt(fleet, injection) == names[:1]
    Control(fleet).act("1", "balance_traffic", "chat-70b", {"weights": {**dict.fromkeys(names, 20), names[0]: 40}})
    fleet.step(15 * SECOND)
    assert hurt(fleet, injection) == names[:1], "twice the share is still a skew"
    Control(fleet).act("2", "balance_traffic", "chat-70b", {"weights": dict.fromkeys(names, 20)})
    fleet.step(15 * SECOND)
    assert hurt(fleet, injection) == []


def test_a_new_process_does_not_have_the_fault_of_the_old_one(fleet: Fleet) -> None:
    injection = broken(fleet, "engine-hung", "code-14b-2")
    fleet.step(MINUTE)
    slot = fleet.pods.slot_named["code-14b-2"]
    assert fleet.stalled[slot]
    Control(fleet).act("1", "restart_pod", "code-14b-2")
    fleet.step(3 * MINUTE)
    assert fleet.pods.ready[slot]
    assert not fleet.stalled[slot]
    assert hurt(fleet, injection) == []


def test_rescheduled_pods_of_a_lost_node_start_elsewhere(fleet: Fleet) -> None:
    injection = broken(fleet, "node-lost", "node-2")
    fleet.step(MINUTE)
    assert hurt(fleet, injection) == ["code-14b-2"]
    assert ("NodeNotReady", "node-2") in entries(fleet, JournalSource.KUBERNETES)
    fleet.scale("code-14b", 2)
    fleet.scale("code-14b", 3)
    fleet.step(3 * MINUTE)
    pod = fleet.pods.pods[fleet.pods.slot_named["code-14b-2"]]
    assert hurt(fleet, injection) == ["code-14b-2"]  # every other device is taken
    assert pod.phase is Phase.PENDING
    fleet.scale("chat-70b", 2)
    fleet.step(3 * MINUTE)
    assert pod.ready
    assert hurt(fleet, injection) == []


def test_a_rollback_cures_a_bad_revision(fleet: Fleet) -> None:
    injection = broken(fleet, "bad-rollout", "code-14b", lasts=60 * MINUTE)
    fleet.step(2 * MINUTE)
    assert injection.revision == "v2"
    assert len(hurt(fleet, injection)) >= 1
    assert ("rollout", "code-14b") in entries(fleet, JournalSource.CHANGE)
    fleet.rollback("code-14b")
    fleet.step(7 * MINUTE)
    assert {pod.revision for pod in fleet.pods.of_service("code-14b") if pod.exists} == {"v1"}
    assert hurt(fleet, injection) == []
    injection.stop(fleet)
    assert [code for code, _ in entries(fleet, JournalSource.CHANGE)] == ["rollout", "rollback"]  # only one rollback


def test_a_fault_without_impact_is_refused(fleet: Fleet) -> None:
    for fault, entity in (("clock-skew", "node-0"), ("exporter-down", "node-1"), ("gpu-ecc-storm", fleet.gpu_uuid(0))):
        injection = broken(fleet, fault, entity)
        fleet.step(3 * MINUTE)
        assert hurt(fleet, injection) == []


# --- combinations ----------------------------------------------------------------------------------------


def test_two_faults_on_one_replica_do_not_undo_each_other(fleet: Fleet) -> None:
    inject(fleet, "engine-hung", "chat-70b-1", duration=2 * MINUTE)
    inject(fleet, "gpu-lost", fleet.gpu_uuid(5), start=NOON + MINUTE, duration=4 * MINUTE)
    fleet.step(4 * MINUTE)
    assert fleet.pods.pods[1].phase is Phase.CRASHED
    assert not fleet.stalled[1]
    fleet.step(4 * MINUTE)
    assert fleet.pods.pods[1].ready


def test_effects_on_two_faults_multiply(fleet: Fleet) -> None:
    broken(fleet, "gpu-slow-peer", fleet.gpu_uuid(0))
    broken(fleet, "noisy-neighbour", "node-0")
    broken(fleet, "nvlink-degraded", fleet.gpu_uuid(0))
    fleet.step(2 * MINUTE)
    assert fleet.effects.gpus.step_factor[0] > 1.39
    assert fleet.effects.nodes.neighbor_factor[0] > 1.19
    assert fleet.effects.gpus.link_factor[0] < 0.5
    assert len(fleet.injections) == 3


def test_conflicting_faults_are_refused_with_the_reason(fleet: Fleet) -> None:
    gpu = fleet.gpu_uuid(0)
    inject(fleet, "gpu-lost", gpu, duration=10 * MINUTE)
    inject(fleet, "engine-asleep", "code-14b-0")
    inject(fleet, "node-lost", "node-2", start=NOON + MINUTE)
    for fault, entity, reason in (
        ("gpu-lost", gpu, "already has gpu-lost"),
        ("gpu-thermal-throttle", gpu, "is removed by gpu-lost of GPU-.*: no target for gpu-thermal-throttle"),
        ("engine-hung", "code-14b-0", "cannot have engine-hung and engine-asleep"),
    ):
        with pytest.raises(UsageError, match=reason) as refused:
            inject(fleet, fault, entity)
        assert "lasts until 2026-11-18T12:" in str(refused.value)
    with pytest.raises(UsageError, match="is removed by node-lost of node-2"):
        inject(fleet, "gpu-slow-peer", fleet.gpu_uuid(20), start=NOON + 2 * MINUTE)
    with pytest.raises(UsageError, match="is removed by node-lost"):
        inject(fleet, "exporter-down", "node-2", start=NOON + 2 * MINUTE)
    inject(fleet, "exporter-down", "node-0")  # another entity on the same node
    inject(fleet, "gpu-lost", gpu, start=NOON + 10 * MINUTE)  # after the first has ended
    assert len(fleet.injections) == 5


def test_a_slow_device_may_be_lost_later(fleet: Fleet) -> None:
    gpu = fleet.gpu_uuid(0)
    inject(fleet, "gpu-thermal-throttle", gpu, duration=4 * MINUTE)
    inject(fleet, "gpu-lost", gpu, start=NOON + 2 * MINUTE, duration=4 * MINUTE)
    fleet.step(3 * MINUTE)
    assert not fleet.gpus.healthy[0]
    fleet.step(5 * MINUTE)
    assert fleet.pods.ready.sum() == 6


def test_a_lost_cluster_accepts_no_other_fault(fleet: Fleet) -> None:
    truth = inject(fleet, "cluster-lost")
    assert truth.entity.kind is EntityKind.CLUSTER
    assert len(truth.touches) == 1 + 3 + 24 + 6 + 2
    with pytest.raises(UsageError, match="is removed by cluster-lost of small"):
        inject(fleet, "engine-hung", "code-14b-0")


def test_a_fault_touches_the_entities_of_its_effects(fleet: Fleet) -> None:
    gpu = inject(fleet, "gpu-thermal-throttle", fleet.gpu_uuid(0))
    assert [ref.name for ref in gpu.touches] == [fleet.gpu_uuid(0), "chat-70b-0"]
    rack = inject(fleet, "switch-down", fleet.nodes.switch[0])
    assert [ref.name for ref in rack.touches][:3] == ["rack-0", "node-0", "node-1"]
    assert len(rack.touches) == 1 + 2 + 5


# --- refused injections ----------------------------------------------------------------------------------


def test_unknown_faults_and_entities_name_near_matches(fleet: Fleet) -> None:
    with pytest.raises(UsageError) as refused:
        inject(fleet, "gpu-loss")
    assert "gpu-lost" in refused.value.hint
    with pytest.raises(UsageError) as refused:
        inject(fleet, "engine-dead", "chat-70b-99")
    assert "chat-70b-" in refused.value.hint
    with pytest.raises(UsageError, match="no node"):
        inject(fleet, "exporter-down", "chat-70b-0")
    with pytest.raises(UsageError, match="more than 0 s"):
        inject(fleet, "engine-dead", duration=timedelta(0))
    with pytest.raises(UsageError, match="is before the fleet's time"):
        inject(fleet, "engine-dead", start=NOON - MINUTE)
    assert fleet.injections == []


def test_without_requests_hardware_faults_work_and_traffic_faults_are_refused() -> None:
    # The night of a service without traffic at its trough.
    silent = Fleet(spec(TrafficSpec(trough_ratio=0.0, noise_ratio=0.0)), seed=5, start=NOON - timedelta(hours=10))
    assert not silent.demand(silent.at).any()
    injection = broken(silent, "gpu-thermal-throttle")
    silent.step(2 * MINUTE)
    assert (silent.effects.gpus.cooling_factor > 4).sum() == 1
    assert hurt(silent, injection) == []
    with pytest.raises(UsageError, match="gets no requests now"):
        inject(silent, "traffic-surge", "chat-70b")


# --- the demo's story ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_seed_changes_only_the_entities_of_the_story(seed: int) -> None:
    calm = tuple(replace(service, traffic=CALM) for service in default_spec().services)
    fleet = Fleet(replace(default_spec(), services=calm, slice_seconds=5.0, tick_seconds=5.0), seed=1, start=NOON)
    lost, surge, hung = story.arrange(fleet, seed)
    assert [truth.fault for truth in (lost, surge, hung)] == ["gpu-lost", "traffic-surge", "engine-hung"]
    assert [(truth.start - NOON) / MINUTE for truth in (lost, surge, hung)] == [5, 20, 40]
    place = fleet.gpu_named[lost.entity.name]
    assert fleet.pods.pods[int(fleet.pods.owner[place])].name != hung.entity.name
    assert surge.entity.name == "chat-70b"
