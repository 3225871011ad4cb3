"""MIG from the driver to the topology: the agent's page, read by the adapter of dcgm-exporter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.model import CellStatus, EntityKind, EntityRef
from outrider.topology import Graph, merge_graphs

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from nvml_fake import Driver, Probe, build

GPU = "GPU-00000000-1111-2222-3333-444444444444"
GIBIBYTE = 2.0**30


@pytest.fixture
def driver(tmp_path):
    found = Driver(build(tmp_path), tmp_path / "state")
    found.set(
        **{"0.mig": 2, "0.mig.1.used": 3 * 2**30, "0.gpm.1": 50, "0.mig.0.gpm.1": 20, "0.mig.0.gpm.2": 30, "0.pid": 7}
    )
    return found


def test_a_mig_instance_is_a_gpu_on_its_parent_gpu(driver, bench) -> None:
    probe = Probe(driver.environment)
    node = bench("dcgm", entity={"kind": "node", "name": "node-1"})
    probe.read()
    collected = node.scrape(probe.page())
    collected = node.scrape(probe.page())

    def cell(signal: str, name: str = GPU):
        return node.cell(signal, EntityKind.GPU, name)

    first, second = f"{GPU}/7", f"{GPU}/8"
    assert cell("hw_accel_memory_used_bytes", first) == GIBIBYTE
    assert cell("hw_accel_memory_used_bytes", second) == 3 * GIBIBYTE
    assert cell("hw_accel_memory_used_bytes") == 4 * GIBIBYTE
    assert (cell("hw_accel_utilization_ratio", first), cell("hw_accel_utilization_ratio")) == (0.2, 0.5)
    assert cell("hw_accel_compute_active_ratio", first) == pytest.approx(0.3)
    assert cell("hw_accel_temperature_celsius", second) == 45.0
    for absent in ("hw_accel_power_watts", "hw_accel_core_clock_hertz", "hw_accel_ecc_uncorrectable_total"):
        assert cell(absent, first) is CellStatus.ABSENT
        assert cell(absent) is not CellStatus.ABSENT
    assert cell("hw_accel_utilization_ratio", second) is CellStatus.ABSENT  # the board did not tell: not zero
    whole, parts = EntityRef("test", EntityKind.GPU, None, GPU), [first, second]
    edges = {(lower, upper.name) for lower, upper in collected.edges if upper.kind is EntityKind.GPU}
    assert edges >= {(whole, part) for part in parts}
    facts = {entity.name: known for entity, known in collected.labels.items()}
    assert (facts[first]["mig_profile"], facts[first]["part_of"]) == ("1g.10gb", GPU)
    driver.set(**{"0.mig": 1})
    node.scrape(probe.page())
    assert cell("hw_accel_seen") == 1.0
    assert second not in {entity.name for entity in node.batch(EntityKind.GPU).entities}  # configured away, not lost
    assert probe.close() == 0


def test_a_process_links_its_device_to_its_discovered_pod(bench) -> None:
    uid = "0a1b2c3d-0000-1111-2222-333344445555"
    name, labels = "outrider_agent_process_memory_bytes", f'UUID="{GPU}",Hostname="node-1",pid="7"'
    whole = f'{name}{{{labels},pod_uid="{uid}"}} 1\n'
    part = f'{name}{{{labels},GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",pod_uid="{uid}"}} 1\n'
    pod = EntityRef("test", EntityKind.POD, "serving", "chat-0")
    reported = ((), {pod: {"uid": uid}})
    for page, device in ((whole, GPU), (part, f"{GPU}/7")):
        node = bench("dcgm", entity={"kind": "node", "name": "node-1"})
        gpu = EntityRef("test", EntityKind.GPU, None, device)
        edges = node.scrape(page).edges
        assert (gpu, EntityRef("test", EntityKind.POD, None, uid)) in edges
        found, facts = merge_graphs(edges, {}, [Graph(*reported)])
        assert (gpu, pod) in found
        assert {entity.name for entity in facts} == {"chat-0"}
    outside = bench("dcgm", entity={"kind": "node", "name": "node-1"})
    alone = outside.scrape(f"{name}{{{labels}}} 1\n")
    assert all(upper.kind is not EntityKind.POD for _, upper in alone.edges)
