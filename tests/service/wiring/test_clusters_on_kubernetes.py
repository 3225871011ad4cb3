"""Actions of several clusters on one real API server: objects of the same name are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from outrider.errors import ActuationError
from outrider.model import ActionKind, EntityKind, EntityRef, OutcomeStatus
from service.config import settings
from service.config.settings import Settings
from service.wiring.remediation import actuator
from tests.support.kube import Cluster
from tests.support.kube_actions import an_action

pytestmark = pytest.mark.control_plane
NODE = "/api/v1/nodes/cluster-gpu-1"
HERE = EntityRef("east", EntityKind.NODE, None, "cluster-gpu-1")
ELSEWHERE = replace(HERE, cluster="west")


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """The control plane with one node, whose name also exists in another cluster."""
    control_plane.node(HERE.name)
    yield control_plane
    control_plane.delete(NODE)


def configured(folder: Path, cluster: Cluster) -> Settings:
    api = {"url": cluster.url, "bearer_token_file": str(cluster.token_file("admin")), "insecure_skip_verify": True}
    document = {"cluster": "east", "remediation": {"actuator": "kubernetes", "kubernetes": api}}
    file = folder / "outrider.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return settings.load(file)


def test_a_healthy_node_of_the_same_name_is_not_cordoned(cluster: Cluster, tmp_path: Path) -> None:
    router, before = actuator(configured(tmp_path, cluster)), cluster.get(NODE)["metadata"]["resourceVersion"]
    for dry_run in (True, False):
        action = an_action(ActionKind.CORDON, ELSEWHERE, dry_run=dry_run)
        with pytest.raises(ActuationError, match="is in the cluster west, but cordon reaches only east"):
            router.perform(action)
    after = cluster.get(NODE)
    assert after["metadata"]["resourceVersion"] == before
    assert not after["spec"].get("unschedulable")
    assert router.perform(an_action(ActionKind.CORDON, HERE)).status is OutcomeStatus.DONE
    assert cluster.get(NODE)["spec"]["unschedulable"]


def test_a_node_that_only_another_cluster_has_is_not_recorded_as_done(cluster: Cluster, tmp_path: Path) -> None:
    """The server here has no such node: an un-cordon would be done already."""
    router, only_there = actuator(configured(tmp_path, cluster)), replace(ELSEWHERE, name="cluster-gpu-9")
    with pytest.raises(ActuationError, match="cluster west"):
        router.perform(an_action(ActionKind.UNCORDON, only_there))
