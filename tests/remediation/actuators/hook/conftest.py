"""A control plane with three GPU nodes and the namespace of hooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kube import Cluster

SPACE = "hooks"
NODES = ("hook-a", "hook-b", "hook-c")


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """The control plane with nodes of its own; everything is deleted afterwards."""
    if control_plane.http.get(f"/api/v1/namespaces/{SPACE}").status_code == 404:
        control_plane.namespace(SPACE)
    for name in NODES:
        control_plane.node(name, pool="hooks")
        info = {"nodeInfo": {**_info(control_plane, name), "bootID": f"boot-1-{name}"}}
        control_plane.patch(f"/api/v1/nodes/{name}/status", {"status": info}, by="kubelet")
    yield control_plane
    jobs = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
    control_plane.delete(jobs, params={"propagationPolicy": "Background"})
    control_plane.delete(f"/api/v1/namespaces/{SPACE}/pods", json={"gracePeriodSeconds": 0})
    for name in NODES:
        control_plane.delete(f"/api/v1/nodes/{name}")


def _info(cluster: Cluster, name: str) -> dict[str, str]:
    info = cluster.get(f"/api/v1/nodes/{name}")["status"].get("nodeInfo", {})
    return {str(key): str(value) for key, value in info.items() if isinstance(value, str)}
