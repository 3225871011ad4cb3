"""A control plane with two nodes, and the actuator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remediation.actuators.kubernetes.actuator import KubernetesActuator
from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE, actuator_of


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """The control plane with two nodes of its own; everything is deleted afterwards."""
    if control_plane.http.get(f"/api/v1/namespaces/{SPACE}").status_code == 404:
        control_plane.namespace(SPACE)
    for name in ("acting-a", "acting-b"):
        control_plane.node(name, pool="acting")
    yield control_plane
    apps = f"/apis/apps/v1/namespaces/{SPACE}"
    for kind in ("deployments", "statefulsets", "daemonsets", "replicasets", "controllerrevisions"):
        control_plane.delete(f"{apps}/{kind}", params={"propagationPolicy": "Background"})
    control_plane.delete(f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets")
    control_plane.delete(f"/api/v1/namespaces/{SPACE}/pods", json={"gracePeriodSeconds": 0})
    for name in ("acting-a", "acting-b"):
        control_plane.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def actuator(cluster: Cluster) -> KubernetesActuator:
    """The actuator with admin rights."""
    return actuator_of(cluster)
