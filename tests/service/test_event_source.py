"""Events through real doors: what a fleet's journal says arrives as its happenings say it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from outrider.clock import ManualClock
from outrider.model import EntityKind, EntityRef, Event, EventKind
from service import targets
from service.cycle import Source
from service.settings import Settings
from simulator import engine_log, kernel_log
from simulator.doors import event_settings
from simulator.exporters import FleetServer, serve
from simulator.fleet import Fleet
from simulator.journal import Happening, Voice
from simulator.spec import default_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)


class Watch:
    """A fleet behind its server, and a source of the cycle that reads it."""

    def __init__(self, fleet: Fleet, server: FleetServer, source: Source) -> None:
        self.fleet, self.server, self.source = fleet, server, source

    async def round(self) -> tuple[Event, ...]:
        self.fleet.step(STEP)
        return (await self.source.collect(self.fleet.now)).events


def play(scene: Callable[[Watch], Awaitable[None]], *, pages: bool = True) -> None:
    async def whole() -> None:
        fleet = Fleet(replace(default_spec(), slice_seconds=1.0), seed=2, start=START)
        server = await serve(fleet)
        written = {
            "cluster": "demo",
            "collect": {"targets": server.targets()["targets"] if pages else []},
            "events": event_settings(server.base_url),
        }
        source = targets.source(Settings.model_validate(written), ManualClock(fleet.now))
        try:
            await scene(Watch(fleet, server, source))
        finally:
            await source.close()
            await server.close()

    asyncio.run(whole())


def told(event: Event) -> tuple[EventKind, EntityRef, str]:
    return event.kind, event.entity, event.code


def speeches(fleet: Fleet) -> list[Happening]:
    """One of everything that every voice says."""
    say, at = fleet.journal.say, fleet.at
    pod = fleet.entity(EntityKind.POD, "chat-70b-2", "serving")
    node = fleet.entity(EntityKind.NODE, "node-1")
    service = fleet.entity(EntityKind.SERVICE, "chat-70b", "serving")
    code = fleet.entity(EntityKind.SERVICE, "code-14b", "serving")
    gpu = fleet.entity(EntityKind.GPU, fleet.gpu_uuid(9))
    kernel = [
        say(at, Voice.KERNEL, gpu, "xid", "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", xid="79"),
        say(at, Voice.KERNEL, gpu, "xid", "pid=4711, name=python3, Ch 00000008", xid="43"),
        say(at, Voice.KERNEL, pod, "oom-kill", ""),
        *(say(at, Voice.KERNEL, node, line, "") for line in kernel_log.LINES),
    ]
    engine = [say(at, Voice.ENGINE, pod, line, "") for line in engine_log.LINES]
    kubernetes = [
        say(at, Voice.KUBERNETES, pod, "BackOff", "Back-off restarting failed container vllm"),
        say(at, Voice.KUBERNETES, node, "NodeNotReady", "Node node-1 status is now: NodeNotReady"),
        say(at, Voice.KUBERNETES, service, "Failed", "The certificate request has failed to complete"),
        say(at, Voice.KUBERNETES, replace(service, kind=EntityKind.WORKLOAD), "ScalingReplicaSet", "Scaled up to 11"),
    ]
    change = [
        say(at, Voice.CHANGE, service, "rollout", "chat-70b is rolled out to v2", **{"from": "v1", "to": "v2"}),
        say(at, Voice.CHANGE, code, "flags", "", **{"from": "--max-num-seqs=64", "to": "--max-num-seqs=8"}),
        say(at, Voice.CHANGE, gpu, "power-limit", "nvidia-smi -i 1 -pl 400", **{"from": "700", "to": "400"}),
        say(at, Voice.CHANGE, service, "template", "prompt template of chat-70b changed"),
        say(at, Voice.CHANGE, pod, "restart", "planned restart of chat-70b-2"),
        say(at, Voice.CHANGE, fleet.entity(EntityKind.SWITCH, "rack-0"), "firmware", "switch updated"),
    ]
    return [*kernel, *engine, *kubernetes, *change]


def test_every_voice_arrives_as_its_happening_says() -> None:
    async def scene(watch: Watch) -> None:
        assert await watch.round() == ()
        said = speeches(watch.fleet)
        found = await watch.round()
        assert sorted(map(told, found), key=str) == sorted((told(line.event) for line in said), key=str)
        assert await watch.round() == ()

    play(scene)
