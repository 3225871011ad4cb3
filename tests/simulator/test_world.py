from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from collectors.mapping.target import targets_of
from outrider.errors import ConfigError, UsageError
from outrider.model import EntityKind, OutcomeStatus
from simulator.fleet import Fleet
from simulator.servers.control import Control
from simulator.world import World
from tests.simulator.small import START, Bent, coarse_fleet, small_spec

SERVICE = "code-14b"


@pytest.fixture
def world() -> World:
    spec = small_spec(tick_seconds=2.0, slice_seconds=2.0)
    standby = replace(spec, cluster="standby", prefix="standby-")
    return World([Fleet(spec, 3, START), Fleet(standby, 3, START)])


@pytest.mark.slow
def test_a_standby_is_idle_until_the_entry_is_switched(world: World) -> None:
    home, standby = world.fleets
    world.step(timedelta(seconds=150))
    assert home.now == standby.now == world.now
    assert home.bank.in_flight.sum() > 20
    assert standby.bank.in_flight.sum() == 0
    world.switch_entry(SERVICE, "standby")
    world.step(timedelta(seconds=150))
    assert home.bank.in_flight.sum() == 0
    assert standby.bank.in_flight.sum() > 20
    assert standby.bank.totals.failed == 0


@pytest.mark.slow
def test_the_standby_replaces_a_lost_cluster(world: World) -> None:
    home, standby = world.fleets
    Bent(home, ("cluster", "alive", 0, 0.0))
    world.step(timedelta(seconds=30))
    assert home.bank.totals.failed > 50
    control = Control(home, world)
    service = home.entity(EntityKind.SERVICE, SERVICE, "serving")
    assert control.act("a", "shift_traffic", service, {"cluster": "standby"}).status is OutcomeStatus.DONE
    assert control.act("b", "shift_traffic", service, {"cluster": "standby"}).status is OutcomeStatus.ALREADY
    failed = home.bank.totals.failed
    world.step(timedelta(seconds=30))
    assert home.bank.totals.failed == failed
    assert standby.bank.totals.failed == 0
    assert standby.bank.in_flight.sum() > 10
    assert control.act("c", "restore_traffic", service).status is OutcomeStatus.DONE
    assert world.entries(SERVICE) == {"small": 1.0, "standby": 0.0}


def test_part_of_the_traffic_can_be_switched(world: World) -> None:
    world.switch_entry(SERVICE, "standby", 0.25)
    assert world.entries(SERVICE) == {"small": 0.75, "standby": 0.25}
    assert [float(fleet.entry[0]) for fleet in world.fleets] == [0.75, 0.25]
    changes = [line for line in world.fleets[1].journal.after() if line.code == "entry"]
    assert changes[-1].attributes["to"] == "standby"
    world.restore()
    assert world.entries(SERVICE) == {"small": 1.0, "standby": 0.0}


def test_the_control_finds_the_fleet_of_an_entity(world: World) -> None:
    home, standby = world.fleets
    control = Control(home, world)
    control.act("a", "cordon", standby.entity(EntityKind.NODE, "standby-node-1"))
    assert standby.pods.cordoned.tolist() == [False, True, False, False]
    assert not home.pods.cordoned.any()
    control.act("b", "restart_pod", standby.entity(EntityKind.POD, "code-14b-0", "serving"))
    assert [fleet.pods.pods[0].generation for fleet in world.fleets] == [1, 2]


def test_the_targets_of_all_clusters_make_one_configuration(world: World) -> None:
    documents = [target.as_config(f"http://fleet.invalid{target.target.path}") for target in world.targets()]
    read = targets_of("small", documents)
    assert len({target.name for target in read}) == len(documents)
    assert {target.entity.cluster for target in read} == {"small", "standby"}
    ours = next(target for target in read if target.name == "standby-code-14b-0")
    assert ours.service is not None
    assert (ours.entity.cluster, ours.service.cluster) == ("standby", "standby")


@pytest.mark.parametrize("cluster", ["a/b", 7])
def test_an_invalid_cluster_name_is_refused(cluster: object) -> None:
    entity = {"kind": "node", "name": "n", "cluster": cluster}
    with pytest.raises(ConfigError, match="not a valid cluster name"):
        targets_of("small", [{"name": "n", "adapter": "node_exporter", "entity": entity}])


@pytest.mark.slow
def test_invalid_worlds_are_refused(world: World) -> None:
    home = world.home
    with pytest.raises(UsageError, match="needs a fleet"):
        World([])
    with pytest.raises(UsageError, match="two fleets are called small"):
        World([home, home])
    other = Fleet(small_spec(cluster="other", tick_seconds=5.0, slice_seconds=5.0), 3, START + timedelta(hours=1))
    with pytest.raises(UsageError, match="different times"):
        World([home, other])
    with pytest.raises(UsageError, match="no cluster is named 'moon'"):
        world.switch_entry(SERVICE, "moon")
    with pytest.raises(UsageError, match="no service"):
        world.switch_entry("chat", "standby")
    with pytest.raises(UsageError, match="between 0 and 1"):
        world.switch_entry(SERVICE, "standby", 2.0)
    with pytest.raises(UsageError, match="no other cluster"):
        Control(coarse_fleet()).act("a", "shift_traffic", SERVICE, {"cluster": "standby"})
