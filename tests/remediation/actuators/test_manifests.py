"""Manifests applied server-side on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from outrider.errors import ActuationError
from outrider.wire.http_auth import Access, Tls
from planner.manifests.startup_advice import WarmSettings
from planner.manifests.startup_advice import documents as warm_documents
from remediation.actuators import manifests
from remediation.actuators.manifests import RESOURCES, AppliedDocument, ApplyResult
from tests.support.accepted import SPACE, accepting, where
from tests.support.crds import CHANGED_BY_PLANS
from tests.support.kube import APPLIER, Cluster
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
ROOT = Path(__file__).parents[3]
WARM = WarmSettings("chat", SPACE, image="vllm/vllm-openai:v0.11.0", url="http://chat:8000/", gpus=4, spare=2)
DOCUMENTS = warm_documents(WARM)
BALLOON = where("Deployment", "chat-balloon")
SCALER = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {"name": "chat", "namespace": SPACE},
    "spec": {"scaleTargetRef": {"name": "chat"}, "triggers": [{"type": "cpu", "metadata": {"value": "60"}}]},
}


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    with accepting(control_plane, *CHANGED_BY_PLANS) as accepted:
        yield accepted


@pytest.fixture
def applier(cluster: Cluster) -> Iterator[httpx.Client]:
    """A client with the token of the applying account."""
    for name in ("rbac.yaml", "rbac-apply.yaml"):
        cluster.apply((ROOT / "deploy" / name).read_text(encoding="utf-8"))
    headers = {"Authorization": f"Bearer {APPLIER}"}
    with httpx.Client(base_url=cluster.url, headers=headers, verify=False, timeout=30) as client:
        until(lambda: client.get(where("Job", "none")).status_code == 404, "the role is in force")
        yield client


def applied(
    cluster: Cluster, documents: Any = DOCUMENTS, token: str = "admin", *, dry_run: bool = False
) -> list[AppliedDocument]:
    access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
    return manifests.apply(cluster.url, access, documents, dry_run=dry_run)


def results(documents: list[AppliedDocument]) -> set[ApplyResult]:
    return {document.result for document in documents}


def exists(cluster: Cluster, path: str) -> bool:
    return cluster.http.get(path).status_code == 200


def test_a_dry_run_stores_nothing_and_returns_requests_and_differences(cluster: Cluster) -> None:
    previewed = applied(cluster, dry_run=True)
    assert results(previewed) == {ApplyResult.CREATED}
    balloon = previewed[1]
    assert balloon.name == f"Deployment {SPACE}/chat-balloon"
    assert (balloon.request.method, balloon.request.url) == ("PATCH", BALLOON)
    assert balloon.request.body == DOCUMENTS[1]
    assert "+  replicas: 2" in balloon.diff.splitlines()
    assert not exists(cluster, BALLOON)


def test_documents_are_applied_once(cluster: Cluster) -> None:
    assert results(applied(cluster)) == {ApplyResult.CREATED}
    before = cluster.get(BALLOON)["metadata"]
    assert {entry["manager"] for entry in before["managedFields"] if entry["operation"] == "Apply"} == {"outrider"}
    again = applied(cluster)
    assert results(again) == {ApplyResult.UNCHANGED}
    assert all(document.diff == "" for document in again)
    assert cluster.get(BALLOON)["metadata"]["uid"] == before["uid"]


def test_a_change_of_our_own_is_shown_as_the_lines_that_differ(cluster: Cluster) -> None:
    applied(cluster)
    more = warm_documents(replace(WARM, spare=3))[:2]
    previewed = applied(cluster, more, dry_run=True)
    assert [document.result for document in previewed] == [ApplyResult.UNCHANGED, ApplyResult.CHANGED]
    changed = [line for line in previewed[1].diff.splitlines()[2:] if line[0] in "+-"]
    assert changed == ["-  replicas: 2", "+  replicas: 3"]
    applied(cluster, more)
    assert cluster.get(BALLOON)["spec"]["replicas"] == 3


def test_a_field_of_another_manager_stays_and_its_owner_is_named(cluster: Cluster) -> None:
    applied(cluster)
    kind = {"Content-Type": "application/merge-patch+json"}
    scaled = cluster.http.patch(
        f"{BALLOON}/scale", json={"spec": {"replicas": 5}}, params={"fieldManager": "overprovisioner"}, headers=kind
    )
    assert scaled.status_code == 200
    cluster.delete(where("Job"), params={"propagationPolicy": "Background"})
    for dry_run in (True, False):
        with pytest.raises(ActuationError) as refused:
            applied(cluster, dry_run=dry_run)
        assert f"Deployment {SPACE}/chat-balloon" in refused.value.message
        assert '.spec.replicas: conflict with "overprovisioner"' in refused.value.message
        assert not refused.value.retryable
    assert cluster.get(BALLOON)["spec"]["replicas"] == 5
    assert cluster.get(where("Job"))["items"] == [], "nothing is stored if one document is refused"


def test_a_scaler_of_a_gitops_controller_stays(cluster: Cluster) -> None:
    owned = {"spec": {**SCALER["spec"], "minReplicaCount": 3}}  # type: ignore[dict-item]
    cluster.http.patch(
        where("ScaledObject", "chat"),
        content=yaml.safe_dump({**SCALER, **owned}),
        params={"fieldManager": "argocd-controller"},
        headers={"Content-Type": "application/apply-patch+yaml"},
    )
    wanted = {**SCALER, "spec": {**SCALER["spec"], "minReplicaCount": 6}}  # type: ignore[dict-item]
    with pytest.raises(ActuationError, match=r'\.spec\.minReplicaCount: conflict with "argocd-controller"'):
        applied(cluster, [wanted])
    assert cluster.get(where("ScaledObject", "chat"))["spec"]["minReplicaCount"] == 3


def test_only_kinds_that_outrider_renders_are_applied(cluster: Cluster) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "namespace": SPACE}}
    with pytest.raises(ActuationError, match="a Secret of v1 is not applied") as refused:
        applied(cluster, [*DOCUMENTS, secret])
    assert "DaemonSet" in refused.value.hint
    assert not exists(cluster, BALLOON)


def test_the_applying_account_may_apply_every_kind_and_nothing_else(cluster: Cluster, applier: httpx.Client) -> None:
    jobs = warm_documents(replace(WARM, service="second"))
    assert {document["kind"] for document in (*jobs, SCALER)} == {kind for _, kind in RESOURCES}
    assert results(applied(cluster, [*jobs, SCALER], "applier")) == {ApplyResult.CREATED}
    assert applier.get("/api/v1/secrets").status_code == 403
    assert applier.delete(where("Deployment", "second-balloon")).status_code == 403
    pod = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    assert applier.post(f"/api/v1/namespaces/{SPACE}/pods", json=pod).status_code == 403


def test_a_missing_permission_is_named_with_its_verb_and_resource(cluster: Cluster, applier: httpx.Client) -> None:
    with pytest.raises(ActuationError) as refused:
        applied(cluster, token="reader")
    assert refused.value.status == 403
    assert "PriorityClass outrider-balloon" in refused.value.message
    assert 'resource "priorityclasses"' in refused.value.message
    assert "rbac-apply.yaml" in refused.value.hint


def test_without_a_server_the_setting_is_named() -> None:
    with pytest.raises(ActuationError, match="no Kubernetes API is configured") as refused:
        manifests.apply(None, Access(), DOCUMENTS, dry_run=True)
    assert "planner.scaling.kubernetes.url" in refused.value.hint
