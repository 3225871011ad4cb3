"""Time from the scrape that shows a broken device to the decision and to the cordoned node, on a real API server.

A thousand Node objects on a real control plane, and a dcgm-exporter page for each. The engine runs with its own
schedule. The latency is that of XID 79 on a few nodes in one round. The rate is that of a burst, as when racks fail:
75 nodes in each round of 15 s are 5 nodes/s. The peers are measured in the same run: the same engine without its fast
path, and one client that sends nothing but PATCH requests, as ``kubectl cordon`` does.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, print_progress, quick, result
from outrider import log
from outrider.clock import SystemClock
from outrider.model import ActionKind
from service.config.settings import Settings
from service.runtime import process
from service.wiring import platform as wiring
from service.wiring.platform import Platform
from tests.support import kube
from tests.support.gpu_fleet import gpu_fleet
from tests.support.waiting import until, until_async

DECIDED_SECONDS, CORDONED_SECONDS, NODES_PER_SECOND = 1.0, 2.0, 5.0
FATAL = 79
MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Size:
    """Nodes of the fleet, seconds between cycles, nodes that break in one round (few or many), and how often."""

    nodes: int
    interval: int
    few: int
    few_rounds: int
    burst: int
    rounds: int


FULL, QUICK = Size(1000, 15, 5, 4, 75, 3), Size(200, 5, 5, 1, 25, 1)


@dataclass(slots=True)
class Timings:
    """Times on the monotonic clock, by name of the node: page read, decision committed, node cordoned."""

    read: dict[str, float] = field(default_factory=dict)
    decided: dict[str, float] = field(default_factory=dict)
    cordoned: dict[str, float] = field(default_factory=dict)

    def seconds(self, after: dict[str, float], names: list[str]) -> list[float]:
        """Seconds from the page of each node to ``after``."""
        return sorted(after[name] - self.read[name] for name in names)


def _serve(pipe: Connection, names: list[str]) -> None:
    with gpu_fleet(names) as fleet:
        pipe.send(fleet.targets())
        while (broken := pipe.recv()) is not None:
            for name in broken:
                fleet.nodes[name].xid[3] = FATAL
            pipe.send(True)


@contextmanager
def pages(names: list[str]) -> Iterator[tuple[Connection, list[dict[str, Any]]]]:
    """Serves the pages in a process of their own. Names sent to the connection show the fault from then on."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs, names), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours, ours.recv()
    finally:
        ours.send(None)
        child.join(10)
        child.terminate()


