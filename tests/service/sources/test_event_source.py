"""Events through real sources: entries of the fleet's journal arrive as recorded."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from collectors.events.deduplication import EventDeduplicator
from collectors.logs.patterns import packaged
from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import ManualClock
from outrider.errors import ConfigError
from outrider.model import EntityKind, EntityRef, Event, EventKind
from service.config import settings
from service.config.settings import Settings
from service.ops import demo
from service.sources import factory
from service.sources.composite_source import CompositeSource
from service.wiring import platform
from simulator.faults import FAULTS, inject
from simulator.fleet import Fleet
from simulator.journal import JournalEntry, JournalSource
from simulator.servers import engine_log, kernel_log
from simulator.servers.http import FleetServer, serve
from simulator.servers.log_and_api_endpoints import event_settings
from simulator.spec.fleets import default_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)
DEVICES = ("dcgm", "kube_state_metrics")
ALL = (*DEVICES, "vllm", "node_exporter")


@cache
def master() -> Fleet:
    return Fleet(replace(default_spec(), slice_seconds=1.0), seed=2, start=START)


class Watch:
    """A fleet behind its server, and a source of the cycle that reads it."""

    def __init__(self, fleet: Fleet, server: FleetServer, source: CompositeSource) -> None:
        self.fleet, self.server, self.source = fleet, server, source
        self._deduplicator = EventDeduplicator()

    async def round(self) -> tuple[Event, ...]:
        """The events of the next round, deduplicated as the cycle does."""
        self.fleet.step(STEP)
        return self._deduplicator.deduplicate((await self.source.collect(self.fleet.now)).events)


def play(scene: Callable[[Watch], Awaitable[None]], *, adapters: tuple[str, ...] = ALL) -> None:
    async def whole() -> None:
        fleet = copy.deepcopy(master())
        server = await serve(fleet)
        written = {
            "cluster": "demo",
            "collect": {"targets": [one for one in server.targets()["targets"] if one["adapter"] in adapters]},
            "events": event_settings(server.base_url),
        }
        source = factory.source(Settings.model_validate(written), ManualClock(fleet.now))
        try:
            await scene(Watch(fleet, server, source))
        finally:
            await source.close()
            await server.close()

    asyncio.run(whole())


def identity(event: Event) -> tuple[EventKind, EntityRef, str]:
    return event.kind, event.entity, event.code


def write_all_events(fleet: Fleet) -> list[JournalEntry]:
    """Writes one of every kind of journal entry."""
    write, at = fleet.journal.write, fleet.at
    pod = fleet.entity(EntityKind.POD, "chat-70b-2", "serving")
    node = fleet.entity(EntityKind.NODE, "node-1")
    service = fleet.entity(EntityKind.SERVICE, "chat-70b", "serving")
    code = fleet.entity(EntityKind.SERVICE, "code-14b", "serving")
    gpu = fleet.entity(EntityKind.GPU, fleet.gpu_uuid(9))
    kernel = [
        write(
            at,
            JournalSource.KERNEL,
            gpu,
            "xid",
            "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            xid="79",
        ),
        write(at, JournalSource.KERNEL, gpu, "xid", "pid=4711, name=python3, Ch 00000008", xid="43"),
        write(at, JournalSource.KERNEL, pod, "oom-kill", ""),
        *(write(at, JournalSource.KERNEL, node, line, "") for line in kernel_log.LINES),
    ]
    engine = [write(at, JournalSource.ENGINE, pod, line, "") for line in engine_log.LINES]
    kubernetes = [
        write(at, JournalSource.KUBERNETES, pod, "BackOff", "Back-off restarting failed container vllm"),
        write(at, JournalSource.KUBERNETES, node, "NodeNotReady", "Node node-1 status is now: NodeNotReady"),
        write(at, JournalSource.KUBERNETES, service, "Failed", "The certificate request has failed to complete"),
        write(
            at,
            JournalSource.KUBERNETES,
            replace(service, kind=EntityKind.WORKLOAD),
            "ScalingReplicaSet",
            "Scaled up to 11",
        ),
    ]
    change = [
        write(
            at, JournalSource.CHANGE, service, "rollout", "chat-70b is rolled out to v2", **{"from": "v1", "to": "v2"}
        ),
        write(at, JournalSource.CHANGE, code, "flags", "", **{"from": "--max-num-seqs=64", "to": "--max-num-seqs=8"}),
        write(at, JournalSource.CHANGE, gpu, "power-limit", "nvidia-smi -i 1 -pl 400", **{"from": "700", "to": "400"}),
        write(at, JournalSource.CHANGE, service, "template", "prompt template of chat-70b changed"),
        write(at, JournalSource.CHANGE, pod, "restart", "planned restart of chat-70b-2"),
        write(at, JournalSource.CHANGE, fleet.entity(EntityKind.SWITCH, "rack-0"), "firmware", "switch updated"),
    ]
    return [*kernel, *engine, *kubernetes, *change]


@pytest.mark.slow
def test_every_event_of_the_fleet_arrives_as_recorded() -> None:
    async def scene(watch: Watch) -> None:
        assert await watch.round() == ()
        written = write_all_events(watch.fleet)
        found = await watch.round()
        assert sorted(map(identity, found), key=str) == sorted((identity(line.event) for line in written), key=str)
        assert await watch.round() == ()

    play(scene)


def test_event_sources_alone_identify_devices_pods_replicas_and_services() -> None:
    async def scene(watch: Watch) -> None:
        found = {event.code: event for event in watch.source.health and await watch.round()}
        assert found == {}
        write_all_events(watch.fleet)
        # No metrics page is read: nodes, pods, replicas and services are known by the Kubernetes API alone.
        watch.fleet.step(STEP)
        collected = await watch.source.collect(watch.fleet.now)
        codes = {event.code for event in collected.events}
        assert {"BackOff", "rollout", "flags", "cuda_oom", "power-limit"} <= codes
        assert "79" in codes
        topology = collected.topology
        pod = watch.fleet.entity(EntityKind.POD, "chat-70b-2", "serving")
        assert [one.name for one in topology.above(pod, EntityKind.SERVICE)] == ["chat-70b"]
        assert topology.below(pod, EntityKind.NODE)

    play(scene, adapters=())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["gpu-lost", "bad-rollout", "engine-dead"])
def test_the_events_of_a_fault_are_received(fault: str) -> None:
    async def scene(watch: Watch) -> None:
        await watch.round()
        truth = inject(watch.fleet, fault, seed=3, duration=timedelta(minutes=1))
        first, received = watch.fleet.journal.newest, []
        for _ in range(8):
            received += await watch.round()
        written = [line.event for line in watch.fleet.journal.after(first)]
        assert written
        missing = {identity(event) for event in written} - {identity(event) for event in received}
        additional = {identity(event) for event in received} - {identity(event) for event in written}
        # A process that is gone takes its log along; what is put back without a word is seen all the same.
        assert {one for one in missing if one[0] is not EventKind.LOG} == set(), truth
        assert {code for _, _, code in additional} <= {"rollback", "flags"}, truth

    play(scene, adapters=DEVICES)


def test_every_log_line_of_a_fault_maps_to_its_code() -> None:
    tables = {"kernel_line": ("kernel_log", kernel_log.LINES), "engine_line": ("engine_log", engine_log.LINES)}
    seen = 0
    for fault in FAULTS.values():
        for action in fault.actions:
            if action.do in tables:
                table, usual = tables[action.do]
                code = action.arguments["code"]
                line = action.arguments.get("text") or usual[code]
                found = packaged(table).find(line)
                assert found is not None, (fault.fault, line)
                assert found[0] == code, (fault.fault, line)
                seen += 1
    assert seen >= 15


def test_an_xid_on_a_metrics_page_and_in_the_kernel_log_is_one_event() -> None:
    async def scene(watch: Watch) -> None:
        await watch.round()
        inject(watch.fleet, "gpu-xid-hardware", seed=3, duration=timedelta(minutes=5))
        received = [event for _ in range(3) for event in await watch.round() if event.kind is EventKind.XID]
        assert len(received) == 1
        assert received[0].source == "kernel_log"

    play(scene, adapters=DEVICES)


def test_events_reach_the_cycle_and_the_store(tmp_path) -> None:
    async def scene(watch: Watch) -> None:
        cycle = platform.cycle_in_memory(Settings(), watch.source, ManualClock(watch.fleet.now), interval=STEP)
        await watch.round()
        write_all_events(watch.fleet)
        watch.fleet.step(STEP)
        now = watch.fleet.now
        record = cycle.run_stages(now, await watch.source.collect(now))
        stored = cycle.parts.metrics.events(now - STEP * 2, now + STEP)
        assert {"79", "rollout", "oom-kill", "BackOff"} <= {event.code for event in stored}
        assert record.targets_up == 33

    play(scene)


@pytest.mark.slow
def test_an_unavailable_event_source_is_reported_and_scraping_continues() -> None:
    async def scene(watch: Watch) -> None:
        watch.fleet.effects.adjust("cluster", "seen")[0] = 0.0
        health = {one.target: one for one in watch.source.health}
        assert set(health) >= {"kernel-log", "kubernetes", "engine-log", "node-0"}
        collected = await watch.source.collect(watch.fleet.now)
        shut = {one.target: one for one in watch.source.health if one.adapter == "events"}
        assert collected.events == ()
        assert (shut["kubernetes"].up, shut["engine-log"].up) == (False, False)
        assert shut["kubernetes"].error is not None
        assert "closed the connection early" in shut["kubernetes"].error

    play(scene, adapters=("node_exporter",))


def test_without_event_sources_there_are_no_contributors() -> None:
    plain = factory.source(Settings(), ManualClock(START))
    assert isinstance(plain.pages, ScrapeManager)
    assert plain.contributors == ()
    given = Settings.model_validate({"events": [{"type": "kubernetes", "url": "https://k8s.example"}]})
    beside = factory.source(given, ManualClock(START))
    assert isinstance(beside.pages, ScrapeManager)
    assert [one.target for one in beside.health] == ["kubernetes"]
    assert callable(demo.Demo.discover)


# --- settings -------------------------------------------------------------------------------------

NO_NODE = "expected node: the name of the node that writes the log"


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("{type: kubernetes}", (2, "events[0].url", "is required by a source of type kubernetes")),
        ("{type: engine_log, url: 'http://x', path: /a}", (2, "events[0].path", "is for sources of type kernel_log")),
        ("{type: kernel_log}", (2, "events[0]", "expected either url or path")),
        ("{type: kernel_log, path: /dev/kmsg}", (2, "events[0]", NO_NODE)),
        ("{type: kernel_log, url: 'http://x/klog'}", (2, "events[0]", NO_NODE)),
        ("{type: kernel_log, url: 'http://x/{node}', kind: a}", (2, "events[0].kind", "unknown key")),
    ],
)  # fmt: skip
def test_an_invalid_source_is_refused_with_its_line(tmp_path, entry: str, fault: tuple[int, str, str]) -> None:
    path = tmp_path / "outrider.yaml"
    path.write_text(f"events:\n  - {entry}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        settings.load(path)
    assert [(one.line, one.key, one.message) for one in caught.value.problems] == [fault]


def test_two_sources_need_two_names(tmp_path) -> None:
    path = tmp_path / "outrider.yaml"
    source = "{type: kubernetes, url: 'https://k8s.example'}"
    path.write_text(f"events:\n  - {source}\n  - {source}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        settings.load(path)
    assert [one.line for one in caught.value.problems] == [3]


def test_this_machines_kernel_log_needs_a_path_and_a_node(tmp_path) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("2026-11-18T11:59:59+0000 gpu-1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, gone\n")
    given = Settings.model_validate({"events": [{"type": "kernel_log", "path": str(log), "node": "gpu-1"}]})

    async def scene() -> tuple[Event, ...]:
        source = factory.source(given, ManualClock(START))
        try:
            return (await source.collect(START)).events
        finally:
            await source.close()

    (event,) = asyncio.run(scene())
    assert identity(event) == (EventKind.XID, EntityRef("default", EntityKind.NODE, None, "gpu-1"), "79")


def test_a_line_of_the_local_kernel_log_is_sent_on_before_its_cycle_and_is_one_event(tmp_path):
    log = tmp_path / "kernel.log"
    log.write_text("")
    written = {
        "cluster": "c",
        "events": [{"type": "kernel_log", "path": str(log), "node": "node-1"}],
    }

    async def scene() -> None:
        source, sent_on = factory.source(Settings.model_validate(written), ManualClock(START)), []
        source.on_early(sent_on.append)
        await source.collect(START)
        message = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
        log.write_text(f"2026-11-18T12:00:05+00:00 node-1 kernel: {message}\n")
        at = START + timedelta(seconds=6)
        await source.read_early(at)
        (early,) = sent_on
        assert [(event.kind, event.code) for event in early.events] == [(EventKind.XID, "79")]
        collected = await source.collect(START + STEP)
        assert [event.id for event in collected.events] == [event.id for event in early.events]
        assert (await source.collect(START + 2 * STEP)).events == ()
        await source.close()

    asyncio.run(scene())
