"""Responses of targets with network, host and process faults."""

from __future__ import annotations

import pytest

from collectors.mapping.target import target_of
from outrider.model import EntityKind
from simulator.exporters.responses import PATIENCE_SECONDS, Status, transfer_seconds
from simulator.exporters.targets import Pages, SimulatedTarget, every_target, targets
from simulator.fleet import Fleet
from tests.simulator.small import Bent, coarse_fleet, step


@pytest.fixture
def fleet() -> Fleet:
    return coarse_fleet()


def at(fleet: Fleet, name: str) -> SimulatedTarget:
    return next(one for one in every_target(fleet) if one.name == name)


def engine(fleet: Fleet) -> str:
    return fleet.pods.pods[0].name


def test_a_target_has_its_node(fleet: Fleet) -> None:
    labels = at(fleet, "node-3").labels
    assert labels == {"node": "node-3", "pool": "h100", "switch": fleet.nodes.switch[3], "storage": "models-0"}
    read = target_of("small", at(fleet, "node-3").as_config("http://x/metrics"))
    below = {(lower.kind, lower.name) for lower, _ in read.edges}
    assert below == {(EntityKind.SWITCH, fleet.nodes.switch[3]), (EntityKind.STORAGE, "models-0")}
    assert at(fleet, engine(fleet)).labels["version"] == "v1"


def test_only_pages_with_an_adapter_are_listed(fleet: Fleet) -> None:
    usual = {target.adapter for target in targets(fleet)}
    assert {"vllm", "dcgm", "node_exporter", "cadvisor", "kube_state_metrics"} <= usual
    assert "istio" not in usual
    assert [target.name for target in targets(fleet, ["istio"])] == ["istio-gateway"]
    assert {one.adapter for one in every_target(fleet)} >= usual | {"istio"}


def test_healthy_targets_respond_at_once(fleet: Fleet) -> None:
    pages = Pages(fleet)
    answers = [pages.answer(one) for one in every_target(fleet)]
    assert {answer.status for answer in answers} == {Status.OK}
    assert all(answer.body and answer.seconds < 0.1 for answer in answers)
    mine = pages.answer(at(fleet, engine(fleet)))
    assert (mine.health, mine.load) == (200, fleet.bank.in_flight[0])
    assert pages.answer(at(fleet, "node-0")).health is None


def test_dead_engines_and_stopped_exporters_refuse(fleet: Fleet) -> None:
    pages = Pages(fleet)
    fleet.crash(0, "test")
    fleet.exporters_down |= {"dcgm-node-0", "cadvisor-node-1"}
    for name in (engine(fleet), "dcgm-node-0", "cadvisor-node-1"):
        answer = pages.answer(at(fleet, name))
        assert (answer.status, answer.body, answer.health) == (Status.REFUSED, None, None)
        assert not pages.up(at(fleet, name))
    assert pages.answer(at(fleet, "node-0")).status is Status.OK


@pytest.mark.parametrize("effects", ["alive", "reachable"])
def test_every_target_on_a_dead_or_unreachable_host_times_out(fleet: Fleet, effects: str) -> None:
    pages = Pages(fleet)
    node = int(fleet.pods.node_of_slot[0])
    Bent(fleet, ("nodes", effects, node, 0.0))
    step(fleet, 5)
    for name in (engine(fleet), f"dcgm-node-{node}", f"node-{node}", f"cadvisor-node-{node}"):
        answer = pages.answer(at(fleet, name))
        assert (answer.status, answer.body, answer.seconds) == (Status.TIMEOUT, None, PATIENCE_SECONDS), name
        assert pages.up(at(fleet, name)), "its packets are lost, not refused"
    assert pages.answer(at(fleet, f"node-{(node + 1) % 4}")).status is Status.OK
    assert pages.answer(at(fleet, "kube-state")).status is Status.OK


@pytest.mark.parametrize("effects", ["alive", "seen"])
def test_every_target_of_an_unreachable_cluster_times_out(fleet: Fleet, effects: str) -> None:
    Bent(fleet, ("cluster", effects, 0, 0.0))
    step(fleet, 5)
    pages = Pages(fleet)
    silent = {one.name: pages.answer(one).status for one in every_target(fleet)}
    outside = {name for name, status in silent.items() if status is Status.OK}
    assert outside == {f"probe-{service.name}" for service in fleet.spec.services}, "probes run outside the cluster"


def test_an_engine_without_its_core_returns_503_and_one_that_hangs_or_sleeps_200(fleet: Fleet) -> None:
    Bent(fleet, ("slots", "core_dead", 0, 1.0), ("slots", "asleep", 1, 1.0), ("slots", "hung", 2, 1.0))
    step(fleet, 10)
    pages = Pages(fleet)
    answers = [pages.answer(at(fleet, fleet.pods.pods[slot].name)) for slot in range(3)]
    assert [answer.status for answer in answers] == [Status.HTTP_503, Status.OK, Status.OK]
    assert [answer.health for answer in answers] == [503, 200, 200]
    assert [answer.body is None for answer in answers] == [True, False, False]


def test_a_frozen_page_repeats_itself_until_the_effect_ends(fleet: Fleet) -> None:
    pages, target = Pages(fleet), at(fleet, engine(fleet))
    cold = Bent(fleet, ("slots", "page_frozen", 0, 1.0))
    step(fleet, 15)
    first = pages.answer(target).body
    for _ in range(2):
        step(fleet, 15)
        assert pages.answer(target).body == first
    cold.stop(fleet)
    step(fleet, 15)
    assert pages.answer(target).body != first


def test_packet_loss_makes_scrapes_slow_and_some_fail() -> None:
    calm = transfer_seconds(100_000)
    lossy = [transfer_seconds(100_000, 0.2, f"{number}") for number in range(200)]
    assert lossy == [transfer_seconds(100_000, 0.2, f"{number}") for number in range(200)]
    assert min(lossy) >= calm
    assert 0.2 < sum(lossy) / 200 - calm < 4.0
    mild = [transfer_seconds(100_000, 0.02, f"{number}") for number in range(200)]
    assert sum(mild) < sum(lossy) / 3
    awful = [transfer_seconds(100_000, 1.0, f"{number}") for number in range(20)]
    assert min(awful) > PATIENCE_SECONDS


def test_packet_loss_reaches_every_target_of_the_host(fleet: Fleet) -> None:
    Bent(fleet, ("nodes", "packet_loss_ratio", 1, 0.3))
    pages, late, lost = Pages(fleet), 0, 0
    for _ in range(12):
        step(fleet, 15)
        for name in ("dcgm-node-1", "node-1", "cadvisor-node-1"):
            answer = pages.answer(at(fleet, name))
            late += answer.seconds > 0.2
            lost += answer.status is Status.TIMEOUT
        assert pages.answer(at(fleet, "node-2")).seconds < 0.1
    assert late > 20
    assert 0 < lost < late