def create_nodes(cluster: kube.Cluster, names: list[str]) -> None:
    """Creates plain Node objects."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: cluster.create("/api/v1/nodes", {"metadata": {"name": name}}), names))


def platform_of(targets: list[dict[str, Any]], cluster: kube.Cluster, folder: Path, size: Size, fast: bool) -> Platform:
    """Returns a platform that may cordon every node."""
    document = {
        "cluster": "bench",
        "store": {"url": f"sqlite:///{folder}/o.db"},
        "collect": {"targets": targets, "interval": f"{size.interval}s"},
        "remediation": {
            "autonomy": "act",
            "dry_run": False,
            "fast_path": fast,
            "max_cordoned_nodes": size.nodes,
            "max_cordoned_ratio": 1.0,
            "max_actions_per_hour": 1_000_000,
            "actuators": {"cordon": "kubernetes"},
            "kubernetes": {
                "url": cluster.url,
                "bearer_token_file": str(cluster.token_file("admin")),
                "insecure_skip_verify": True,
            },
        },
    }
    return wiring.platform(Settings.model_validate(document), SystemClock())


def watched(platform: Platform) -> Timings:
    """Records when a page was read and when a cordon was committed."""
    timings, manager = Timings(), platform.collector.pages
    scraper: Any = manager._scraper  # type: ignore[attr-defined]  # noqa: SLF001 - stamps what the engine does
    scrape_one, state = scraper.scrape_one, platform.cycle.parts.state
    commit = state.commit

    async def scrape(target: Any, *, at: Any) -> Any:
        scraped = await scrape_one(target, at=at)
        if scraped.body is not None and f'",DCGM_FI_DRIVER_VERSION="570.124.06"}} {FATAL}'.encode() in scraped.body:
            timings.read.setdefault(target.name, time.monotonic())
        return scraped

    def commit_stamped(given: Any) -> None:
        commit(given)
        for action in given.actions:
            if action.kind is ActionKind.CORDON:
                timings.decided.setdefault(action.target.name, time.monotonic())

    scraper.scrape_one, state.commit = scrape, commit_stamped  # type: ignore[method-assign]
    return timings


@contextmanager
def cordons(cluster: kube.Cluster, timings: Timings) -> Iterator[None]:
    """Watches the API server for cordoned nodes."""
    version = cluster.get("/api/v1/nodes?limit=1")["metadata"]["resourceVersion"]
    over = threading.Event()

    def follow() -> None:
        params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "600"}
        with cluster.http.stream("GET", "/api/v1/nodes", params=params, timeout=600) as response:
            for line in response.iter_lines():
                if over.is_set():
                    return
                if '"unschedulable":true' in line:
                    name = line.partition('"metadata":{"name":"')[2].partition('"')[0]
                    timings.cordoned.setdefault(name, time.monotonic())

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        with_change = {"metadata": {"annotations": {"outrider.dev/bench": "over"}}}
        cluster.create("/api/v1/nodes", {**with_change, "metadata": {**with_change["metadata"], "name": "last"}})
        thread.join(10)
        cluster.delete("/api/v1/nodes/last")


async def _bursts(
    platform: Platform, timings: Timings, pipe: Connection, bursts: list[list[str]], interval: int
) -> None:
    """Runs the engine, and breaks one burst of nodes after another, each in its own round."""

    async def cycles(count: int) -> bool:
        return len(await asyncio.to_thread(platform.state.cycles)) >= count

    platform.warm(SystemClock().now())
    process.tune()
    tasks = process.periodic_tasks_of(platform, SystemClock())
    tasks.start()
    try:
        await until_async(lambda: cycles(2), "two cycles have run", seconds=20 * interval)
        for burst in bursts:
            pipe.send(burst)
            await asyncio.to_thread(pipe.recv)

            async def cordoned(burst: list[str] = burst) -> bool:
                return timings.cordoned.keys() >= set(burst)

            await until_async(cordoned, f"{len(burst)} nodes are cordoned", seconds=20 * interval)
            print_progress(f"{len(timings.cordoned)} nodes are cordoned")
    finally:
        await tasks.stop()
        await platform.close()


def measure(cluster: kube.Cluster, names: list[str], size: Size, bursts: list[list[str]], *, fast: bool) -> Timings:
    """Returns the times of every burst."""
    with tempfile.TemporaryDirectory() as folder, pages(names) as (pipe, targets):
        platform = platform_of(targets, cluster, Path(folder), size, fast)
        timings = watched(platform)
        with cordons(cluster, timings):
            asyncio.run(_bursts(platform, timings, pipe, bursts, size.interval))
    return timings


def bare_patches(cluster: kube.Cluster, names: list[str]) -> list[float]:
    """Returns the seconds of each PATCH that cordons a node, one after another on one connection."""
    seconds = []
    for name in names:
        begun = time.perf_counter()
        answer = cluster.http.patch(f"/api/v1/nodes/{name}", json={"spec": {"unschedulable": True}}, headers=MERGE)
        seconds.append(time.perf_counter() - begun)
        assert answer.status_code == 200, answer.text
    return seconds


def run() -> list[Result]:
    """Returns the latency of decisions and cordons, and the nodes cordoned per second."""
    log.configure(level="error")
    size = QUICK if quick() else FULL
    names = [f"gpu-{number:04}" for number in range(size.nodes)]
    chosen = iter(names)
    few = [[next(chosen) for _ in range(size.few)] for _ in range(size.few_rounds)]
    bursts = [[next(chosen) for _ in range(size.burst)] for _ in range(size.rounds)]
    by_cycle, by_hand = [next(chosen) for _ in range(size.few)], [next(chosen) for _ in range(size.burst)]
    with kube.cluster() as cluster:
        create_nodes(cluster, names)
        until(lambda: cluster.http.get("/readyz").text == "ok", "the API server is ready")
        print_progress(f"{size.nodes} nodes exist")
        timings = measure(cluster, names, size, [*few, *bursts], fast=True)
        slow = measure(cluster, names, size, [by_cycle], fast=False)
        patches = bare_patches(cluster, by_hand)
    return _results(size, timings, few, bursts, slow, by_cycle, patches)


def _results(
    size: Size,
    timings: Timings,
    few: list[list[str]],
    bursts: list[list[str]],
    slow: Timings,
    by_cycle: list[str],
    patches: list[float],
) -> list[Result]:
    every = [name for names in few for name in names]
    lines = []
    for name, after, later, target in (
        ("remediation_latency", timings.decided, slow.decided, DECIDED_SECONDS),
        ("remediation_latency_cordoned", timings.cordoned, slow.cordoned, CORDONED_SECONDS),
    ):
        seconds, without = timings.seconds(after, every), slow.seconds(later, by_cycle)
        value, peer = _p95(seconds), _p95(without)
        lines.append(
            result(
                name,
                value,
                "s",
                target,
                value <= target,
                "the cycle without fast path",
                peer,
                peer / value,
                median=round(statistics.median(seconds), 3),
                slowest=round(seconds[-1], 3),
                nodes=size.nodes,
                at_once=size.few,
                in_bursts=[round(_p95(timings.seconds(after, burst)), 3) for burst in bursts],
            )
        )
    rates = [_rate(timings, burst) for burst in bursts]
    rate, bare = statistics.median(rates), len(patches) / sum(patches)
    lines.append(
        result(
            "remediation_rate",
            rate,
            "nodes/s",
            NODES_PER_SECOND,
            rate >= NODES_PER_SECOND,
            "bare PATCH requests, one after another",
            bare,
            rate / bare,
            slowest=round(min(rates), 2),
            nodes=size.nodes,
            at_once=size.burst,
        )
    )
    return lines


def _p95(seconds: list[float]) -> float:
    return seconds[max(0, round(0.95 * len(seconds)) - 1)]


def _rate(timings: Timings, burst: list[str]) -> float:
    """Nodes per second, from the first page that shows the fault to the last cordon."""
    return len(burst) / (max(timings.cordoned[name] for name in burst) - min(timings.read[name] for name in burst))


if __name__ == "__main__":
    main(run)
