"""The plan on a real control plane: patched objects, objects of other owners, and dry runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    OutcomeStatus,
    Verdict,
)
from remediation.actuators import api_server, autoscalers
from remediation.actuators.kubernetes.ownership import ACTION, INCIDENT, OWNER, SESSION
from service.config.scaling_settings import ScalingSettings
from service.scaling import emitting
from tests.support.kube import Cluster
from tests.support.kube_scene import deployment

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPACE = "emitting"
HPAS = f"/apis/autoscaling/v2/namespaces/{SPACE}/horizontalpodautoscalers"


def act(replicas: int, *, current: int = 2, dry_run: bool = False, kind: ActionKind = ActionKind.SCALE) -> Action:
    return Action(
        id=f"a-{replicas}", session="plan", kind=kind, target=EntityRef("c", EntityKind.SERVICE, SPACE, "chat"),
        params={"replicas": replicas, "current": current}, because="plan", dry_run=dry_run, decision=Verdict.ALLOWED,
        reason=DecisionReason.WITHIN_LIMITS, status=ActionStatus.CLAIMED, decided_at=AT,
    )  # fmt: skip


def by(cluster: Cluster | None, *aims: dict[str, Any], token: str = "admin") -> autoscalers.AutoscalerActuator:
    api = {}
    if cluster is not None:
        api = {
            "url": cluster.url, "bearer_token_file": str(cluster.token_file(token)), "insecure_skip_verify": True,
        }  # fmt: skip
    emit = [{"service": "chat", **aim} for aim in aims]
    return emitting.actuator(ScalingSettings.model_validate({"emit": emit, "kubernetes": api}))


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    if control_plane.http.get(f"/api/v1/namespaces/{SPACE}").status_code == 404:
        control_plane.namespace(SPACE)
    yield control_plane
    control_plane.delete(f"{HPAS}/chat")
    control_plane.delete(f"/apis/apps/v1/namespaces/{SPACE}/deployments/chat")


def carries_marks(document: dict[str, Any], action: Action) -> bool:
    """True if the object names its owner, session, incident and action, as act-on-kubernetes.md describes."""
    meta = document["metadata"]
    labels = {OWNER: "outrider", SESSION: action.session, INCIDENT: action.because}
    return labels.items() <= meta.get("labels", {}).items() and meta["annotations"].get(ACTION) == action.id


def hpa(cluster: Cluster, **meta: Any) -> None:
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
        "minReplicas": 2, "maxReplicas": 8,
    }  # fmt: skip
    cluster.create(HPAS, {"metadata": {"name": "chat", **meta}, "spec": spec}, **{"User-Agent": "kubectl/v1.36"})


@pytest.mark.slow
@pytest.mark.control_plane
def test_least_replicas_of_an_hpa_are_set_once_and_bounded(cluster: Cluster) -> None:
    deployment(cluster, SPACE)
    hpa(cluster)
    actuator = by(cluster, {"type": "hpa"})
    dry = actuator.perform(act(5, dry_run=True))
    assert dry.status is OutcomeStatus.DRY_RUN
    assert "2 -> 5" in dry.detail
    assert cluster.get(f"{HPAS}/chat")["spec"]["minReplicas"] == 2, "a dry run changes nothing"
    assert actuator.perform(act(5)).status is OutcomeStatus.DONE
    patched = cluster.get(f"{HPAS}/chat")
    assert patched["spec"]["minReplicas"] == 5
    assert patched["metadata"]["annotations"]["outrider.io/plan"] == "2026-11-21T12:00:00Z"
    assert carries_marks(patched, act(5))
    version = patched["metadata"]["resourceVersion"]
    repeated = actuator.perform(act(5))
    assert repeated.status is OutcomeStatus.ALREADY
    assert cluster.get(f"{HPAS}/chat")["metadata"]["resourceVersion"] == version, "not written again"
    bounded = actuator.perform(act(50))
    assert "bounded by spec.maxReplicas" in bounded.detail
    assert cluster.get(f"{HPAS}/chat")["spec"]["minReplicas"] == 8
    deployed = cluster.get(f"/apis/apps/v1/namespaces/{SPACE}/deployments/chat")
    managers = [field["manager"] for field in deployed["metadata"]["managedFields"]]
    assert api_server.FIELD_MANAGER not in managers, "the workload itself is left alone"


@pytest.mark.control_plane
def test_a_scale_out_never_lowers_a_minimum_that_someone_raised(cluster: Cluster) -> None:
    deployment(cluster, SPACE)
    hpa(cluster)
    cluster.patch(f"{HPAS}/chat", {"spec": {"minReplicas": 6}})
    outcome = by(cluster, {"type": "hpa"}).perform(act(5))
    assert (outcome.status, "minReplicas is 6 already" in outcome.detail) == (OutcomeStatus.ALREADY, True)
    assert cluster.get(f"{HPAS}/chat")["spec"]["minReplicas"] == 6


@pytest.mark.control_plane
def test_a_scale_in_below_a_raised_minimum_is_refused(cluster: Cluster) -> None:
    deployment(cluster, SPACE)
    hpa(cluster)
    cluster.patch(f"{HPAS}/chat", {"spec": {"minReplicas": 7}})
    actuator = by(cluster, {"type": "hpa"})
    with pytest.raises(ActuationError, match="has 7 replicas, and the scale-in was decided for 5") as refused:
        actuator.perform(act(3, current=5))
    assert not refused.value.retryable
    assert cluster.get(f"{HPAS}/chat")["spec"]["minReplicas"] == 7
    assert actuator.perform(act(6, current=7)).status is OutcomeStatus.DONE
    cluster.patch(f"{HPAS}/chat", {"spec": {"minReplicas": 2}})
    assert actuator.perform(act(5, current=6)).status is OutcomeStatus.DONE, "the plan's minimum of a busy service"
    assert cluster.get(f"{HPAS}/chat")["spec"]["minReplicas"] == 5


@pytest.mark.control_plane
def test_replicas_of_a_deployment_that_someone_changed_are_kept(cluster: Cluster) -> None:
    path = deployment(cluster, SPACE, 5)
    actuator = by(cluster, {"type": "deployment"})
    assert actuator.perform(act(4)).status is OutcomeStatus.ALREADY
    with pytest.raises(ActuationError, match="has 5 replicas, and the scale-in was decided for 4"):
        actuator.perform(act(3, current=4))
    assert cluster.get(path)["spec"]["replicas"] == 5
    assert actuator.perform(act(3, current=5)).status is OutcomeStatus.DONE
    assert carries_marks(cluster.get(path), act(3))


@pytest.mark.control_plane
def test_replicas_that_an_hpa_sets_are_left_to_it(cluster: Cluster) -> None:
    path = deployment(cluster, SPACE)
    actuator = by(cluster, {"type": "deployment"})
    assert actuator.perform(act(3)).status is OutcomeStatus.DONE
    assert cluster.get(path)["spec"]["replicas"] == 3
    hpa(cluster)
    with pytest.raises(ActuationError, match="belong to HorizontalPodAutoscaler chat") as refused:
        actuator.perform(act(4))
    assert not refused.value.retryable
    assert cluster.get(path)["spec"]["replicas"] == 3


@pytest.mark.control_plane
def test_replicas_that_argo_cd_sets_are_left_to_it(cluster: Cluster) -> None:
    path = deployment(cluster, SPACE)
    cluster.patch(path, {"spec": {"replicas": 6}}, by="argocd-controller")
    with pytest.raises(ActuationError, match="field manager argocd-controller"):
        by(cluster, {"type": "deployment"}).perform(act(4))


@pytest.mark.control_plane
def test_one_object_that_cannot_be_changed_stops_all(cluster: Cluster) -> None:
    deployment(cluster, SPACE)
    hpa(cluster)
    actuator = by(cluster, {"type": "hpa"}, {"type": "knative"})
    with pytest.raises(ActuationError, match="404"):
        actuator.perform(act(4))
    assert cluster.get(f"{HPAS}/chat")["spec"]["minReplicas"] == 2


@pytest.mark.control_plane
def test_an_account_without_permission_gets_a_hint(cluster: Cluster) -> None:
    api = {"url": cluster.url, "bearer_token_file": str(cluster.token_file("stranger")), "insecure_skip_verify": True}
    emit = [{"service": "chat", "type": "hpa"}]
    actuator = emitting.actuator(ScalingSettings.model_validate({"emit": emit, "kubernetes": api}))
    with pytest.raises(ActuationError, match="403") as refused:
        actuator.perform(act(4))
    assert "rbac-act.yaml" in refused.value.hint


def test_other_actions_and_services_without_an_aim_are_refused() -> None:
    with pytest.raises(ActuationError, match="does not support cordon"):
        by(None, {"type": "hpa"}).perform(act(3, kind=ActionKind.CORDON))
    with pytest.raises(ActuationError, match="has no entry to scale"):
        by(None).perform(act(3))
    with pytest.raises(ActuationError, match="no Kubernetes API is configured"):
        by(None, {"type": "hpa"}).perform(act(3))


def test_a_webhook_is_posted_with_its_key_and_not_in_a_dry_run() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.headers["Idempotency-Key"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/scale"
        actuator = by(None, {"type": "webhook", "url": url})
        assert actuator.perform(act(7, dry_run=True)).status is OutcomeStatus.DRY_RUN
        assert seen == []
        assert actuator.perform(act(7)).status is OutcomeStatus.DONE
    finally:
        server.shutdown()
        server.server_close()
    ((key, body),) = seen
    assert key == "a-7" == body["id"]
    assert (body["service"], body["target_replicas"]) == ("chat", 7)
