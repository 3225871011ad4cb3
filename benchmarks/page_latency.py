"""Time from the decision about a P0, its commit, to the page at the receiver, beside a channel that is slow and full.

GPUs fail one after another on dcgm-exporter pages over HTTP. The engine runs with its own schedule on a store in a
file. The pages go to a webhook; a second one takes seconds for each message and has a backlog. The limit is the bare
POST of the same bodies, one after another.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, print_progress, quick, result
from outrider import log
from outrider.clock import SystemClock
from outrider.model import CycleRecord, Message, NotifyReason, Priority
from outrider.ports import CycleCommit
from service.config.settings import Settings
from service.runtime import process
from service.wiring import platform as wiring
from service.wiring.platform import Platform
from tests.support.gpu_fleet import GpuFleet, gpu_fleet
from tests.support.json_server import JsonServer, Request, Response, json_server
from tests.support.waiting import until_async

SENT_SECONDS = 1.0
FATAL = 79
SLOW_SECONDS = 2.0
PAGER, SLOW = "pager", "slow"
_GPU_LOST_IS_P0 = """version: 1
rules:
  - {name: gpu-lost, kind: gpu, faults: [gpu-lost], priority: P0, clear: 1m, runbook: docs/runbooks/gpu-lost.md}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """Nodes of the fleet, seconds between cycles, pages, and messages that wait for the slow channel."""

    nodes: int
    interval: int
    pages: int
    backlog: int


FULL, QUICK = Size(200, 5, 10, 500), Size(10, 5, 2, 20)


@dataclass(slots=True)
class Timings:
    """Times on the monotonic clock by id of the message, and the bodies."""

    committed: dict[str, float] = field(default_factory=dict)
    received: dict[str, float] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)

    def receive(self, request: Request) -> Response:
        """A page arrives."""
        self.received.setdefault(json.loads(request.content)["id"], time.monotonic())
        self.bodies.append(request.content)
        return Response()

    def seconds(self) -> list[float]:
        """Seconds from the commit of each page to its arrival."""
        return sorted(at - self.committed[name] for name, at in self.received.items())


def platform_of(fleet: GpuFleet, server: JsonServer, folder: Path, size: Size) -> Platform:
    """A platform for which a lost GPU is a P0, with a page for each."""
    rules = folder / "rules.yaml"
    rules.write_text(_GPU_LOST_IS_P0)
    document = {
        "cluster": "bench",
        "store": {"url": f"sqlite:///{folder}/o.db"},
        "collect": {"targets": fleet.targets(), "interval": f"{size.interval}s"},
        "rules": {"files": [str(rules)]},
        "remediation": {"autonomy": "recommend"},
        "notify": {
            "channels": {name: {"type": "webhook", "url": f"{server.url}/{name}"} for name in (PAGER, SLOW)},
            "groups": {"phone": [PAGER], "im": [SLOW]},
        },
    }
    return wiring.platform(Settings.model_validate(document), SystemClock())


@contextmanager
def stamped(platform: Platform, timings: Timings) -> Iterator[None]:
    """Records when the cycle with a page was committed."""
    state = platform.cycle.parts.state
    commit = state.commit

    def commit_stamped(given: CycleCommit) -> None:
        commit(given)
        now = time.monotonic()
        for message in given.messages:
            if message.channel == PAGER:
                assert message.priority is Priority.P0
                timings.committed.setdefault(message.id, now)

    state.commit = commit_stamped  # type: ignore[method-assign]
    yield
    state.commit = commit  # type: ignore[method-assign]


def add_backlog(platform: Platform, count: int) -> None:
    """Messages that wait for the slow channel."""
    now = SystemClock().now()
    notes = tuple(
        Message(f"note-{number}", SLOW, NotifyReason.OPENED, Priority.P3, f"inc-{number}", "title", "body", now)
        for number in range(count)
    )
    platform.state.commit(CycleCommit(CycleRecord("backlog", now, 0.1, 1, 1, 1, 0, 0, 0), messages=notes))


async def _pages(platform: Platform, fleet: GpuFleet, timings: Timings, size: Size) -> None:
    """Runs the engine, and breaks one GPU after another, each in its own round."""

    async def cycles(count: int) -> bool:
        return len(await asyncio.to_thread(platform.state.cycles)) >= count

    platform.warm(SystemClock().now())
    process.tune()
    tasks = process.periodic_tasks_of(platform, SystemClock())
    tasks.start()
    try:
        await until_async(lambda: cycles(3), "two cycles have run", seconds=20 * size.interval)
        for number, name in enumerate(sorted(fleet.nodes)[: size.pages], start=1):
            fleet.nodes[name].xid[3] = FATAL

            async def paged(number: int = number) -> bool:
                return len(timings.received) >= number

            await until_async(paged, f"{number} pages arrived", seconds=20 * size.interval)
            print_progress(f"{number} pages arrived")
    finally:
        await tasks.stop()
        await platform.close()


def bare_posts(url: str, bodies: list[bytes]) -> list[float]:
    """Seconds of each POST, one after another on one connection."""
    seconds = []
    with httpx.Client() as client:
        for body in bodies:
            begun = time.perf_counter()
            client.post(url, content=body).raise_for_status()
            seconds.append(time.perf_counter() - begun)
    return seconds


def run() -> Result:
    """Returns the seconds from commit to page."""
    log.configure(level="critical")
    size, timings = QUICK if quick() else FULL, Timings()

    def take_long(_request: Request) -> Response:
        time.sleep(SLOW_SECONDS)
        return Response()

    names = [f"gpu-{number:04}" for number in range(size.nodes)]
    with tempfile.TemporaryDirectory() as folder, gpu_fleet(names) as fleet, json_server() as server:
        bare: dict[str, Any] = {f"POST /{PAGER}": timings.receive, f"POST /{SLOW}": take_long, "POST /bare": Response()}
        server.responses |= bare
        platform = platform_of(fleet, server, Path(folder), size)
        add_backlog(platform, size.backlog)
        with stamped(platform, timings):
            asyncio.run(_pages(platform, fleet, timings, size))
        posts = bare_posts(f"{server.url}/bare", timings.bodies)
    seconds = timings.seconds()
    value, peer = seconds[max(0, round(0.95 * len(seconds)) - 1)], statistics.median(posts)
    return result(
        "page_latency",
        value,
        "s",
        SENT_SECONDS,
        seconds[-1] <= SENT_SECONDS,
        "bare POST of the same body",
        peer,
        peer / value,
        median=round(statistics.median(seconds), 3),
        slowest=round(seconds[-1], 3),
        pages=len(seconds),
        nodes=size.nodes,
        backlog=size.backlog,
    )


if __name__ == "__main__":
    main(run)
