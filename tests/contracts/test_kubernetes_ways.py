"""Discovery and the event source report the same cluster equally, and read each list once if they share watches."""

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
    """A running model server with the scrape annotation."""
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


def owner_references(kind: str, name: str) -> list[Json]:
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
        pod(f"chat-7d9f8b6c5d-{n}", labels={"app": "chat"}, owners=owner_references("ReplicaSet", "chat-7d9f8b6c5d"))
        for n in "ab"
    ],
    "stateful set behind a service": [
        pod("gateway-0", owners=owner_references("StatefulSet", "gateways")),
        pod("plain-0", owners=owner_references("StatefulSet", "plain")),
    ],
    "kserve": [
        pod("llama-predictor-0", labels={KSERVE: "llama", "app": "isvc.llama-predictor"},
            owners=owner_references("ReplicaSet", "llama-predictor-7d9f8b6c5d"))
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


def fill_server(server: ApiServer, pods: list[Json]) -> None:
    names = ("n1", "n2")
    labels = {"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.clique": "c.1"}
    server.objects = {
        PODS: pods,
        NODES: [{"metadata": {"name": name, "uid": name, "labels": labels}} for name in names],
        SLICES: [slice_of("front", "gateway-0")],
    }


EXPECTED: dict[str, dict[str, tuple[list[str], str]]] = {  # replica: pods, service
    "deployment": {f"chat-7d9f8b6c5d-{n}": ([f"chat-7d9f8b6c5d-{n}"], "chat") for n in "ab"},
    "stateful set behind a service": {"gateway-0": (["gateway-0"], "front"), "plain-0": (["plain-0"], "plain")},
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
async def open_sources(
    *, shared: bool = False
) -> AsyncIterator[tuple[ApiServer, KubernetesSource, KubernetesEventSource]]:
    """An API server, a target source and an event source, with ``shared`` watches or a connection each."""
    async with api_server() as (server, api):
        other = KubeApi(HttpClient("events", api.client.url, timeout=timedelta(seconds=5)))
        watches = SharedWatches(api)
        targets = KubernetesSource("k", watches if shared else api, "c", clock=ManualClock(AT))
        events = KubernetesEventSource("kubernetes", watches if shared else other, "c")
        try:
            yield server, targets, events
        finally:
            await targets.close()
            await events.close()
            await other.close()


def bare(topology: Topology) -> tuple[set[Edge], dict[EntityRef, dict[str, str]]]:
    """A topology without the entities of scrape targets."""
    own_entities = {entity for entity in topology.entities if entity.namespace == "targets"}
    labels = {entity: dict(facts) for entity, facts in topology.labels.items() if entity not in own_entities}
    return set(topology.edges), labels


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("scene", SCENES)
def test_both_sources_report_the_same_entities_and_edges(scene: str, shared: bool) -> None:
    async def run_test() -> None:
        async with open_sources(shared=shared) as (server, targets, events):
            fill_server(server, SCENES[scene])
            snapshot, (_, errors) = await targets.read(), await events.read(AT, [])
            assert (errors, snapshot.faults) == ([], ())
            graph = events.graph
            assert set(snapshot.edges) == set(graph.edges)
            assert snapshot.labels == graph.labels
            topology = Topology.build(graph.edges, graph.labels, graph.labels)
            service = EntityKind.SERVICE
            assert EXPECTED[scene] == {
                entity.name: (
                    [pod.name for pod in topology.below(entity, EntityKind.POD)],
                    topology.above(entity, service)[0].name,
                )
                for entity in topology.of_kind(EntityKind.REPLICA)
            }

    asyncio.run(run_test())


@pytest.mark.parametrize("scene", SCENES)
def test_targets_are_parts_of_the_same_topology(scene: str) -> None:
    async def run_test() -> None:
        async with open_sources() as (server, targets, events):
            fill_server(server, SCENES[scene])
            discovery = Discovery([(targets, RelabelRules())], "c")
            known = await discovery.refresh(AT)
            await events.read(AT, [])
            of_events = KubeView([events]).topology(Topology(at=AT))
            assert len({entity.entity for entity in known.targets}) == len(EXPECTED[scene])
            for target in known.targets:
                assert set(target.edges) <= set(of_events.edges)
            collector = ScrapeManager(known.targets, None)
            collector.set_targets(known.targets, known.edges, known.labels)
            of_targets = collector.topology(AT)
            assert bare(of_targets)[0] == set(of_events.edges)
            assert {entity for entity in of_targets.entities if entity.namespace != "targets"} >= of_events.entities
            joint = KubeView([events]).topology(of_targets)
            assert bare(joint) == bare(of_targets), "the event source adds nothing to the targets"

    asyncio.run(run_test())


def test_shared_watches_read_each_list_once_and_both_sources_receive_changes() -> None:
    async def run_test() -> None:
        async with open_sources(shared=True) as (server, targets, events):
            fill_server(server, SCENES["deployment"])
            await asyncio.gather(targets.read(), events.read(AT, []))
            lists = Counter(path for path, query in server.requested if not query.get("watch"))
            assert {path: lists[path] for path in (PODS, NODES, SLICES)} == {PODS: 1, NODES: 1, SLICES: 1}
            server.tell(PODS, "ADDED", pod("late-0", labels={"app": "late"}))
            await events.read(AT, [])
            assert "late-0" in {target.labels["pod"] for target in (await targets.read()).targets}
            deleted = {**SCENES["deployment"][0]}
            server.tell(PODS, "DELETED", deleted)
            snapshot = await targets.read()
            await events.read(AT, [])
            assert deleted["metadata"]["name"] not in {target.labels["pod"] for target in snapshot.targets}
            assert set(events.graph.edges) == set(snapshot.edges)
            server.gone.add(PODS)
            server.objects[PODS] = server.objects[PODS][1:]
            await asyncio.gather(targets.read(), events.read(AT, []))
            lists = Counter(path for path, query in server.requested if not query.get("watch"))
            assert lists[PODS] == 2

    asyncio.run(run_test())


def test_a_later_watcher_receives_the_full_list() -> None:
    async def run_test() -> None:
        async with api_server() as (server, api):
            fill_server(server, SCENES["deployment"])
            watches = SharedWatches(api)
            first = ResourceWatcher(watches, [PODS_RESOURCE])
            await first.read(AT)
            second = ResourceWatcher(watches, [PODS_RESOURCE])
            server.tell(PODS, "ADDED", pod("late-0"))
            server.objects[PODS] = [*server.objects[PODS], pod("late-0")]
            (update,), faults = await second.read(AT)
            assert (update.whole, len(update.changes), faults) == (True, 3, [])
            (repeated, *_), _ = await first.read(AT)
            assert (repeated.whole, len(repeated.changes)) == (True, 3), (
                "an update read by one watcher reaches the other"
            )
            await first.close()
            updates, _ = await second.read(AT)
            assert [update.whole for update in updates] == [False, False], (
                "the remaining watcher continues without a new list"
            )
            await second.close()

    asyncio.run(run_test())


def test_a_watcher_far_behind_reads_a_new_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_UNREAD", 2)

    async def run_test() -> None:
        async with api_server() as (server, api):
            fill_server(server, SCENES["deployment"])
            watches = SharedWatches(api)
            fast, slow = ResourceWatcher(watches, [PODS_RESOURCE]), ResourceWatcher(watches, [PODS_RESOURCE])
            await asyncio.gather(fast.read(AT), slow.read(AT))
            for number in range(4):
                server.tell(PODS, "ADDED", pod(f"more-{number}"))
                await fast.read(AT)
            updates, _ = await slow.read(AT)
            assert [update.whole for update in updates] == [True]

    asyncio.run(run_test())
