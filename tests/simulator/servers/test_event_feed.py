"""Lines of an unreachable host arrive once it responds."""

from __future__ import annotations

import pytest

from outrider.model import EntityKind
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.servers.event_feed import EventFeed
from tests.simulator.faulted_fleet import CALM, NOON, spec


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(spec(CALM), seed=5, start=NOON)


def write_entries(fleet: Fleet) -> None:
    """Writes one entry of each source, about the first host or its pods."""
    pod = fleet.pods.on_node(0)[0]
    about = fleet.entity(EntityKind.POD, pod.name, pod.service.namespace)
    gpu = fleet.entity(EntityKind.GPU, fleet.gpu_uuid(0))
    for source, entity in (
        (JournalSource.KERNEL, gpu),
        (JournalSource.ENGINE, about),
        (JournalSource.KUBERNETES, about),
        (JournalSource.CHANGE, fleet.entity(EntityKind.SERVICE, pod.service.name, pod.service.namespace)),
    ):
        fleet.journal.write(fleet.at, source, entity, source.value, "x")


def test_everything_is_received_once_and_in_order(fleet: Fleet) -> None:
    feed = EventFeed(fleet)
    feed.new_events()
    write_entries(fleet)
    assert [event.code for event in feed.new_events()] == ["kernel", "engine", "kubernetes", "change"]
    assert feed.new_events() == []


def test_logs_of_an_unreachable_host_arrive_once_it_responds(fleet: Fleet) -> None:
    feed = EventFeed(fleet)
    feed.new_events()
    fleet.effects.nodes.reachable[0] = 0.0
    write_entries(fleet)
    assert [event.code for event in feed.new_events()] == ["kubernetes", "change"]
    fleet.effects.nodes.reachable[0] = 1.0
    assert [event.code for event in feed.new_events()] == ["kernel", "engine"]


def test_an_unreachable_cluster_sends_no_events(fleet: Fleet) -> None:
    feed = EventFeed(fleet)
    feed.new_events()
    fleet.effects.cluster.seen[0] = 0.0
    write_entries(fleet)
    assert feed.new_events() == []
    fleet.effects.cluster.seen[0] = 1.0
    assert len(feed.new_events()) == 4
