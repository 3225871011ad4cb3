"""A control plane with the definitions of Gateway API, its inference extension and Istio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import traffic_scene
from tests.support.kube import Cluster


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """The control plane with a namespace for traffic; its objects are deleted afterwards."""
    traffic_scene.prepare(control_plane)
    yield control_plane
    traffic_scene.clean(control_plane)
