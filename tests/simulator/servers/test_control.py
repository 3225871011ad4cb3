from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.errors import UsageError
from outrider.model import EntityKind, OutcomeStatus
from simulator.cluster.pods import Phase
from simulator.exporters.targets import targets
from simulator.fleet import Fleet
from simulator.servers.control import Control
from simulator.spec.fleets import default_spec

SPEC = replace(default_spec(), slice_seconds=1.0)
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(SPEC, seed=5, start=NOON)


@pytest.fixture
def control(fleet: Fleet) -> Control:
    return Control(fleet)


def test_an_id_is_performed_once(fleet: Fleet, control: Control) -> None:
    first = control.act("a", "restart_pod", "chat-70b-0")
    generation = fleet.pods.pods[0].generation
    assert control.act("a", "restart_pod", "chat-70b-0") == first
    assert fleet.pods.pods[0].generation == generation
    control.act("b", "restart_pod", "chat-70b-0")
    assert fleet.pods.pods[0].generation == generation + 1


def test_cordon_and_uncordon(fleet: Fleet, control: Control) -> None:
    assert control.act("a", "cordon", "node-7").status is OutcomeStatus.DONE
    assert control.act("b", "cordon", "node-7").status is OutcomeStatus.ALREADY
    fleet.pods.create(10, fleet.at)
    fleet.pods.create(11, fleet.at)
    fleet.step(timedelta(seconds=20))
    assert fleet.pods.pods[10].node == 6
    assert fleet.pods.pods[11].phase is Phase.PENDING
    assert control.act("c", "uncordon", "node-7").status is OutcomeStatus.DONE
    fleet.step(timedelta(seconds=20))
    assert fleet.pods.pods[11].node == 7


def test_drain_moves_what_fits_elsewhere(fleet: Fleet, control: Control) -> None:
    control.act("a", "drain", fleet.entity(EntityKind.NODE, "node-3"))
    fleet.step(timedelta(seconds=20))
    assert not any(pod.node == 3 for pod in fleet.pods.pods)
    assert [fleet.pods.pods[slot].node for slot in (6, 7)] == [6, 7]


@pytest.mark.slow
def test_shifting_traffic_empties_a_replica_and_restoring_fills_it(fleet: Fleet, control: Control) -> None:
    control.act("a", "shift_traffic", fleet.entity(EntityKind.REPLICA, "chat-70b-2", "serving"))
    fleet.step(timedelta(minutes=2))
    assert fleet.bank.in_flight[2] == 0
    control.act("b", "restore_traffic", fleet.entity(EntityKind.REPLICA, "chat-70b-2", "serving"))
    fleet.step(timedelta(minutes=1))
    assert fleet.bank.in_flight[2] > 10
    half = control.act("c", "shift_traffic", fleet.entity(EntityKind.GPU, fleet.gpu_uuid(0)), {"weight": 0.5})
    assert half.status is OutcomeStatus.DONE
    assert fleet.router.weights[0] == 0.5
    control.act("d", "shift_traffic", fleet.entity(EntityKind.NODE, "node-5"))
    assert fleet.router.weights[13:17].tolist() == [0, 0, 0, 0]


def test_balanced_weights_replace_wrong_ones_until_the_route_is_restored(fleet: Fleet, control: Control) -> None:
    service = fleet.entity(EntityKind.SERVICE, "chat-70b", "serving")
    names = [pod.name for pod in fleet.pods.of_service("chat-70b") if pod.exists]
    fleet.router.assume_ready()
    fleet.effects.slots.weight_factor[2] = 2.5
    wrong = fleet.router.shares(fleet.effects)
    weights = {**dict.fromkeys(names, 10), names[0]: 20}
    assert control.act("a", "balance_traffic", service, {"weights": weights}).status is OutcomeStatus.DONE
    shares = fleet.router.shares(fleet.effects)[: len(names)]
    assert shares.tolist() == pytest.approx([weights[name] / sum(weights.values()) for name in names])
    assert control.act("b", "balance_traffic", service, {"weights": weights}).status is OutcomeStatus.ALREADY
    assert control.act("c", "restore_traffic", service).status is OutcomeStatus.DONE
    assert fleet.router.shares(fleet.effects).tolist() == wrong.tolist()
    assert control.act("d", "restore_traffic", service).status is OutcomeStatus.ALREADY


