"""Manifests of capacity planning, on a real API server with the real definitions of KEDA and Knative.

Every whole object is applied (server-side, strict: a field that the schema does not know is an error), twice, and
every patch is applied to its object. Fields of other field managers do not change.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from outrider.errors import ActuationError
from outrider.model import BacktestScore, EntityKind, EntityRef, Forecast, OutcomeStatus, PlanReason, Recommendation
from planner.manifests import scaling_manifests
from planner.manifests.startup_advice import BALLOON_PRIORITY, WarmSettings
from planner.manifests.startup_advice import documents as warm_documents
from tests.service.scaling.test_emitting import act, by, carries_marks
from tests.support.accepted import SPACE, accepting, applied, taken, where
from tests.support.acting import apply_roles
from tests.support.crds import CHANGED_BY_PLANS
from tests.support.kube import ACTOR, Cluster
from tests.support.kube_scene import deployment
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
FARAWAY = "http://outrider.monitoring:8600"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
SCALED_OBJECT = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {"name": "chat", "namespace": SPACE},
    "spec": {"scaleTargetRef": {"name": "chat"}, "triggers": [{"type": "cpu", "metadata": {"value": "60"}}]},
}
WARM = WarmSettings(
    "chat", SPACE, image="vllm/vllm-openai:v0.11.0", url="http://chat:8000/", model="org/chat-70b", gpus=4, spare=2,
    node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
)  # fmt: skip


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    with accepting(control_plane, *CHANGED_BY_PLANS) as found:
        yield found


def patched(cluster: Cluster, document: scaling_manifests.Document) -> dict[str, Any]:
    """A rendered patch on its object, strict."""
    answer = cluster.http.patch(
        document.path,
        json=dict(document.body),
        params={"fieldManager": "outrider", "fieldValidation": "Strict"},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def forecast(levels: Sequence[float]) -> Forecast:
    """A day of p95 in hours of equal load."""
    times = AT.timestamp() + 600.0 * np.arange(144)
    hourly = np.repeat(np.resize(np.asarray(levels, dtype=np.float64), 24), 6)
    service = EntityRef("c", EntityKind.SERVICE, SPACE, "chat")
    return Forecast(
        "service_requests_per_second", service, AT, timedelta(minutes=10), times,
        {0.5: hourly * 0.8, 0.95: hourly}, "wave", BacktestScore(None, None, None, 0),
    )  # fmt: skip


def wanted(target: int = 6, **changes: Any) -> Recommendation:
    """A plan of four replicas that carry ten requests a second each."""
    found = Recommendation(
        service=EntityRef("c", EntityKind.SERVICE, SPACE, "chat"), gpu_type="H100", current_replicas=4,
        target_replicas=target, gpus=4 * target, floor=2, ceiling=20, binding="load", need_at=None, needed_by=None,
        lead_time=timedelta(minutes=8), cost_per_hour=None, currency="USD", derivation={"capacity_now": 40.0},
        reason=PlanReason.FORECAST_PEAK, made_at=AT,
    )  # fmt: skip
    return replace(found, **changes)


@pytest.mark.parametrize("service", ["chat", "Org/Qwen_2.5-72B", "模型", "a" * 90])
def test_warm_start_documents_are_accepted_for_any_service_name(cluster: Cluster, service: str) -> None:
    made = warm_documents(replace(WARM, service=service))
    assert [one["kind"] for one in made] == ["PriorityClass", "Deployment", "PriorityClass", "DaemonSet", "Job"]
    for body in made:
        taken(cluster, body)


def test_prompts_to_a_second_endpoint_are_accepted(cluster: Cluster) -> None:
    for url in ("http://chat:8000", "http://chat-new:8000"):
        taken(cluster, warm_documents(replace(WARM, service="second", url=url))[-1])


@pytest.mark.parametrize("resource", ["amd.com/gpu", "huawei.com/Ascend910", "nvidia.com/mig-1g.10gb"])
def test_balloons_and_pulls_of_other_vendors_are_accepted(cluster: Cluster, resource: str) -> None:
    for body in warm_documents(replace(WARM, service="vendors", gpu_resource=resource, node_selector=None)):
        taken(cluster, body)


def test_the_scheduler_sees_balloons_and_their_priority(cluster: Cluster) -> None:
    for body in warm_documents(replace(WARM, service="aloft"))[:2]:
        taken(cluster, body)

    def balloons() -> list[dict[str, Any]]:
        return [pod for pod in cluster.pods(SPACE) if pod["metadata"]["name"].startswith("aloft-balloon-")]

    until(lambda: len(balloons()) == 2, "two balloons exist")
    assert {pod["spec"]["priority"] for pod in balloons()} == {BALLOON_PRIORITY}
    assert {pod["spec"]["preemptionPolicy"] for pod in balloons()} == {"Never"}


def test_balloons_that_another_program_counts_keep_its_number(cluster: Cluster) -> None:
    for body in warm_documents(WARM)[:2]:
        taken(cluster, body)
    path, kind = where("Deployment", "chat-balloon"), {"Content-Type": "application/merge-patch+json"}
    scaled = cluster.http.patch(
        f"{path}/scale", json={"spec": {"replicas": 5}}, params={"fieldManager": "overprovisioner"}, headers=kind
    )
    assert scaled.status_code == 200, scaled.text
    refused = applied(cluster, warm_documents(WARM)[1])
    assert refused.status_code == 409, refused.text
    assert "overprovisioner" in refused.json()["message"]
    assert ".spec.replicas" in refused.json()["message"]
    assert cluster.get(path)["spec"]["replicas"] == 5


@pytest.mark.parametrize(
    ("levels", "url", "changes"),
    [
        ((20.0, 90.0), FARAWAY, {}),
        ((20.0, 90.0), "", {}),
        ((90.0,), "", {}),  # every hour the same: one span from an hour to itself
        ((5.0,), "", {}),  # nothing above the floor: no span at all
        ((5.0,), FARAWAY, {}),
        ((5.0,), "", {"floor": 0, "target_replicas": 0}),
        ((90.0,), "", {"derivation": {}}),  # nobody knows what a replica carries
        ((90.0,), "", {"floor": 9, "ceiling": 3}),  # a quota below the floor
        ((0.0,), "", {"floor": 0, "ceiling": 0, "target_replicas": 0}),
    ],
)
def test_the_cron_scaler_is_accepted_and_read_by_keda(
    cluster: Cluster, levels: tuple[float, ...], url: str, changes: dict[str, Any]
) -> None:
    aim = scaling_manifests.ScalingTarget("cron", "chat", SPACE, timezone="Asia/Kolkata")
    document = scaling_manifests.render(wanted(**changes), aim, forecast(levels), url=url)
    assert document.text == yaml.safe_dump(dict(document.body), sort_keys=False, allow_unicode=True)
    taken(cluster, document.body)
    spec = document.body["spec"]
    # what KEDA's own webhook and scalers ask beyond the schema: pkg/scalers/cron_scaler.go, ValidateTriggers
    assert spec["triggers"]
    for trigger in spec["triggers"]:
        fields = trigger["metadata"]
        if trigger["type"] == "cron":
            assert fields["start"] != fields["end"]
            assert 1 <= int(fields["desiredReplicas"]) <= spec["maxReplicaCount"]
        else:
            assert fields["url"] == f"{FARAWAY}/api/v1/scaling/{SPACE}/chat"


@pytest.mark.slow
def test_a_day_of_constant_need_is_the_floor_of_its_scaler() -> None:
    spec = scaling_manifests.render(
        wanted(), scaling_manifests.ScalingTarget("cron", "chat", SPACE), forecast((90.0,))
    ).body["spec"]
    assert spec["minReplicaCount"] == 9
    assert {one["metadata"]["desiredReplicas"] for one in spec["triggers"]} == {"9"}


def test_a_field_that_the_schema_does_not_know_is_refused(cluster: Cluster) -> None:
    """The check of the checks: strict validation is on for definitions, too."""
    body = scaling_manifests.render(
        wanted(), scaling_manifests.ScalingTarget("cron", "chat", SPACE), forecast((20.0, 90.0))
    ).body
    answer = applied(cluster, {**body, "spec": {**body["spec"], "minReplicas": 3}})
    assert answer.status_code >= 400, answer.text
    assert ".spec.minReplicas: field not declared in schema" in answer.text


def test_patches_are_applied_to_an_hpa_and_do_not_change_replicas(cluster: Cluster) -> None:
    path = deployment(cluster, SPACE)
    spec = {"scaleTargetRef": TARGET, "minReplicas": 2, "maxReplicas": 20}
    cluster.create(where("HorizontalPodAutoscaler"), {"metadata": {"name": "chat"}, "spec": spec})
    document = scaling_manifests.render(wanted(), scaling_manifests.ScalingTarget("hpa", "chat", SPACE))
    found = patched(cluster, document)
    assert found["spec"]["minReplicas"] == 6
    assert found["spec"]["maxReplicas"] == 20
    same = patched(cluster, document)
    assert same["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
    # the real HPA controller brings the workload up to it: replicas are its field, never ours
    until(lambda: cluster.get(path)["spec"]["replicas"] == 6, "the HPA sets the replicas")
    fields = cluster.get(path)["metadata"]["managedFields"]
    owners = {one["manager"] for one in fields if "f:replicas" in one.get("fieldsV1", {}).get("f:spec", {})}
    assert owners == {cluster.kube.name}, "what runs the controllers"
    with pytest.raises(ActuationError, match="belong to HorizontalPodAutoscaler chat"):
        by(cluster, {"type": "deployment", "namespace": SPACE}).perform(act(9))
    cluster.delete(where("HorizontalPodAutoscaler", "chat"))
    with pytest.raises(ActuationError, match=f"field manager {cluster.kube.name}"):
        by(cluster, {"type": "deployment", "namespace": SPACE}).perform(act(9))
    assert cluster.get(path)["spec"]["replicas"] == 6


def test_least_replicas_of_a_scaled_object_are_bounded_as_keda_bounds_them(cluster: Cluster) -> None:
    cluster.create(where("ScaledObject"), SCALED_OBJECT)
    document = scaling_manifests.render(wanted(), scaling_manifests.ScalingTarget("scaled_object", "chat", SPACE))
    assert patched(cluster, document)["spec"]["minReplicaCount"] == 6
    actuator = by(cluster, {"type": "scaled_object", "namespace": SPACE})
    assert actuator.perform(act(7)).status is OutcomeStatus.DONE
    assert carries_marks(cluster.get(where("ScaledObject", "chat")), act(7))
    assert actuator.perform(act(7)).status is OutcomeStatus.ALREADY
    # no maxReplicaCount is 100, and the real definition refuses more than that
    bounded = actuator.perform(act(150))
    assert "bounded by spec.maxReplicaCount" in bounded.detail
    assert cluster.get(where("ScaledObject", "chat"))["spec"]["minReplicaCount"] == 100


def test_a_scaled_object_that_git_owns_is_left_to_it(cluster: Cluster) -> None:
    owned = {**SCALED_OBJECT, "spec": {**SCALED_OBJECT["spec"], "minReplicaCount": 3}}
    assert applied(cluster, owned, "argocd-controller").status_code == 201
    with pytest.raises(ActuationError, match="field manager argocd-controller"):
        by(cluster, {"type": "scaled_object", "namespace": SPACE}).perform(act(7))
    assert cluster.get(where("ScaledObject", "chat"))["spec"]["minReplicaCount"] == 3


def test_an_hpa_that_keda_made_is_left_to_keda(cluster: Cluster) -> None:
    deployment(cluster, SPACE)
    scaler = cluster.create(where("ScaledObject"), SCALED_OBJECT)["metadata"]
    owner = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "chat", "uid": scaler["uid"]}
    meta = {"name": "chat", "ownerReferences": [{**owner, "controller": True}]}
    spec = {"scaleTargetRef": TARGET, "minReplicas": 2, "maxReplicas": 20}
    cluster.create(where("HorizontalPodAutoscaler"), {"metadata": meta, "spec": spec})
    with pytest.raises(ActuationError, match="belongs to ScaledObject chat"):
        by(cluster, {"type": "hpa", "namespace": SPACE}).perform(act(4))
    with pytest.raises(ActuationError, match=r"its replicas belong to (HorizontalPodAutoscaler|ScaledObject) chat"):
        by(cluster, {"type": "deployment", "namespace": SPACE}).perform(act(4))


def knative_service(cluster: Cluster) -> dict[str, Any]:
    """Creates the service ``chat`` with a ready revision; returns the service."""
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0"}
    ksvc = {"metadata": {"name": "chat"}, "spec": {"template": {"spec": {"containers": [container]}}}}
    version = {"apiVersion": "serving.knative.dev/v1"}
    created = cluster.create(where("Service"), {**version, "kind": "Service", **ksvc})
    meta = {"name": "chat-00001", "annotations": {scaling_manifests.KNATIVE_MIN_SCALE: "1"}}
    cluster.create(
        where("Revision"), {**version, "kind": "Revision", "metadata": meta, "spec": ksvc["spec"]["template"]["spec"]}
    )
    cluster.patch(
        where("Service", "chat/status"), {"status": {"latestReadyRevisionName": "chat-00001"}}, by="controller"
    )
    return created


def test_min_scale_goes_to_the_ready_revision_and_makes_no_new_one(cluster: Cluster) -> None:
    before = knative_service(cluster)
    actuator = by(cluster, {"type": "knative", "namespace": SPACE})
    assert actuator.perform(act(5)).status is OutcomeStatus.DONE
    revision = cluster.get(where("Revision", "chat-00001"))
    assert revision["metadata"]["annotations"][scaling_manifests.KNATIVE_MIN_SCALE] == "5"
    assert carries_marks(revision, act(5))
    after = cluster.get(where("Service", "chat"))
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert actuator.perform(act(5)).status is OutcomeStatus.ALREADY


@pytest.mark.parametrize("kind", ["hpa", "scaled_object", "knative", "deployment"])
def test_the_acting_account_may_change_every_kind(cluster: Cluster, kind: str) -> None:
    apply_roles(cluster)
    path = deployment(cluster, SPACE)
    if kind == "hpa":
        spec = {"scaleTargetRef": TARGET, "minReplicas": 2, "maxReplicas": 20}
        path = where("HorizontalPodAutoscaler", "chat")
        cluster.create(where("HorizontalPodAutoscaler"), {"metadata": {"name": "chat"}, "spec": spec})
    if kind == "scaled_object":
        path = where("ScaledObject", "chat")
        cluster.create(where("ScaledObject"), SCALED_OBJECT)
    if kind == "knative":
        path = where("Revision", "chat-00001")
        knative_service(cluster)
    with httpx.Client(base_url=cluster.url, headers={"Authorization": f"Bearer {ACTOR}"}, verify=False) as client:
        until(lambda: client.get(path).status_code == 200, "the role is in force")
        assert client.delete(path).status_code == 403
    actuator = by(cluster, {"type": kind, "namespace": SPACE}, token="actor")
    assert actuator.perform(act(5, dry_run=True)).status is OutcomeStatus.DRY_RUN
    assert actuator.perform(act(5)).status is OutcomeStatus.DONE
    assert carries_marks(cluster.get(path), act(5))
    with pytest.raises(ActuationError, match="403"):
        by(cluster, {"type": kind, "namespace": SPACE}, token="reader").perform(act(6))


def test_the_kustomize_component_is_built_and_accepted(cluster: Cluster, tmp_path: Any) -> None:
    document = scaling_manifests.render(
        wanted(), scaling_manifests.ScalingTarget("kustomize", "chat", SPACE, file="plan/kustomization.yaml")
    )
    folder = tmp_path / "base"
    (tmp_path / "plan").mkdir()
    folder.mkdir()
    # from nothing, as git apply makes it of the patch
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path, input=scaling_manifests.git_patch(document, ""), text=True, check=True
    )
    (folder / "scaler.yaml").write_text(yaml.safe_dump(SCALED_OBJECT))
    build = {"resources": ["scaler.yaml"], "components": ["../plan"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(build))
    done = subprocess.run(
        [cluster.kube, "kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = yaml.safe_load(done.stdout)
    assert built["spec"]["minReplicaCount"] == 6
    assert "replicas" not in built["spec"]
    taken(cluster, built)
