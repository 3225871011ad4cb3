"""From a page with XID 79 to a cordoned node on a real control plane, with the schedule of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.clock import SystemClock
from outrider.model import ActionKind, ActionStatus
from remediation.actuators.kubernetes.nodes import TAINT
from remediation.actuators.kubernetes.ownership import ACTION
from service.config.settings import Settings
from service.runtime import process
from service.wiring import platform as wiring
from service.wiring.platform import Platform
from tests.support.gpu_fleet import GpuFleet, gpu_fleet
from tests.support.kube import Cluster
from tests.support.waiting import until_async

pytestmark = pytest.mark.control_plane
NODES = ["fast-a", "fast-b", "fast-c"]
INTERVAL = "8s"  # longer than the time from the page to the cordon


@pytest.fixture
def fleet(control_plane: Cluster) -> Iterator[GpuFleet]:
    """Three nodes of the control plane, whose exporters are served here."""
    for name in NODES:
        control_plane.node(name)
    with gpu_fleet(NODES) as served:
        yield served
    for name in NODES:
        control_plane.delete(f"/api/v1/nodes/{name}")


def platform_of(fleet: GpuFleet, cluster: Cluster, folder: Path) -> Platform:
    document = {
        "cluster": "c",
        "store": {"url": f"sqlite:///{folder}/o.db"},
        "collect": {"targets": fleet.targets(), "interval": INTERVAL},
        "remediation": {
            "autonomy": "act",
            "dry_run": False,
            "max_cordoned_ratio": 0.5,
            "actuators": {"cordon": "kubernetes"},
            "kubernetes": {
                "url": cluster.url,
                "bearer_token_file": str(cluster.token_file("admin")),
                "insecure_skip_verify": True,
            },
        },
    }
    return wiring.platform(Settings.model_validate(document), SystemClock())


def test_a_page_with_xid_79_cordons_the_node_before_the_cycle_decides(
    fleet: GpuFleet, control_plane: Cluster, tmp_path: Path
) -> None:
    platform = platform_of(fleet, control_plane, tmp_path)
    path = "/api/v1/nodes/fast-b"

    async def cordoned() -> bool:
        node = await asyncio.to_thread(control_plane.get, path)
        return bool(node["spec"].get("unschedulable"))

    async def cycles(count: int) -> bool:
        return len(await asyncio.to_thread(platform.state.cycles)) >= count

    async def run() -> None:
        tasks = process.periodic_tasks_of(platform, SystemClock())
        tasks.start()
        try:
            await until_async(lambda: cycles(2), "two cycles have run")
            fleet.nodes["fast-c"].delay = 1.5  # the round of the broken page stays open
            pages = fleet.nodes["fast-b"].pages
            fleet.nodes["fast-b"].xid[3] = 79

            async def served() -> bool:
                return fleet.nodes["fast-b"].pages > pages

            await until_async(served, "the page is served")
            await until_async(cordoned, "the node is cordoned")
            fleet.nodes["fast-c"].delay = 0.0
            count = len(platform.state.cycles())
            await until_async(lambda: cycles(count + 2), "two more cycles have run")
        finally:
            await tasks.stop()
            await platform.close()

    asyncio.run(run())
    _check(platform_of(fleet, control_plane, tmp_path), control_plane.get(path))


def _check(platform: Platform, node: dict[str, Any]) -> None:
    """The store, as another process opens it after the engine ended."""
    try:
        (cordon,) = (action for action in platform.state.actions() if action.kind is ActionKind.CORDON)
        assert cordon.status is ActionStatus.DONE
        assert node["metadata"]["annotations"][ACTION] == cordon.id
        assert TAINT in {taint["key"] for taint in node["spec"]["taints"]}
        cycles = {cycle.id for cycle in platform.state.cycles()}
        decided = [record for record in platform.state.audit() if record.detail.get("action") == cordon.id]
        assert next(record for record in decided if record.event == "action_decided").cycle not in cycles
        assert len(platform.state.incidents()) == 1
    finally:
        asyncio.run(platform.close())
