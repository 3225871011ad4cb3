"""Discovery on a real Kubernetes control plane: its lists, watches, scheduler, endpoint slices and permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from collectors.discovery.kubernetes import KubernetesSource
from collectors.discovery.relabeling import RelabelRules, target_of_discovered
from collectors.discovery.types import DiscoverySnapshot
from collectors.kubernetes.api import KubeApi
from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.kubernetes.watch import SharedWatches
from collectors.net.http import HttpClient
from outrider.clock import SystemClock
from outrider.errors import CollectError
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology
from outrider.wire.http_auth import Access, Tls
from tests.support.kube import Cluster
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
LWS = "leaderworkerset.sigs.k8s.io"
ASK = {"prometheus.io/scrape": "true", "prometheus.io/port": "8000", "outrider.io/adapter": "vllm"}


@pytest.fixture
def space(control_plane: Cluster) -> Iterator[str]:
    """A namespace and a node for one test."""
    name = f"d-{uuid4().hex[:8]}"
    control_plane.namespace(name)
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.clique": "7b.0", "space": name}
    control_plane.node(f"node-{name}", **labels)
    yield name
    control_plane.delete(f"/api/v1/nodes/node-{name}")
    control_plane.delete(f"/api/v1/namespaces/{name}")


def source(cluster: Cluster, space: str, *, who: str = "admin", **more: Any) -> KubernetesSource:
    access = Access(bearer_token_file=cluster.token_file(who), tls=Tls(ca_file=cluster.ca_file))
    client = HttpClient("kubernetes", cluster.url, timeout=timedelta(seconds=10), access=access)
    return KubernetesSource("kubernetes", KubeApi(client), "test", namespaces=[space], **more)


def template(space: str, **more: Any) -> dict[str, Any]:
    container = {
        "name": "vllm",
        "image": "vllm",
        "args": ["--model", "llama", "--tensor-parallel-size", "2"],
        "ports": [{"name": "http", "containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
    }
    meta = {"labels": more.get("labels", {"app": "chat"}), "annotations": more.get("notes", ASK)}
    spec = {"containers": [container], "nodeSelector": {"space": space}, "automountServiceAccountToken": False}
    return {"metadata": meta, "spec": spec}


def start(cluster: Cluster, space: str, count: int) -> list[dict[str, Any]]:
    """Running pods as reported by their kubelets."""
    found = cluster.scheduled(space, count)
    for number, pod in enumerate(sorted(found, key=lambda one: str(one["metadata"]["name"])), 1):
        ready = [{"type": "Ready", "status": "True"}]
        address = f"10.9.0.{number}"
        cluster.pod_status(pod, phase="Running", podIP=address, podIPs=[{"ip": address}], conditions=ready)
    return found


def graph(seen: DiscoverySnapshot) -> Topology:
    return Topology.build(seen.edges, seen.labels, seen.labels)


def deployment(cluster: Cluster, space: str, replicas: int, **more: Any) -> None:
    body = {
        "metadata": {"name": "chat"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": template(space, **more),
        },
    }
    cluster.create(f"/apis/apps/v1/namespaces/{space}/deployments", body)


@pytest.mark.slow
def test_a_deployment_is_discovered_scaled_and_lost(control_plane: Cluster, space: str) -> None:
    deployment(control_plane, space, 2)
    pods = start(control_plane, space, 2)

    async def whole() -> None:
        found = source(control_plane, space)
        seen = await found.read()
        assert [one.address for one in seen.targets] == ["10.9.0.1:8000", "10.9.0.2:8000"]
        assert {one.identity for one in seen.targets} == {pod["metadata"]["uid"] for pod in pods}
        first = target_of_discovered("k", "test", seen.targets[0], RelabelRules(), seen.targets[0].adapter or "")
        assert first.labels["service"] == "chat"
        assert first.labels["workload"] == "chat"
        assert first.labels["gpu_type"] == "NVIDIA-H100-80GB-HBM3"
        assert first.labels["tensor_parallel"] == "2"
        topology = graph(seen)
        node = EntityRef("test", EntityKind.NODE, None, f"node-{space}")
        assert len(topology.holds_up(node)) == 2
        assert topology.label(node, "nvlink_domain") == "7b.0"
        assert {topology.label(one, "gpus") for one in topology.holds_up(node)} == {"2"}
        assert await found.read() is seen, "nothing changed"

        gone = pods[0]["metadata"]
        control_plane.delete(f"/api/v1/namespaces/{space}/pods/{gone['name']}", json={"gracePeriodSeconds": 0})
        until(lambda: len(control_plane.scheduled(space, 2)) == 2, "the new pod is scheduled")
        start(control_plane, space, 2)
        seen = await found.read()
        assert len(seen.targets) == 2
        assert gone["uid"] not in {one.identity for one in seen.targets}
        await found.close()

    asyncio.run(whole())


def test_an_annotated_service_is_discovered_by_its_endpoint_slices(control_plane: Cluster, space: str) -> None:
    deployment(control_plane, space, 1, notes={}, labels={"app": "chat", "outrider.io/service": ""})
    service = {
        "metadata": {"name": "front", "annotations": ASK},
        "spec": {"selector": {"app": "chat"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    control_plane.create(f"/api/v1/namespaces/{space}/services", service)
    start(control_plane, space, 1)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices"
    until(lambda: any(one.get("endpoints") for one in control_plane.get(slices)["items"]), "an endpoint exists")

    async def whole() -> None:
        found = source(control_plane, space)
        seen = await found.read()
        assert [(one.address, one.adapter) for one in seen.targets] == [("10.9.0.1:8000", "vllm")]
        await found.close()

    asyncio.run(whole())


def test_a_group_of_pods_is_one_replica(control_plane: Cluster, space: str) -> None:
    for worker in range(2):
        labels = {f"{LWS}/name": "big", f"{LWS}/group-index": "0", f"{LWS}/worker-index": str(worker)}
        pod = template(space, labels=labels)
        pod["metadata"]["name"] = "big-0" if worker == 0 else f"big-0-{worker}"
        control_plane.create(f"/api/v1/namespaces/{space}/pods", pod)
    start(control_plane, space, 2)

    async def whole() -> None:
        found = source(control_plane, space)
        seen = await found.read()
        assert [one.labels["pod"] for one in seen.targets] == ["big-0"]
        replica = EntityRef("test", EntityKind.REPLICA, space, "big-0")
        topology = graph(seen)
        assert [one.name for one in topology.below(replica, EntityKind.POD)] == ["big-0", "big-0-1"]
        assert topology.label(replica, "pods") == "2"
        await found.close()

    asyncio.run(whole())


@pytest.mark.slow
def test_etcd_compaction_and_a_server_restart_lose_nothing(control_plane: Cluster, space: str) -> None:
    deployment(control_plane, space, 1)
    start(control_plane, space, 1)

    async def whole() -> None:
        found = source(control_plane, space)
        assert len((await found.read()).targets) == 1
        control_plane.patch(f"/apis/apps/v1/namespaces/{space}/deployments/chat", {"spec": {"replicas": 2}})
        start(control_plane, space, 2)
        control_plane.compact()
        assert len((await found.read()).targets) == 2
        control_plane.stop_api()
        try:
            with pytest.raises(CollectError, match="refuses connections"):
                await found.read()
        finally:
            control_plane.start_api()
        assert len((await found.read()).targets) == 2
        await found.close()

    asyncio.run(whole())


def test_missing_permissions_give_an_error(control_plane: Cluster, space: str) -> None:
    async def whole() -> None:
        found = source(control_plane, space, who="stranger")
        with pytest.raises(CollectError) as fault:
            await found.read()
        assert "returned 403" in fault.value.message
        assert "bearer_token_file" in fault.value.hint
        await found.close()

    asyncio.run(whole())


def _serve_node_topologies(cluster: Cluster) -> str:
    group = "topology.node.k8s.io"
    names = {"plural": "noderesourcetopologies", "singular": "noderesourcetopology", "kind": "NodeResourceTopology"}
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": anything}
    crd = {
        "metadata": {
            "name": f"noderesourcetopologies.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
        },
        "spec": {"group": group, "names": names, "scope": "Cluster", "versions": [version]},
    }
    cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    path = f"/apis/{group}/v1alpha2/noderesourcetopologies"
    until(lambda: cluster.http.get(path).is_success, "the new resource is served")
    return path


def _publish(cluster: Cluster, node: str, uuid: str) -> None:
    """Publishes one device like a DRA driver, and the NUMA nodes like a topology updater."""
    attributes = {
        "uuid": {"string": uuid},
        "resource.kubernetes.io/numaNode": {"int": 1},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:80"},
    }
    spec = {
        "driver": "gpu.example.com",
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": attributes}],
    }
    cluster.create("/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": f"{node}-gpus"}, "spec": spec})
    resources = [{"name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "4"}]
    zones = [{"name": f"node-{number}", "type": "Node", "resources": resources} for number in range(2)]
    topology = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology"}
    cluster.create(_serve_node_topologies(cluster), {**topology, "metadata": {"name": node}, "zones": zones})


@pytest.mark.slow
def test_events_and_targets_share_lists_and_report_devices(control_plane: Cluster, space: str) -> None:
    node, uuid = f"node-{space}", "GPU-e89d84ee-93b4-a63d-ac3f-8c242831ac09"
    deployment(control_plane, space, 2)
    pods = start(control_plane, space, 2)
    _publish(control_plane, node, uuid)

    async def whole() -> None:
        access = Access(bearer_token_file=control_plane.token_file("admin"), tls=Tls(ca_file=control_plane.ca_file))
        client = HttpClient("kubernetes", control_plane.url, timeout=timedelta(seconds=10), access=access)
        endpoints, now = SharedWatches(KubeApi(client)), SystemClock().now
        found = KubernetesSource("kubernetes", endpoints, "test", namespaces=[space])
        events = KubernetesEventSource("kubernetes", endpoints, "test", namespaces=[space])
        seen, (_, errors) = await asyncio.gather(found.read(), events.read(now(), []))
        assert (errors, seen.faults) == ([], ())
        assert len(seen.targets) == 2
        assert (set(seen.edges), seen.labels) == (set(events.graph.edges), events.graph.labels)
        reported = graph(seen)
        gpu, host = EntityRef("test", EntityKind.GPU, None, uuid), EntityRef("test", EntityKind.NODE, None, node)
        assert (reported.label(gpu, "numa_node"), reported.label(gpu, "pcie_root")) == ("1", "pci0000:80")
        assert reported.label(host, "numa_gpus") == "node-0=4,node-1=4"
        assert gpu in reported.holds_up(host)

        gone = pods[0]["metadata"]
        control_plane.delete(f"/api/v1/namespaces/{space}/pods/{gone['name']}", json={"gracePeriodSeconds": 0})
        until(lambda: len(control_plane.scheduled(space, 2)) == 2, "the new pod is scheduled")
        start(control_plane, space, 2)
        await events.read(now(), [])
        seen = await found.read()
        await events.read(now(), [])
        assert gone["uid"] not in {one.identity for one in seen.targets}
        assert set(seen.edges) == set(events.graph.edges)
        await found.close()
        await events.close()

    asyncio.run(whole())
