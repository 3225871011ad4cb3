"""NUMA nodes and PCIe roots as clusters publish them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.kubernetes.numa import devices, zone_facts
from collectors.kubernetes.objects import NODE_TOPOLOGIES, NODES, RESOURCE_SLICES, Objects
from collectors.kubernetes.topology import graph
from outrider.model import EntityKind, EntityRef
from tests.collectors.api_server import api_server
from tests.support.kube_replicas import replicas_of

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
UUID = "GPU-e89d84ee-93b4-a63d-ac3f-8c242831ac0{}"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
Json = dict[str, Any]


def zone(number: int, gpus: str, **more: Any) -> Json:
    costs = [{"name": f"node-{other}", "value": 10 if other == number else 21} for other in range(2)]
    amounts = {"capacity": gpus, "allocatable": gpus, "available": "0"}
    resources = [{"name": "cpu", "capacity": "64", "allocatable": "64", "available": "1"}]
    resources += [{"name": "nvidia.com/gpu", **amounts}]
    return {"name": f"node-{number}", "type": "Node", "costs": costs, "resources": resources, **more}


def topology(name: str, *zones: Json) -> Json:
    return {"metadata": {"name": name, "uid": f"nrt-{name}"}, "zones": list(zones)}


def published(node: str, generation: int, *given_: tuple[str, Json], driver: str = "gpu.nvidia.com") -> Json:
    found = [{"name": name, "attributes": attributes} for name, attributes in given_]
    spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": generation}, "devices": found}
    return {"metadata": {"name": f"{node}-{generation}", "uid": f"{node}-{generation}"}, "spec": spec}


def gpu(number: int, **more: Json) -> tuple[str, Json]:
    reported: Json = {"uuid": {"string": UUID.format(number)}, "productName": {"string": "NVIDIA H100"}, **more}
    reported["resource.kubernetes.io/pcieRoot"] = {"string": "pci0000:00"}
    return f"gpu-{number}", reported


def test_zones_report_numa_nodes_their_gpus_and_distances() -> None:
    assert zone_facts(topology("n1", zone(0, "4"), zone(1, "4"))) == {
        "numa_zones": "node-0,node-1", "numa_gpus": "node-0=4,node-1=4", "numa_distances": "node-0:node-1=21",
    }  # fmt: skip
    bare = zone(0, "0")
    assert zone_facts(topology("n1", bare, {"name": "socket-0", "type": "Socket"})) == {"numa_zones": "node-0"}
    assert zone_facts({}) == {}


def test_devices_report_their_numa_node_and_root_and_old_generations_do_not_count() -> None:
    old = published("n1", 1, gpu(0, numaNode={"int": 1}), gpu(9))
    new = published("n1", 2, gpu(0, numaNode={"int": 0}), gpu(1, numaNode={"int": -1}), ("nic", {}))
    amd = published("n1", 7, ("gpu-0-128", {"numaNode": {"int": 1}}), driver="gpu.amd.com")
    found = dict(devices([old, new, amd], "c"))
    common = {"node": "n1", "gpu_type": "NVIDIA H100", "pcie_root": "pci0000:00"}
    assert {one.name: facts for one, facts in found.items()} == {
        UUID.format(0): {**common, "numa_node": "0"},
        UUID.format(1): common,
    }


def test_numa_facts_are_labels_of_nodes_and_devices() -> None:
    objects = Objects.of(
        [
            (NODES, {"metadata": {"name": "n1", "uid": "n1"}}),
            (NODE_TOPOLOGIES, topology("n1", zone(0, "4"), zone(1, "4"))),
            (RESOURCE_SLICES, published("n1", 1, gpu(0, numaNode={"int": 1}))),
        ]
    )
    reported = graph(objects, replicas_of(objects), "c")
    node, device = EntityRef("c", EntityKind.NODE, None, "n1"), EntityRef("c", EntityKind.GPU, None, UUID.format(0))
    assert reported.labels[node]["numa_gpus"] == "node-0=4,node-1=4"
    assert reported.labels[device]["numa_node"] == "1"
    assert (node, device) in reported.edges


def test_numa_resources_installed_later_are_read() -> None:
    async def whole() -> None:
        async with api_server() as (server, api):
            server.objects = {"/api/v1/nodes": [{"metadata": {"name": "n1", "uid": "n1"}}]}
            server.forbidden.add("/apis/resource.k8s.io/v1/resourceslices")
            source = KubernetesEventSource("kubernetes", api, "c")
            assert (await source.read(AT, []))[1] == []
            node = EntityRef("c", EntityKind.NODE, None, "n1")
            assert "numa_zones" not in source.graph.labels[node]
            server.tell(TOPOLOGIES, "ADDED", topology("n1", zone(0, "4")))
            await source.read(AT, [])
            assert source.graph.labels[node]["numa_zones"] == "node-0"
            before = source.graph
            busy = topology("n1", zone(0, "4"))
            busy["zones"][0]["resources"][1]["available"] = "3"
            server.tell(TOPOLOGIES, "MODIFIED", busy)
            await source.read(AT, [])
            assert source.graph is before, "what is free changes all the time and is no topology"

    asyncio.run(whole())


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING)
def test_arbitrary_objects_do_not_raise(anything: Any) -> None:
    zone_facts({"zones": anything})
    zone_facts({"zones": [{"name": "a", "type": "Node", "costs": anything, "resources": anything}]})
    device = {"attributes": anything}
    list(devices([{"spec": {"nodeName": "n", "pool": anything, "devices": [device, anything]}}], "c"))
