"""Discovery and the source of events tell the same cluster alike, and read it once where they read it together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from collectors.discovery.kubernetes import KubernetesSource
from collectors.discovery.manager import Discovery
from collectors.discovery.relabeling import RelabelRules
from collectors.kubernetes import watch
from collectors.kubernetes.api import KubeApi
from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.kubernetes.objects import PODS as PODS_RESOURCE
from collectors.kubernetes.watch import ResourceWatcher, SharedWatches
from collectors.net.http import HttpClient
from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import ManualClock
from outrider.model import EntityKind, EntityRef
from outrider.topology import Edge, Topology
from service.sources.kube_view import KubeView
from tests.collectors.api_server import ApiServer, api_server

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
LWS, RAY, KSERVE = "leaderworkerset.sigs.k8s.io", "ray.io", "serving.kserve.io/inferenceservice"
GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d144{}"
_addresses = iter(range(1, 10_000))
Json = dict[str, Any]


def pod(name: str, *, node: str = "n1", labels: Json | None = None, asks: Json | None = None, **more: Any) -> Json:
    """A running model server that asks to be scraped."""
    number = next(_addresses)
    notes = {"prometheus.io/scrape": "true", "outrider.io/adapter": "vllm", **more.get("notes", {})}
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.11.0",
        "args": more.get("args", ["--model", "llama"]),
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "1"} if asks is None else asks},
    }
    return {
        "metadata": {
            "name": name, "namespace": "serving", "uid": f"uid-{name}", "labels": labels or {}, "annotations": notes,
            "creationTimestamp": "2026-11-21T11:00:00Z", "ownerReferences": more.get("owners", []),
        },
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "podIP": f"10.0.{number >> 8}.{number & 255}",
                   "startTime": "2026-11-21T11:01:00Z"},
    }  # fmt: skip


def owned(kind: str, name: str) -> list[Json]:
    return [{"kind": kind, "name": name, "controller": True}]


def group(index: int, worker: int) -> Json:
    labels = {f"{LWS}/name": "big", f"{LWS}/group-index": str(index), f"{LWS}/worker-index": str(worker), "app": "x"}
    name = f"big-{index}" + (f"-{worker}" if worker else "")
    args = ["--model", "llama", "-tp", "8", "-pp", "2"]
    return pod(name, node=f"n{worker + 1}", labels=labels, asks={"nvidia.com/gpu": "8"}, args=args)


def ray(name: str, kind: str, crd: str, asks: Json) -> Json:
    labels = {f"{RAY}/cluster": "rag-raycluster-abc", f"{RAY}/node-type": kind, f"{RAY}/originated-from-crd": crd,
              f"{RAY}/originated-from-cr-name": "rag"}  # fmt: skip
    return pod(name, labels=labels, asks=asks)


SCENES: dict[str, list[Json]] = {
    "deployment": [
        pod(f"chat-7d9f8b6c5d-{n}", labels={"app": "chat"}, owners=owned("ReplicaSet", "chat-7d9f8b6c5d"))
        for n in "ab"
    ],
    "stateful set behind a service": [
        pod("door-0", owners=owned("StatefulSet", "doors")),
        pod("plain-0", owners=owned("StatefulSet", "plain")),
    ],
    "kserve": [
        pod("llama-predictor-0", labels={KSERVE: "llama", "app": "isvc.llama-predictor"},
            owners=owned("ReplicaSet", "llama-predictor-7d9f8b6c5d"))
    ],
    "leader worker set": [group(index, worker) for index in range(2) for worker in range(2)],
    "ray service": [
        ray("rag-head", "head", "RayService", {}),
        ray("rag-w0", "worker", "RayService", {"nvidia.com/gpu": "4"}),
    ],
    "ray cluster": [
        ray("c-head", "head", "RayCluster", {"nvidia.com/gpu": "4"}),
        ray("c-w0", "worker", "RayCluster", {"nvidia.com/gpu": "4"}),
    ],
    "mig": [pod("slice-0", labels={"app": "small"}, asks={"nvidia.com/mig-1g.10gb": "1"})],
    "time slices": [
        pod(f"share-{n}", labels={"app": "tiny"}, asks={"nvidia.com/gpu": "1"},
            notes={"hami.io/vgpu-devices-allocated": f"{GPU.format(1)},NVIDIA,3000,30:;"})
        for n in range(2)
    ] + [pod("part-0", labels={"app": "tiny"}, asks={"nvidia.com/gpu.shared": "1"})],
    "copies in one pod": [
        pod("dp-0", labels={"app": "dp"}, asks={"nvidia.com/gpu": "8"}, args=["--model", "m", "-tp", "2", "-dp", "4"])
    ],
    "no engine": [
        pod("web-0", labels={"app": "web"}, asks={"cpu": "1"}, args=[],
            notes={"outrider.io/adapter": "", "prometheus.io/scrape": "false"})
    ],
}  # fmt: skip


def slice_of(service: str, *names: str) -> Json:
    refs = [{"targetRef": {"kind": "Pod", "name": name}} for name in names]
    meta = {"name": f"{service}-abc", "namespace": "serving", "labels": {"kubernetes.io/service-name": service}}
    return {"metadata": meta, "endpoints": refs}


def fill(server: ApiServer, pods: list[Json]) -> None:
    names = ("n1", "n2")
    labels = {"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.clique": "c.1"}
    server.objects = {
        PODS: pods,
        NODES: [{"metadata": {"name": name, "uid": name, "labels": labels}} for name in names],
        SLICES: [slice_of("front", "door-0")],
    }


EXPECTED: dict[str, dict[str, tuple[list[str], str]]] = {  # replica: pods, service
    "deployment": {f"chat-7d9f8b6c5d-{n}": ([f"chat-7d9f8b6c5d-{n}"], "chat") for n in "ab"},
    "stateful set behind a service": {"door-0": (["door-0"], "front"), "plain-0": (["plain-0"], "plain")},
    "kserve": {"llama-predictor-0": (["llama-predictor-0"], "llama")},
    "leader worker set": {"big-0": (["big-0", "big-0-1"], "big"), "big-1": (["big-1", "big-1-1"], "big")},
    "ray service": {"rag-head": (["rag-head"], "rag"), "rag-w0": (["rag-w0"], "rag")},
    "ray cluster": {"rag-raycluster-abc": (["c-head", "c-w0"], "rag-raycluster-abc")},
    "mig": {"slice-0": (["slice-0"], "small")},
    "time slices": {name: ([name], "tiny") for name in ("share-0", "share-1", "part-0")},
    "copies in one pod": {"dp-0": (["dp-0"], "dp")},
    "no engine": {},
}


@asynccontextmanager
async def both(*, together: bool = False) -> AsyncIterator[tuple[ApiServer, KubernetesSource, KubernetesEventSource]]:
    """A server with a source of targets and one of events, each with a connection of its own or with one for both."""
    async with api_server() as (server, api):
        other = KubeApi(HttpClient("events", api.client.url, timeout=timedelta(seconds=5)))
        doors = SharedWatches(api)
        targets = KubernetesSource("k", doors if together else api, "c", clock=ManualClock(AT))
        events = KubernetesEventSource("kubernetes", doors if together else other, "c")
        try:
            yield server, targets, events
        finally:
            await targets.close()
            await events.close()
            await other.close()


def bare(topology: Topology) -> tuple[set[Edge], dict[EntityRef, dict[str, str]]]:
    """A topology without the entities that stand for our own watching."""
    ours = {one for one in topology.entities if one.namespace == "targets"}
    labels = {entity: dict(facts) for entity, facts in topology.labels.items() if entity not in ours}
    return set(topology.edges), labels


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("scene", SCENES)
def test_both_tell_the_same_entities_and_edges(scene: str, together: bool) -> None:
    async def whole() -> None:
        async with both(together=together) as (server, targets, events):
            fill(server, SCENES[scene])
            seen, (_, errors) = await targets.read(), await events.read(AT, [])
            assert (errors, seen.faults) == ([], ())
            graph = events.graph
            assert set(seen.edges) == set(graph.edges)
            assert seen.labels == graph.labels
            told = Topology.build(graph.edges, graph.labels, graph.labels)
            service = EntityKind.SERVICE
            assert EXPECTED[scene] == {
                one.name: ([pod.name for pod in told.below(one, EntityKind.POD)], told.above(one, service)[0].name)
                for one in told.of_kind(EntityKind.REPLICA)
            }

    asyncio.run(whole())


@pytest.mark.parametrize("scene", SCENES)
def test_targets_are_parts_of_the_same_topology(scene: str) -> None:
    async def whole() -> None:
        async with both() as (server, targets, events):
            fill(server, SCENES[scene])
            discovery = Discovery([(targets, RelabelRules())], "c")
            known = await discovery.refresh(AT)
            await events.read(AT, [])
            of_events = KubeView([events]).topology(Topology(at=AT))
            assert len({one.entity for one in known.targets}) == len(EXPECTED[scene])
            for target in known.targets:
                assert set(target.edges) <= set(of_events.edges)
            collector = ScrapeManager(known.targets, None)
            collector.set_targets(known.targets, known.edges, known.labels)
            of_targets = collector.topology(AT)
            assert bare(of_targets)[0] == set(of_events.edges)
            assert {one for one in of_targets.entities if one.namespace != "targets"} >= of_events.entities
            joint = KubeView([events]).topology(of_targets)
            assert bare(joint) == bare(of_targets), "beside each other they add nothing"

    asyncio.run(whole())


def test_together_they_read_each_list_once_and_both_hear_what_changes() -> None:
    async def whole() -> None:
        async with both(together=True) as (server, targets, events):
            fill(server, SCENES["deployment"])
            await asyncio.gather(targets.read(), events.read(AT, []))
            lists = Counter(path for path, query in server.requested if not query.get("watch"))
            assert {path: lists[path] for path in (PODS, NODES, SLICES)} == {PODS: 1, NODES: 1, SLICES: 1}
            server.tell(PODS, "ADDED", pod("late-0", labels={"app": "late"}))
            await events.read(AT, [])
            assert "late-0" in {one.labels["pod"] for one in (await targets.read()).targets}
            gone = {**SCENES["deployment"][0]}
            server.tell(PODS, "DELETED", gone)
            seen = await targets.read()
            await events.read(AT, [])
            assert gone["metadata"]["name"] not in {one.labels["pod"] for one in seen.targets}
            assert set(events.graph.edges) == set(seen.edges)
            server.gone.add(PODS)
            server.objects[PODS] = server.objects[PODS][1:]
            await asyncio.gather(targets.read(), events.read(AT, []))
            lists = Counter(path for path, query in server.requested if not query.get("watch"))
            assert lists[PODS] == 2

    asyncio.run(whole())


def test_one_that_comes_later_knows_all_that_was_told_before() -> None:
    async def whole() -> None:
        async with api_server() as (server, api):
            fill(server, SCENES["deployment"])
            doors = SharedWatches(api)
            first = ResourceWatcher(doors, [PODS_RESOURCE])
            await first.read(AT)
            second = ResourceWatcher(doors, [PODS_RESOURCE])
            server.tell(PODS, "ADDED", pod("late-0"))
            server.objects[PODS] = [*server.objects[PODS], pod("late-0")]
            (news,), faults = await second.read(AT)
            assert (news.whole, len(news.seen), faults) == (True, 3, [])
            (same, *_), _ = await first.read(AT)
            assert (same.whole, len(same.seen)) == (True, 3), "what the other one read is told to this one, too"
            await first.close()
            news, _ = await second.read(AT)
            assert [one.whole for one in news] == [False, False], "who stays goes on where it was"
            await second.close()

    asyncio.run(whole())


def test_a_follower_that_is_far_behind_reads_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_WAITING", 2)

    async def whole() -> None:
        async with api_server() as (server, api):
            fill(server, SCENES["deployment"])
            doors = SharedWatches(api)
            quick, slow = ResourceWatcher(doors, [PODS_RESOURCE]), ResourceWatcher(doors, [PODS_RESOURCE])
            await asyncio.gather(quick.read(AT), slow.read(AT))
            for number in range(4):
                server.tell(PODS, "ADDED", pod(f"more-{number}"))
                await quick.read(AT)
            news, _ = await slow.read(AT)
            assert [one.whole for one in news] == [True]

    asyncio.run(whole())
