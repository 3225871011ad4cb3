"""Nodes for image pre-pull, from the stored topology."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from outrider.model import CycleRecord, EntityKind, EntityRef
from outrider.ports import CycleCommit
from outrider.topology import Topology
from service.capacity import gpu_nodes
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)


def node(name: str, cluster: str = "c") -> EntityRef:
    return EntityRef(cluster, EntityKind.NODE, None, name)


def fleet() -> Topology:
    """Two types by label, a node of an unknown type with a GPU, one without any GPU, and one elsewhere."""
    unlabeled, gpu = node("unlabeled"), EntityRef("c", EntityKind.GPU, None, "GPU-1")
    labels = {
        node("hopper"): {"gpu_type": "NVIDIA-H100-80GB-HBM3"},
        node("ampere"): {"gpu_type": "NVIDIA-A100-SXM4-80GB"},
        node("plain"): {},
        node("far", "other"): {"gpu_type": "NVIDIA-H100-80GB-HBM3"},
        unlabeled: {},
        gpu: {},
    }
    return Topology.build([(unlabeled, gpu)], tuple(labels), labels, AT)


def test_nodes_of_the_type_that_the_service_runs_on() -> None:
    assert gpu_nodes.fitting(fleet(), "c", "H100") == ("hopper", "unlabeled")
    assert gpu_nodes.fitting(fleet(), "c", "unknown") == ("ampere", "hopper", "unlabeled")
    assert gpu_nodes.fitting(fleet(), "other", "H100") == ("far",)


def test_no_store_is_made_for_the_question(tmp_path: Path) -> None:
    settings = Settings(cluster="c", store=StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    assert gpu_nodes.of_store(settings, "H100") == ()
    assert not list(tmp_path.iterdir())
    with wiring_stores.stores(settings) as (state, _):
        state.commit(CycleCommit(CycleRecord("c", AT, 1.0, 3, 3, 0, 0, 0, 0), topology=fleet()))
    assert gpu_nodes.of_store(settings, "H100") == ("hopper", "unlabeled")