@pytest.mark.slow
def test_scaling_out_and_in(fleet: Fleet, control: Control) -> None:
    assert control.act("a", "scale", "chat-70b", {"replicas": 12}).status is OutcomeStatus.DONE
    assert len([target for target in targets(fleet) if target.adapter == "vllm"]) == 16
    fleet.step(timedelta(minutes=6))
    assert len([target for target in targets(fleet) if target.adapter == "vllm"]) == 18
    assert fleet.bank.running[10:12].min() > 0
    assert control.act("b", "scale", "chat-70b", {"replicas": 12}).status is OutcomeStatus.ALREADY
    control.act("c", "scale", "chat-70b", {"replicas": 9})
    fleet.step(timedelta(seconds=15))
    assert [pod.slot for pod in fleet.pods.of_service("chat-70b") if pod.exists] == list(range(9))
    assert control.act("d", "scale", "chat-70b", {"replicas": 99}).status is OutcomeStatus.FAILED


def test_a_dry_run_changes_nothing_and_is_not_stored(fleet: Fleet, control: Control) -> None:
    assert control.act("a", "cordon", "node-1", dry_run=True).status is OutcomeStatus.DRY_RUN
    assert not fleet.pods.cordoned.any()
    assert control.act("a", "cordon", "node-1").status is OutcomeStatus.DONE


@pytest.mark.parametrize(
    ("kind", "target", "params", "sentence"),
    [
        ("reboot", "node-1", {}, "not an action"),
        ("cordon", "node-99", {}, "no node"),
        ("restart_pod", "chat-70b-12", {}, "no pod"),
        ("scale", "chat", {"replicas": 3}, "no service"),
        ("scale", "chat-70b", {}, "whole number"),
        ("shift_traffic", "chat-70b-1", {"weight": 2}, "between 0 and 1"),
        ("shift_traffic", "chat-70b-1", {"weight": "half"}, "between 0 and 1"),
        ("balance_traffic", "chat-70b", {}, "no weights"),
        ("balance_traffic", "chat-70b", {"weights": {"chat-70b-0": 0.5}}, "whole number"),
        ("balance_traffic", "chat-70b", {"weights": {"chat-70b-0": 0}}, "all weights are 0"),
        ("balance_traffic", "chat-70b", {"weights": {"code-14b-0": 1}}, "no replica 'code-14b-0'"),
    ],
)
def test_invalid_actions_are_refused_in_one_sentence(
    control: Control, kind: str, target: str, params: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        control.act("a", kind, target, params)
    assert refused.value.hint


def test_a_paused_rollout_replaces_no_further_pods_until_it_is_resumed(fleet: Fleet, control: Control) -> None:
    fleet.rollout("chat-70b", "r2")
    assert control.act("a", "pause_rollout", "chat-70b").status is OutcomeStatus.DONE
    assert control.act("b", "pause_rollout", "chat-70b").status is OutcomeStatus.ALREADY
    fleet.step(timedelta(minutes=1))
    assert {pod.revision for pod in fleet.pods.of_service("chat-70b") if pod.exists} == {"v1"}
    assert control.act("c", "resume_rollout", "chat-70b").status is OutcomeStatus.DONE
    fleet.step(timedelta(minutes=1))
    assert "r2" in {pod.revision for pod in fleet.pods.of_service("chat-70b") if pod.exists}
    with pytest.raises(UsageError, match="already at revision r2"):
        fleet.rollout("chat-70b", "r2")


def test_a_running_pod_is_not_stuck(fleet: Fleet, control: Control) -> None:
    assert control.act("a", "delete_stuck_pod", "chat-70b-0").status is OutcomeStatus.FAILED
    assert fleet.pods.pods[0].exists


def test_a_schedulable_node_needs_no_uncordon(control: Control) -> None:
    assert control.act("a", "uncordon", "node-7").status is OutcomeStatus.ALREADY
