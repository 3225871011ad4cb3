"""A cluster as a source of targets and topology, with the test API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.discovery.endpoints import metrics_page_of
from collectors.discovery.kubernetes import KubernetesSource
from collectors.discovery.relabeling import RelabelRules, target_of_discovered
from collectors.discovery.types import DiscoveredTarget, DiscoverySnapshot
from collectors.kubernetes.accelerators import node_facts
from collectors.kubernetes.pods import PodFacts, pod_facts
from outrider.clock import ManualClock
from outrider.errors import CollectError
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology
from tests.collectors.api_server import ApiServer, api_server

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
SERVICES, SLICES = "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"
GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
LWS = "leaderworkerset.sigs.k8s.io"
ASK = {"prometheus.io/scrape": "true"}
VLLM = RelabelRules(adapter="vllm")


def pod(name: str, number: int = 1, **more: Any) -> dict[str, Any]:
    """A running pod with one port; ``labels``, ``notes``, ``args``, ``resources``, ``ports``, ``node``, ``uid``."""
    container = {
        "name": "engine",
        "args": more.get("args", []),
        "ports": more.get("ports", [{"containerPort": 8000}]),
        "resources": {"limits": more.get("resources", {})},
    }
    return {
        "metadata": {
            "name": name,
            "namespace": more.get("namespace", "serving"),
            "uid": more.get("uid", f"uid-{name}"),
            "labels": more.get("labels", {}),
            "annotations": more.get("notes", {}),
            "ownerReferences": more.get("owners", []),
        },
        "spec": {"nodeName": more.get("node", "n1"), "containers": [container]},
        "status": {
            "phase": more.get("phase", "Running"),
            "podIP": more.get("ip", f"10.0.0.{number}"),
            "startTime": "2026-11-21T17:00:00Z",
        },
    }


def node(name: str, **labels: str) -> dict[str, Any]:
    names = {
        key.replace("__", "/").replace("_", ".") if "/" not in key else key: value for key, value in labels.items()
    }
    return {"metadata": {"name": name, "labels": names}}


def facts(name: str = "p", **more: Any) -> PodFacts:
    return pod_facts(pod(name, **more))


def entity(kind: EntityKind, name: str, namespace: str | None = "serving") -> EntityRef:
    return EntityRef("test", kind, namespace, name)


def play(scene: Callable[[ApiServer, KubernetesSource], Awaitable[None]], **more: Any) -> None:
    async def whole() -> None:
        async with api_server() as (server, api):
            await scene(server, KubernetesSource("kubernetes", api, "test", **more))

    asyncio.run(whole())


def addresses(seen: DiscoverySnapshot) -> list[str]:
    return [one.address for one in seen.targets]


def graph(seen: DiscoverySnapshot) -> Topology:
    return Topology.build(seen.edges, seen.labels, seen.labels)


# --- pods -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "service", "group", "leads"),
    [
        ({"app": "chat"}, "chat", "", True),
        ({"app.kubernetes.io/name": "chat", "app": "x"}, "chat", "", True),
        ({"outrider.io/service": "chat", "app": "x"}, "chat", "", True),
        ({"serving.kserve.io/inferenceservice": "chat", "app": "isvc.chat-predictor"}, "chat", "", True),
        ({f"{LWS}/name": "chat", f"{LWS}/group-index": "2", f"{LWS}/worker-index": "0"}, "chat", "chat-2", True),
        ({f"{LWS}/name": "chat", f"{LWS}/group-index": "2", f"{LWS}/worker-index": "1"}, "chat", "chat-2", False),
        ({"ray.io/cluster": "chat-xyz", "ray.io/node-type": "head"}, "chat-xyz", "chat-xyz", True),
        ({"ray.io/cluster": "chat-xyz", "ray.io/node-type": "worker"}, "chat-xyz", "chat-xyz", False),
        ({"ray.io/cluster": "chat-xyz", "ray.io/node-type": "worker", "ray.io/originated-from-crd": "RayService",
          "ray.io/originated-from-cr-name": "chat"}, "chat", "", True),
        ({}, "", "", True),
    ],
)  # fmt: skip
def test_owner_of_a_pod(labels, service, group, leads) -> None:
    result = facts(labels=labels)
    assert (result.service, result.group, result.leads) == (service, group or "p", leads)
    assert result.is_grouped == bool(group)


@pytest.mark.parametrize(
    ("owner", "workload"),
    [
        ({"kind": "ReplicaSet", "name": "chat-7d9f8b6c5d", "controller": True}, "chat"),
        ({"kind": "StatefulSet", "name": "chat", "controller": True}, "chat"),
        ({"kind": "Job", "name": "load-123", "controller": True}, "load-123"),
        ({"kind": "Node", "name": "n1"}, ""),
    ],
)
def test_the_workload_of_a_pod(owner, workload) -> None:
    assert facts(owners=[owner]).workload == workload


@pytest.mark.parametrize(
    ("args", "own"),
    [
        (["--model", "meta/llama", "--tensor-parallel-size=4", "--pipeline-parallel-size", "2"],
         {"model": "meta/llama", "tensor_parallel": "4", "pipeline_parallel": "2"}),
        (["--model=/models/x/", "--served-model-name", "llama", "-tp", "8"],
         {"model": "llama", "tensor_parallel": "8"}),
        (["vllm serve x --model llama --tensor-parallel-size 2"],
         {"engine": "vllm", "model": "llama", "tensor_parallel": "2"}),
        (["--tensor-parallel-size", "$(TP)", "--model", "--x"], {}),
        (["--tensor-parallel-size", "99999", "--num-shard", "2"], {"tensor_parallel": "2"}),
        ([], {}),
    ],
)  # fmt: skip
def test_engine_properties_from_the_command_line(args, own) -> None:
    assert facts(args=args).own == own


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_completed_pods_have_no_target_and_no_edges(phase) -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [pod("p", phase=phase, notes=ASK, resources={"nvidia.com/gpu": "1"})]
        seen = await source.read()
        assert (seen.targets, seen.edges) == ((), ())

    play(scene)


@pytest.mark.parametrize(
    ("notes", "ports", "address"),
    [
        ({"prometheus.io/port": "9000"}, [{"containerPort": 8000}], "10.0.0.1:9000"),
        ({"prometheus.io/port": "stats"}, [{"containerPort": 8000}, {"name": "stats", "containerPort": 99}],
         "10.0.0.1:99"),
        ({}, [{"name": "grpc", "containerPort": 1}, {"name": "metrics", "containerPort": 2}], "10.0.0.1:2"),
        ({}, [{"containerPort": 8000}], "10.0.0.1:8000"),
    ],
)  # fmt: skip
def test_the_metrics_port_of_a_pod(notes, ports, address) -> None:
    page = metrics_page_of(facts(notes=notes, ports=ports))
    assert isinstance(page, DiscoveredTarget)
    assert page.address == address


def test_an_unknown_metrics_port_gives_no_target() -> None:
    assert "declares no port" in str(metrics_page_of(facts(ports=[])))
    assert "neither a port nor a port name" in str(metrics_page_of(facts(notes={"prometheus.io/port": "soon"})))
    assert "neither a port" in str(metrics_page_of(facts(notes={"prometheus.io/port": "70000"})))


def test_target_labels_of_a_pod() -> None:
    result = facts(
        "chat-0",
        labels={"app": "chat", "team/x": "a", "outrider.io/request-class": "vip"},
        notes={"prometheus.io/path": "/m", "prometheus.io/scheme": "https", "outrider.io/adapter": "vllm"},
        args=["--model", "llama"],
    )
    page = metrics_page_of(result)
    assert isinstance(page, DiscoveredTarget)
    target = target_of_discovered("k", "test", page, RelabelRules(), "vllm")
    assert target.url == "https://10.0.0.1:8000/m"
    assert (page.adapter, target.identity) == ("vllm", "uid-chat-0")
    assert target.entity == entity(EntityKind.REPLICA, "chat-0")
    assert target.labels == {
        "pod": "chat-0", "node": "n1", "service": "chat", "model": "llama", "replica": "chat-0",
        "request_class": "vip",
    }  # fmt: skip
    assert page.labels["__meta_kubernetes_pod_label_team_x"] == "a"


# --- accelerators ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "notes", "count", "kind", "devices"),
    [
        ({"nvidia.com/gpu": "4"}, {}, 4, "whole", ()),
        ({"nvidia.com/mig-1g.10gb": 2}, {}, 2, "mig", ()),
        ({"nvidia.com/gpu.shared": "1"}, {}, 1, "shared", ()),
        ({"nvidia.com/mig-1g.10gb.shared": "1"}, {}, 1, "shared", ()),
        ({"huawei.com/Ascend910": "2"}, {"huawei.com/AscendReal": "Ascend910-4,Ascend910-5"}, 2, "whole",
         ("Ascend910-4", "Ascend910-5")),
        ({"nvidia.com/gpu": "1"}, {"hami.io/vgpu-devices-allocated": f"{GPU},NVIDIA,3000,30:;"}, 1, "shared", (GPU,)),
        ({"nvidia.com/gpu": "1"}, {"outrider.io/gpus": GPU}, 1, "whole", (GPU,)),
        ({"amd.com/gpu": "8", "cpu": "4", "memory": "8Gi"}, {}, 8, "whole", ()),
        ({"nvidia.com/gpu": "many"}, {"hami.io/vgpu-devices-allocated": "GPU-x"}, 0, "", ()),
        ({"cpu": "4"}, {}, 0, "", ()),
    ],
)  # fmt: skip
def test_devices_of_a_pod(resources, notes, count, kind, devices) -> None:
    held = facts(resources=resources, notes=notes)
    assert (held.gpus, held.gpu_kind, held.devices) == (count, kind, devices)


def test_labels_of_a_node() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.clique": "7b.0",
        "nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "time-slicing", "topology.kubernetes.io/zone": "z1", "x": "y",
        "feature.node.kubernetes.io/memory-numa": "true", "eks.amazonaws.com/nodegroup": "gpu",
    }  # fmt: skip
    assert node_facts({"metadata": {"labels": labels}}) == {
        "gpu_type": "NVIDIA-H100-80GB-HBM3", "nvlink_domain": "7b.0", "gpu_count": "8", "gpu_replicas": "4",
        "gpu_sharing": "time-slicing", "zone": "z1", "numa": "true", "pool": "gpu",
    }  # fmt: skip
    alone = {"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}
    assert node_facts({"metadata": {"labels": alone}}) == {}
    assert node_facts({}) == {}


# --- the cluster ----------------------------------------------------------------------------------


def test_annotated_pods_are_targets_and_others_only_topology() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [
            pod("chat-0", 1, notes=ASK, labels={"app": "chat"}),
            pod("web-0", 2, labels={"app": "web"}),
            pod("new-0", 3, notes=ASK, ip=""),
        ]
        server.objects[NODES] = [node("n1", **{"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.clique": "c.1"})]
        seen = await source.read()
        assert addresses(seen) == ["10.0.0.1:8000"]
        assert seen.targets[0].labels["gpu_type"] == "H100"
        topology = graph(seen)
        below = entity(EntityKind.NODE, "n1", None)
        assert {one.name for one in topology.holds_up(below)} == {"chat-0", "web-0", "new-0"}
        assert topology.label(below, "nvlink_domain") == "c.1"
        chat = entity(EntityKind.POD, "chat-0")
        assert topology.label(chat, "since") == "2026-11-21T17:00:00Z"
        assert topology.label(chat, "uid") == "uid-chat-0"
        assert await source.read() is seen, "nothing changed"

    play(scene)


def test_a_selector_selects_pods_and_an_annotation_excludes_them() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects["/api/v1/namespaces/a/pods"] = [
            pod("x", 1, namespace="a"),
            pod("y", 2, namespace="a", notes={"prometheus.io/scrape": "false"}),
        ]
        assert addresses(await source.read()) == ["10.0.0.1:8000"]
        requested = {path: query for path, query in server.requested if path.endswith("/pods")}
        assert list(requested) == ["/api/v1/namespaces/a/pods"]
        assert requested["/api/v1/namespaces/a/pods"]["labelSelector"] == "app=chat"
        assert "Succeeded" in requested["/api/v1/namespaces/a/pods"]["fieldSelector"]

    play(scene, namespaces=["a"], label_selector="app=chat")


def test_a_group_is_one_replica_scraped_on_its_leader() -> None:
    def member(group: int, worker: int) -> dict[str, Any]:
        labels = {f"{LWS}/name": "big", f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(worker)}
        name = f"big-{group}" + (f"-{worker}" if worker else "")
        args = ["--tensor-parallel-size", "8", "--pipeline-parallel-size", "2"]
        notes = {**ASK, "outrider.io/adapter": "vllm"}
        return pod(name, group * 10 + worker + 1, labels=labels, notes=notes, node=f"n{worker}", args=args)

    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [member(group, worker) for group in range(2) for worker in range(2)]
        seen = await source.read()
        assert addresses(seen) == ["10.0.0.1:8000", "10.0.0.11:8000"]
        targets = [target_of_discovered("k", "test", one, VLLM, "vllm") for one in seen.targets]
        assert [one.entity.name for one in targets] == ["big-0", "big-1"]
        edges = [*seen.edges, *(edge for target in targets for edge in target.edges)]
        topology = Topology.build(edges, seen.labels, seen.labels)
        replica, service = entity(EntityKind.REPLICA, "big-0"), entity(EntityKind.SERVICE, "big")
        assert [one.name for one in topology.below(replica, EntityKind.POD)] == ["big-0", "big-0-1"]
        assert [one.name for one in topology.below(replica, EntityKind.NODE)] == ["n0", "n1"]
        assert topology.holds_up(replica) == (service,)
        assert len(topology.below(service, EntityKind.REPLICA)) == 2
        assert topology.labels[replica] == {
            "workload": "big", "owner_kind": "LeaderWorkerSet", "tensor_parallel": "8", "pipeline_parallel": "2",
            "pods": "2",
        }  # fmt: skip

    play(scene)


def test_an_exporter_beside_a_worker_is_scraped() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        labels = {"ray.io/cluster": "r", "ray.io/node-type": "worker"}
        server.objects[PODS] = [
            pod("w1", 1, labels=labels, notes={**ASK, "outrider.io/adapter": "dcgm"}),
            pod("w2", 2, labels=labels, notes=ASK),
        ]
        assert addresses(await source.read()) == ["10.0.0.1:8000"]

    play(scene)


def test_shared_gpus_are_edges_to_every_pod() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        held = {"hami.io/vgpu-devices-allocated": f"{GPU},NVIDIA,3000,30:;"}
        server.objects[PODS] = [pod(f"s{n}", n, notes=held, resources={"nvidia.com/gpu": "1"}) for n in (1, 2, 3)]
        topology = graph(await source.read())
        gpu = entity(EntityKind.GPU, GPU, None)
        assert {one.name for one in topology.holds_up(gpu)} == {"s1", "s2", "s3"}
        assert topology.rests_on(gpu) == (entity(EntityKind.NODE, "n1", None),)
        assert topology.label(entity(EntityKind.POD, "s1"), "gpu_kind") == "shared"

    play(scene)


def slice_of(service: str, *pods: str) -> dict[str, Any]:
    refs = [{"targetRef": {"kind": "Pod", "name": name}} for name in pods]
    meta = {"name": f"{service}-abc", "namespace": "serving", "labels": {"kubernetes.io/service-name": service}}
    return {"metadata": meta, "endpoints": [*refs, {"addresses": ["1.2.3.4"]}]}


def test_an_annotated_service_belongs_to_its_pods() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [pod("e-0", 1), pod("e-1", 2, notes=ASK), pod("other", 3)]
        notes = {**ASK, "prometheus.io/port": "8000", "outrider.io/adapter": "vllm"}
        server.objects[SERVICES] = [{"metadata": {"name": "chat", "namespace": "serving", "annotations": notes}}]
        server.objects[SLICES] = [slice_of("chat", "e-0", "e-1")]
        seen = await source.read()
        assert sorted(addresses(seen)) == ["10.0.0.1:8000", "10.0.0.2:8000"], "requested twice, one target"
        assert {one.labels["service"] for one in seen.targets} == {"chat"}

    play(scene)


def test_pods_appear_move_and_disappear() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [pod("a", 1, notes=ASK), pod("b", 2, notes=ASK)]
        await source.read()
        server.tell(PODS, "ADDED", pod("c", 3, notes=ASK))
        server.tell(PODS, "DELETED", pod("a", 1, notes=ASK))
        server.tell(PODS, "DELETED", pod("b", 2, notes=ASK))
        server.tell(PODS, "ADDED", pod("b", 2, notes=ASK, uid="uid-later"))
        seen = await source.read()
        assert [(one.address, one.identity) for one in seen.targets] == [
            ("10.0.0.3:8000", "uid-c"),
            ("10.0.0.2:8000", "uid-later"),
        ]
        server.tell(PODS, "MODIFIED", pod("c", 3, phase="Failed"))
        assert addresses(await source.read()) == ["10.0.0.2:8000"]

    play(scene)


def test_a_new_list_replaces_the_old_one() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [pod("a", 1, notes=ASK), pod("b", 2, notes=ASK)]
        await source.read()
        server.gone.add(PODS)
        server.objects[PODS] = [pod("b", 2, notes=ASK)]
        assert addresses(await source.read()) == ["10.0.0.2:8000"]

    play(scene)


def test_a_forbidden_resource_is_reported_and_the_rest_continues() -> None:
    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [pod("a", 1, notes=ASK), pod("p", 2, notes=ASK, ports=[])]
        server.forbidden |= {NODES, SLICES}
        seen = await source.read()
        assert addresses(seen) == ["10.0.0.1:8000"]
        reported = " ".join(fault.message for fault in seen.faults)
        assert NODES in reported
        assert SLICES in reported
        assert "pod/serving/p declares no port" in reported
        assert await source.read() is seen
        server.forbidden.clear()
        assert [fault.message for fault in (await source.read()).faults] == [
            "kubernetes: pod/serving/p declares no port; set annotation prometheus.io/port"
        ]
        server.forbidden.add(PODS)
        with pytest.raises(CollectError, match="cannot list resource"):
            await source.read()

    play(scene)


def test_a_deleted_pod_is_remembered_with_its_times_for_a_while() -> None:
    clock = ManualClock(datetime(2026, 11, 21, 18, 0, tzinfo=UTC))
    labels = {f"{LWS}/name": "big", f"{LWS}/group-index": "0", f"{LWS}/worker-index": "1"}

    async def scene(server: ApiServer, source: KubernetesSource) -> None:
        server.objects[PODS] = [pod("a", 1, notes=ASK), pod("w", 2, labels=labels), pod("b", 3)]
        await source.read()
        ended = pod("a", 1, notes=ASK)
        finished = {"state": {"terminated": {"finishedAt": "2026-11-21T17:59:00Z"}}}
        ended["status"]["containerStatuses"] = [finished]
        server.tell(PODS, "DELETED", ended)
        server.tell(PODS, "DELETED", pod("w", 2, labels=labels))
        seen = await source.read()
        assert seen.targets == ()
        topology = graph(seen)
        gone, worker = entity(EntityKind.POD, "a"), entity(EntityKind.POD, "w")
        assert topology.labels[gone] == {
            "uid": "uid-a", "node": "n1", "since": "2026-11-21T17:00:00Z", "until": "2026-11-21T17:59:00Z",
            "deleted": "true",
        }  # fmt: skip
        assert topology.rests_on(gone) == (entity(EntityKind.NODE, "n1", None),)
        assert topology.holds_up(worker) == (), "a replica rests on those that are there"
        server.tell(PODS, "ADDED", pod("a", 4, uid="uid-again"))
        assert graph(await source.read()).labels[gone]["uid"] == "uid-again"
        clock.advance(timedelta(minutes=16))
        seen = await source.read()
        assert worker not in seen.labels
        assert gone in seen.labels
        assert await source.read() is seen

    play(scene, clock=clock)


rubbish = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(result for key, child in inner for result in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


@given(st.data())
def test_arbitrary_objects_do_not_raise(data) -> None:
    whole = pod(
        "p",
        labels={f"{LWS}/name": "x", f"{LWS}/group-index": "0", "outrider.io/tenant": "t"},
        notes={**ASK, "prometheus.io/port": "1", "hami.io/vgpu-devices-allocated": GPU},
        args=["--model", "m", "-tp", "2"],
        resources={"nvidia.com/gpu": "1"},
        owners=[{"kind": "ReplicaSet", "name": "x-abcde", "controller": True}],
    )
    result = replaced(whole, data.draw(st.sampled_from(places(whole))), data.draw(rubbish))
    page = metrics_page_of(pod_facts(result if isinstance(result, dict) else {}))
    if isinstance(page, DiscoveredTarget):
        assert all(isinstance(value, str) for value in page.labels.values())
    facts_of = node_facts(result if isinstance(result, dict) else {})
    assert all(isinstance(value, str) for value in facts_of.values())
