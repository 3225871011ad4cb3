"""Concurrent event sources: late ones, broken ones, repeated readings, reports of two sources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from collectors.events.deduplication import SAME_FAULT_WINDOW, EventDeduplicator
from collectors.events.event_sources import EventSources
from collectors.events.unresolved_event import UnresolvedEvent
from outrider.clock import rfc3339
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.topology import Topology

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
NODE = EntityRef("c", EntityKind.NODE, None, "node-1")
GPU = EntityRef("c", EntityKind.GPU, None, "GPU-1")
KNOWN = Topology.build([(NODE, GPU)], labels={GPU: {"pci": "0000:3b:00"}})


def sighting(key: str, ago: float = 1.0) -> UnresolvedEvent:
    at = AT - timedelta(seconds=ago)
    return UnresolvedEvent(EventKind.XID, "79", at, "kernel_log", key, NODE, pci="0000:3b:00")


class Scripted:
    """A source with scripted results."""

    def __init__(self, name: str, *rounds: Callable[[], object]) -> None:
        self.name = name
        self.rounds = list(rounds)
        self.nodes: list[tuple[EntityRef, ...]] = []
        self.closed = False

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        del at
        self.nodes.append(tuple(nodes))
        events = self.rounds.pop(0)() if self.rounds else []
        if isinstance(events, asyncio.Event):
            await events.wait()
            return [sighting("late")], []
        if isinstance(events, CollectError):
            return [], [events, events]
        assert isinstance(events, list)
        return events, []

    async def close(self) -> None:
        self.closed = True


def keys(events: tuple[Event, ...]) -> list[str]:
    return [event.dedup_key for event in events]


def test_events_are_resolved_sorted_and_reported_once() -> None:
    async def scene() -> None:
        one = Scripted("a", lambda: [sighting("k2", 1.0), sighting("k1", 5.0)], lambda: [sighting("k1", 5.0)])
        sources = EventSources([one])
        events = await sources.collect(AT, KNOWN)
        assert keys(events) == ["k1", "k2"]
        assert {event.entity for event in events} == {GPU}
        assert await sources.collect(AT) == ()
        assert one.nodes == [(NODE,), (NODE,)]
        await sources.close()
        assert one.closed

    asyncio.run(scene())


def test_a_failing_source_is_reported_and_does_not_stop_the_others() -> None:
    def broken() -> object:
        raise KeyError("metadata")

    async def scene() -> None:
        away = CollectError("b: it is away", reason=CollectReason.REFUSED)
        sources = EventSources(
            [Scripted("a", lambda: [sighting("k1")]), Scripted("b", lambda: away), Scripted("c", broken)]
        )
        assert keys(await sources.collect(AT, KNOWN)) == ["k1"]
        health = {one.target: one for one in sources.health}
        assert (health["a"].up, health["a"].samples, health["a"].last_success) == (True, 1, AT)
        assert (health["b"].up, health["b"].error, health["b"].reason) == (
            False,
            "b: it is away (and 1 more)",
            "refused",
        )
        assert health["c"].error == "c: unexpected response (KeyError)"
        assert keys(await sources.collect(AT, KNOWN)) == []
        assert all(one.up for one in sources.health)
        await sources.close()

    asyncio.run(scene())


def test_a_late_source_is_delivered_in_the_next_cycle() -> None:
    async def scene() -> None:
        held = asyncio.Event()
        slow = Scripted("slow", lambda: held)
        sources = EventSources([slow, Scripted("fast", lambda: [sighting("k1")])], deadline=timedelta(milliseconds=20))
        assert keys(await sources.collect(AT, KNOWN)) == ["k1"]
        assert [one.late for one in sources.health] == [True, False]
        held.set()
        assert keys(await sources.collect(AT, KNOWN)) == ["late"]
        assert len(slow.nodes) == 1  # no second reading beside the first
        held.clear()
        slow.rounds = [lambda: held]
        await sources.collect(AT, KNOWN)
        await sources.close()

    asyncio.run(scene())


def test_each_source_is_read_at_its_interval() -> None:
    async def scene() -> None:
        rare, often = Scripted("rare"), Scripted("often")
        sources = EventSources([rare, often], every={"rare": timedelta(minutes=1)})
        for seconds in (0, 15, 30, 59, 60, 75, -600):
            await sources.collect(AT + timedelta(seconds=seconds))
        assert (len(rare.nodes), len(often.nodes)) == (3, 7)  # at 0, at 60, and when the clock was set back

    asyncio.run(scene())


def xid(source: str, seconds: float = 0.0, entity: EntityRef = GPU, code: str = "79") -> Event:
    at = AT + timedelta(seconds=seconds)
    return Event(f"{source}{seconds}{code}", EventKind.XID, entity, at, source, code)


def test_an_xid_that_two_endpoints_report_is_one_event() -> None:
    deduplicator = EventDeduplicator()
    (reported,) = deduplicator.deduplicate([xid("kernel_log"), xid("dcgm-node-1", 9)])
    assert (reported.id, reported.source, reported.at) == (xid("kernel_log").id, "kernel_log", AT)
    assert reported.attributes == {"sources": "kernel_log, dcgm-node-1"}
    page = xid("dcgm-node-1", 500)
    assert deduplicator.deduplicate([page]) == (page,)
    (again,) = deduplicator.deduplicate([xid("kernel_log", 495)])
    assert again == replace(page, attributes={"sources": "kernel_log, dcgm-node-1"})


def test_one_fault_of_four_sources_is_one_event_with_all_attributes() -> None:
    kernel = replace(xid("kernel_log", 0.5), attributes={"pid": "7", "text": "off the bus"})
    page = replace(xid("dcgm-node-1", 12), attributes={"pod": "chat-0", "text": "as the page has it"})
    four = [page, xid("agent-node-1", 9), xid("nvml", 0.6), kernel]
    (reported,) = EventDeduplicator().deduplicate(four)
    assert (reported.id, reported.at) == (kernel.id, kernel.at)
    assert reported.attributes == {
        "pid": "7", "text": "off the bus", "pod": "chat-0",
        "sources": "kernel_log, nvml, agent-node-1, dcgm-node-1",
    }  # fmt: skip


def test_two_faults_seconds_apart_are_two_events() -> None:
    deduplicator = EventDeduplicator()
    first = deduplicator.deduplicate([xid("kernel_log", 0), xid("kernel_log", 5), xid("nvml", 0.1), xid("nvml", 5.1)])
    assert [(one.at, one.attributes["sources"]) for one in first] == [
        (AT, "kernel_log, nvml"), (AT + timedelta(seconds=5), "kernel_log, nvml"),
    ]  # fmt: skip
    reported = {one.id for one in first}
    pages = [xid("dcgm-node-1", 20), replace(xid("dcgm-node-1", 20), id="again")]
    assert {one.id for one in deduplicator.deduplicate(pages)} == reported, "the same two faults, one more source"
    (third,) = deduplicator.deduplicate([xid("dcgm-node-1", 35)])
    assert third.id not in reported
    assert [one.id for one in deduplicator.deduplicate([xid("nvml", 40)])] == [third.id]  # reported by the page already
    (fourth,) = deduplicator.deduplicate([xid("kernel_log", 101)])
    assert fourth.id not in {*reported, third.id}


def test_a_late_event_joins_its_fault() -> None:
    deduplicator = EventDeduplicator()
    (first,) = deduplicator.deduplicate([xid("dcgm-node-1", 20)])
    late = replace(xid("kernel_log", 2), attributes={"pid": "7"})  # a node that answered late
    (again,) = deduplicator.deduplicate([late])
    assert (again.id, again.at) == (first.id, first.at)
    assert again.attributes == {"pid": "7", "sources": "kernel_log, dcgm-node-1"}
    (again,) = deduplicator.deduplicate([xid("nvml", 2)])
    assert again.attributes == {"pid": "7", "sources": "kernel_log, nvml, dcgm-node-1"}
    assert deduplicator.deduplicate([late]) == (), "a known report adds nothing"


def test_a_page_after_a_gap_reports_faults_of_the_gap() -> None:
    """An exporter hangs with its device and responds minutes later."""
    deduplicator = EventDeduplicator()
    kernel = [xid("kernel_log", 10), xid("kernel_log", 200)]
    assert len(deduplicator.deduplicate(kernel)) == 2
    late = {"since": rfc3339(AT + timedelta(seconds=5))}
    pages = [replace(xid("dcgm-node-1", 320), id=number, attributes=late) for number in ("p1", "p2")]
    again = deduplicator.deduplicate(pages)
    assert {one.id for one in again} == {one.id for one in kernel}
    assert all(one.attributes == {"sources": "kernel_log, dcgm-node-1"} for one in again)
    (third,) = deduplicator.deduplicate([replace(xid("dcgm-node-1", 320), id="p3", attributes=late)])
    assert third.id == "p3", "three counted, two logged"


def test_a_log_that_comes_after_a_late_page_is_about_the_same_fault() -> None:
    deduplicator = EventDeduplicator()
    late = {"since": rfc3339(AT)}
    (page,) = deduplicator.deduplicate([replace(xid("dcgm-node-1", 300), attributes=late)])
    (again,) = deduplicator.deduplicate([xid("kernel_log", 30)])
    assert again.id == page.id
    assert len(deduplicator.deduplicate([xid("kernel_log", 400)])) == 1


def test_joined_events_are_not_reported_again() -> None:
    """A source merges its own reports; the cycle merges those of several sources."""
    inner, outer = EventDeduplicator(), EventDeduplicator()
    first = outer.deduplicate(inner.deduplicate([xid("kernel_log"), xid("dcgm-node-1", 9)]))
    assert [one.attributes["sources"] for one in first] == ["kernel_log, dcgm-node-1"]
    again = outer.deduplicate(inner.deduplicate([xid("nvml", 1)]))
    assert [(one.id, one.attributes["sources"]) for one in again] == [(first[0].id, "kernel_log, nvml, dcgm-node-1")]
    second = outer.deduplicate(inner.deduplicate([xid("dcgm-node-1", 24)]))
    assert [one.id for one in second] == [xid("dcgm-node-1", 24).id], "twice from one source is two events"


def test_two_xids_of_one_endpoint_are_two_events() -> None:
    deduplicator = EventDeduplicator()
    twice = [xid("kernel_log", 0), xid("kernel_log", 2)]
    assert deduplicator.deduplicate(twice) == tuple(twice)
    assert [one.id for one in deduplicator.deduplicate([xid("dcgm-node-1", 9)])] == [twice[1].id]
    assert [one.id for one in deduplicator.deduplicate([xid("dcgm-node-1", 24)])] == [twice[0].id]
    assert deduplicator.deduplicate([xid("dcgm-node-1", 39)]) == (xid("dcgm-node-1", 39),)


def test_other_codes_devices_and_times_are_not_duplicates() -> None:
    other = EntityRef("c", EntityKind.GPU, None, "GPU-2")
    far = SAME_FAULT_WINDOW.total_seconds() + 1
    events = [xid("kernel_log"), xid("page", code="48"), xid("page", entity=other), xid("page", far)]
    log = Event("l", EventKind.LOG, GPU, AT, "page", "79")
    assert EventDeduplicator().deduplicate([*events, log, log]) == (*events, log, log)
