"""A control plane with the namespace of the acting tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """The control plane; ConfigMaps and Deployments of the namespace are deleted afterwards."""
    if control_plane.http.get(f"/api/v1/namespaces/{SPACE}").status_code == 404:
        control_plane.namespace(SPACE)
    yield control_plane
    control_plane.delete(f"/api/v1/namespaces/{SPACE}/configmaps")
    apps = f"/apis/apps/v1/namespaces/{SPACE}/deployments"
    control_plane.delete(apps, params={"propagationPolicy": "Background"})
