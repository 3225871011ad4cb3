"""Pods and GPUs from the device exporter: whole devices, time slices, MIG instances."""

from __future__ import annotations

from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


def line(pod: str, **more: str) -> str:
    labels = {"gpu": "0", "UUID": GPU, "Hostname": "n1", "namespace": "serving", "pod": pod, **more}
    written = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"DCGM_FI_DEV_FB_USED{{{written}}} 100\n"


def pods_on(bench, *lines: str) -> set[str]:
    """The pods that a fault of the GPU can reach."""
    made = bench("dcgm", name="d", entity={"kind": "node", "name": "n1"})
    collected = made.scrape("".join(lines))
    topology = Topology.build(collected.edges)
    gpu = EntityRef("test", EntityKind.GPU, None, GPU)
    assert EntityRef("test", EntityKind.NODE, None, "n1") in topology.causes_of(gpu)
    return {one.name for one in topology.above(gpu, EntityKind.POD)}


def test_time_slices_are_edges_to_every_pod(bench) -> None:
    assert pods_on(bench, line("a", vgpu="0"), line("b", vgpu="1"), line("c", vgpu="2")) == {"a", "b", "c"}


def test_mig_instances_are_edges_to_their_pods(bench) -> None:
    first = line("a", GPU_I_ID="1", GPU_I_PROFILE="1g.10gb")
    second = line("b", GPU_I_ID="2", GPU_I_PROFILE="1g.10gb")
    assert pods_on(bench, first, second) == {"a", "b"}


def test_a_whole_gpu_is_an_edge_to_its_one_pod(bench) -> None:
    assert pods_on(bench, line("a")) == {"a"}
