"""Engines, hooks and clusters of the simulated fleet, and the faults that these operations end."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from detectors.hardware.xid import xids
from outrider.errors import UsageError
from outrider.model import ActionKind, EntityKind, EntityRef, OutcomeStatus
from simulator.cluster.operations import CACHE_FILL_SECONDS, REBOOT_SECONDS
from simulator.faults import FAULTS, inject
from simulator.fleet import Fleet
from simulator.hardware.diagnostic import DIAGNOSTIC_SECONDS
from simulator.scoring.recovery import Recovery
from simulator.servers.control import Answer, Control
from simulator.world import World
from tests.simulator.small import START, coarse_fleet, small_spec, step

DONE, ALREADY, FAILED = OutcomeStatus.DONE, OutcomeStatus.ALREADY, OutcomeStatus.FAILED
IN_PROGRESS = OutcomeStatus.IN_PROGRESS


@pytest.fixture
def fleet() -> Fleet:
    return coarse_fleet()


@pytest.fixture
def control(fleet: Fleet) -> Control:
    return Control(fleet)


def first_replica(fleet: Fleet) -> str:
    return fleet.pods.pods[0].name


def gpu_of(fleet: Fleet, slot: int = 0) -> EntityRef:
    return fleet.entity(EntityKind.GPU, fleet.gpu_uuid(fleet.pods.pods[slot].gpus[0]))


def node_of(fleet: Fleet, slot: int = 0) -> EntityRef:
    return fleet.entity(EntityKind.NODE, fleet.nodes.names[fleet.pods.pods[slot].node or 0])


def followed(fleet: Fleet, control: Control, id_: str, kind: ActionKind, target: EntityRef, seconds: float) -> Answer:
    """Repeats an action, as the dispatcher does, until it ends or ``seconds`` have passed."""
    for _ in range(int(seconds / 5) + 1):
        answer = control.act(id_, kind, target)
        if answer.status is not IN_PROGRESS:
            return answer
        step(fleet, 5)
    return answer


def test_an_engine_sleeps_until_it_is_woken(fleet: Fleet, control: Control) -> None:
    name, slot = first_replica(fleet), 0
    assert control.act("s1", ActionKind.SLEEP_ENGINE, name).status is DONE
    step(fleet, 20)
    assert fleet.stalled[slot]
    assert control.act("s2", ActionKind.SLEEP_ENGINE, name).status is ALREADY
    assert control.act("w1", ActionKind.WAKE_ENGINE, name).status is DONE
    step(fleet, 10)
    assert not fleet.stalled[slot]
    assert control.act("w2", ActionKind.WAKE_ENGINE, name).status is ALREADY


@pytest.mark.slow
def test_a_new_process_of_a_sleeping_engine_is_awake(fleet: Fleet, control: Control) -> None:
    control.act("s", ActionKind.SLEEP_ENGINE, first_replica(fleet))
    step(fleet, 5)
    fleet.restart(0)
    step(fleet, 300)
    assert fleet.pods.ready[0]
    assert not fleet.stalled[0]


@pytest.mark.slow
def test_waking_ends_the_fault_of_a_sleeping_engine(fleet: Fleet, control: Control) -> None:
    inject(fleet, "engine-asleep", first_replica(fleet))
    recovery = Recovery(fleet, fleet.injections[-1])  # type: ignore[arg-type]
    step(fleet, 30)
    recovery.update()
    assert fleet.stalled[0]
    assert control.act("w", ActionKind.WAKE_ENGINE, first_replica(fleet)).status is DONE
    for _ in range(6):
        step(fleet, 15)
        recovery.update()
    assert recovery.at is not None
    assert recovery.at - START.timestamp() < 60


def test_an_emptied_prefix_cache_fills_again(fleet: Fleet, control: Control) -> None:
    def counted() -> tuple[float, float]:
        plain = fleet.bank.counters.plain
        return float(plain["cached_tokens"][0]), float(plain["prompt_tokens"][0])

    def hit_ratio(seconds: float) -> float:
        cached, prompt = counted()
        step(fleet, seconds)
        return (counted()[0] - cached) / (counted()[1] - prompt)

    usual = hit_ratio(60)
    assert usual > 0.05
    control.act("r", ActionKind.RESET_PREFIX_CACHE, first_replica(fleet))
    assert hit_ratio(10) < 0.4 * usual
    step(fleet, CACHE_FILL_SECONDS)
    assert hit_ratio(60) > 0.7 * usual


def test_a_reset_is_refused_while_an_engine_uses_the_device(fleet: Fleet, control: Control) -> None:
    answer = control.act("r", ActionKind.RESET_GPU, gpu_of(fleet))
    assert answer.status is FAILED
    assert "drain the node first" in answer.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "operation", "returns"),
    [
        ("gpu-xid-hardware", ActionKind.RESET_GPU, True),
        ("gpu-xid-hardware", ActionKind.REBOOT_NODE, True),
        ("gpu-lost", ActionKind.RESET_GPU, False),
        ("gpu-lost", ActionKind.REBOOT_NODE, True),
    ],
)
def test_a_lost_device_returns_if_its_xid_says_so(
    fleet: Fleet, control: Control, fault: str, operation: ActionKind, returns: bool
) -> None:
    device, gpu = gpu_of(fleet), fleet.pods.pods[0].gpus[0]
    inject(fleet, fault, device)
    step(fleet, 30)
    assert not fleet.gpus.healthy[gpu]
    fleet.restart(0)  # its pod moves
    step(fleet, 30)
    target = device if operation is ActionKind.RESET_GPU else _node_of_gpu(fleet, gpu)
    answer = followed(fleet, control, "x", operation, target, REBOOT_SECONDS + 120)
    step(fleet, 10)
    assert answer.status is (DONE if returns else FAILED)
    assert bool(fleet.gpus.healthy[gpu] and fleet.gpus.visible[gpu]) is returns


def _node_of_gpu(fleet: Fleet, gpu: int) -> EntityRef:
    return fleet.entity(EntityKind.NODE, fleet.nodes.names[int(fleet.gpus.node[gpu])])


@pytest.mark.slow
def test_a_failed_row_remap_is_not_cured_by_a_reset(fleet: Fleet, control: Control) -> None:
    spare = int(np.flatnonzero(fleet.pods.owner < 0)[0])
    device = fleet.entity(EntityKind.GPU, fleet.gpu_uuid(spare))
    inject(fleet, "gpu-ecc-uncorrectable", device)
    step(fleet, 6 * 60 + 10)
    assert control.act("r", ActionKind.RESET_GPU, device).status is DONE
    step(fleet, 10)
    assert fleet.effects.gpus.row_remap_failed[spare] == 1.0


@pytest.mark.slow
def test_a_reboot_takes_minutes_and_the_pods_with_it(fleet: Fleet, control: Control) -> None:
    target, node = node_of(fleet), fleet.pods.pods[0].node or 0
    assert control.act("b", ActionKind.REBOOT_NODE, target).status is IN_PROGRESS
    step(fleet, 60)
    assert not fleet.pods.ready[0]
    assert not fleet.nodes.ready[node]
    assert control.act("b", ActionKind.REBOOT_NODE, target).status is IN_PROGRESS
    before = fleet.at
    answer = followed(fleet, control, "b", ActionKind.REBOOT_NODE, target, REBOOT_SECONDS)
    assert answer.status is DONE
    assert REBOOT_SECONDS - 120 < fleet.at - before < REBOOT_SECONDS
    assert control.act("b", ActionKind.REBOOT_NODE, target) == answer, "the end is remembered"
    step(fleet, 10)
    assert fleet.nodes.ready[node]


@pytest.mark.slow
def test_a_lost_node_returns_after_its_reboot(fleet: Fleet, control: Control) -> None:
    target, node = node_of(fleet), fleet.pods.pods[0].node or 0
    inject(fleet, "node-lost", target)
    step(fleet, 60)
    assert not fleet.nodes.ready[node]
    assert followed(fleet, control, "b", ActionKind.REBOOT_NODE, target, REBOOT_SECONDS + 30).status is DONE
    step(fleet, 60)
    assert fleet.nodes.ready[node]


def test_a_diagnostic_fails_while_the_fault_is_present(fleet: Fleet, control: Control) -> None:
    target, device = node_of(fleet), gpu_of(fleet)
    inject(fleet, "gpu-xid-hardware", device)
    step(fleet, 30)
    failed = followed(fleet, control, "d1", ActionKind.RUN_DIAGNOSTIC, target, DIAGNOSTIC_SECONDS)
    assert failed.status is FAILED
    assert "is not usable" in failed.detail
    control.act("r", ActionKind.RESET_GPU, device)
    assert control.act("d2", ActionKind.RUN_DIAGNOSTIC, target).status is IN_PROGRESS
    assert followed(fleet, control, "d2", ActionKind.RUN_DIAGNOSTIC, target, DIAGNOSTIC_SECONDS).status is DONE


def test_a_link_with_errors_fails_the_diagnostic_of_its_node_only(fleet: Fleet, control: Control) -> None:
    inject(fleet, "nvlink-degraded", gpu_of(fleet))
    step(fleet, 60)
    broken, other = node_of(fleet), fleet.entity(EntityKind.NODE, fleet.nodes.names[3])
    assert fleet.node_named[other.name] != fleet.node_named[broken.name]
    assert followed(fleet, control, "d1", ActionKind.RUN_DIAGNOSTIC, broken, DIAGNOSTIC_SECONDS).status is FAILED
    assert followed(fleet, control, "d2", ActionKind.RUN_DIAGNOSTIC, other, DIAGNOSTIC_SECONDS).status is DONE


@pytest.mark.slow
def test_every_service_of_a_cluster_switches_at_once() -> None:
    fleets = [
        Fleet(small_spec(cluster=name, prefix=prefix, tick_seconds=5.0), seed=3, start=START)
        for name, prefix in (("east", ""), ("west", "w-"))
    ]
    world = World(fleets)
    control = Control(fleets[0], world)
    target = EntityRef("east", EntityKind.CLUSTER, None, "east")
    name = fleets[0].spec.services[0].name
    params = {"cluster": "west", "share": 0.25}
    assert control.act("s1", ActionKind.SWITCH_CLUSTER, target, params).status is DONE
    assert world.entries(name)["west"] == pytest.approx(0.25)
    assert control.act("s2", ActionKind.SWITCH_CLUSTER, target, params).status is ALREADY
    with pytest.raises(UsageError, match="names no cluster"):
        control.act("s3", ActionKind.SWITCH_CLUSTER, target)


def test_a_dry_run_changes_nothing(fleet: Fleet, control: Control) -> None:
    for kind, target in ((ActionKind.REBOOT_NODE, node_of(fleet)), (ActionKind.SLEEP_ENGINE, first_replica(fleet))):
        assert control.act(kind.value, kind, target, dry_run=True).status is OutcomeStatus.DRY_RUN
    step(fleet, 30)
    assert fleet.pods.ready[0]
    assert not fleet.stalled[0]


def test_restoring_a_fleet_ends_reboots_and_wakes_engines(fleet: Fleet, control: Control) -> None:
    control.act("s", ActionKind.SLEEP_ENGINE, first_replica(fleet))
    control.act("b", ActionKind.REBOOT_NODE, fleet.entity(EntityKind.NODE, fleet.nodes.names[3]))
    fleet.restore()
    step(fleet, 30)
    assert not fleet.stalled[0]
    assert fleet.nodes.ready.all()


def test_what_cures_a_fault_agrees_with_the_class_of_its_xid() -> None:
    checked = 0
    for declared in FAULTS.values():
        first = [action for action in declared.actions if action.do == "xid" and action.at_seconds == 0.0]
        codes = [code for action in first for code in action.arguments["code"]]  # type: ignore[attr-defined]
        for code in codes:
            immediate = xids()[code].immediate
            if immediate == "RESET_GPU":
                assert ActionKind.RESET_GPU in declared.cures, (declared.fault, code)
                checked += 1
            if immediate == "RESTART_BM":
                assert ActionKind.RESET_GPU not in declared.cures, (declared.fault, code)
                assert ActionKind.REBOOT_NODE in declared.cures, (declared.fault, code)
                checked += 1
    assert checked >= 7
    assert timedelta(0) < FAULTS["gpu-lost"].lasts
