"""The manifest of the acting account, on a real control plane with its own token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.kubernetes.actuator import CHANGES, KubernetesActuator
from remediation.actuators.kubernetes.permissions import NEEDED, Permission, missing
from remediation.actuators.kubernetes.revisions import is_observed
from tests.support.kube import ACTOR, Cluster
from tests.support.kube_actions import (
    SPACE,
    actuator_of,
    an_action,
    granted_by_manifest,
    node_ref,
    pod_ref,
    service_ref,
)
from tests.support.kube_scene import deployment, run_all, template
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
ROOT = Path(__file__).parents[4]
CHAT = f"/apis/apps/v1/namespaces/{SPACE}/deployments/chat"
WORKLOADS = {"workloads": ["Deployment/chat"]}


@pytest.fixture
def actor(cluster: Cluster) -> Iterator[httpx.Client]:
    """A client with the token of the acting account, once its role is in force."""
    for name in ("rbac.yaml", "rbac-act.yaml"):
        cluster.apply((ROOT / "deploy" / name).read_text(encoding="utf-8"))
    headers = {"Authorization": f"Bearer {ACTOR}"}
    with httpx.Client(base_url=cluster.url, headers=headers, verify=False, timeout=30) as client:
        until(lambda: client.get("/api/v1/nodes/acting-a").status_code == 200, "the role is in force")
        yield client


def every_action(cluster: Cluster) -> list[Action]:
    """Returns one action of each kind, for the objects of a Deployment with two revisions."""
    path = deployment(cluster, SPACE, 2, template=template("vllm:good", 1))
    run_all(cluster, SPACE, 2)
    until(lambda: "annotations" in cluster.get(path)["metadata"], "the first revision is known")
    cluster.patch(path, {"spec": {"template": template("vllm:bad", 1)}})
    until(lambda: len(cluster.pods(SPACE)) == 3, "the second revision has a pod")
    pod = next(pod["metadata"]["name"] for pod in cluster.pods(SPACE) if pod["status"]["phase"] == "Running")
    targets: dict[ActionKind, tuple[Any, dict[str, Any]]] = {
        ActionKind.CORDON: (node_ref("acting-a"), {}),
        ActionKind.UNCORDON: (node_ref("acting-a"), {}),
        ActionKind.SCALE: (service_ref("chat-70b"), {**WORKLOADS, "replicas": 3}),
        ActionKind.PAUSE_ROLLOUT: (service_ref("chat-70b"), WORKLOADS),
        ActionKind.RESUME_ROLLOUT: (service_ref("chat-70b"), WORKLOADS),
        ActionKind.ROLLBACK: (service_ref("chat-70b"), WORKLOADS),
        ActionKind.RESTART_POD: (pod_ref(pod), {}),
        ActionKind.DELETE_STUCK_POD: (pod_ref(pod), {}),
        ActionKind.DRAIN: (node_ref("acting-a"), {}),
    }
    assert set(targets) == set(CHANGES), "every kind of action is tried"
    return [an_action(kind, target, **params) for kind, (target, params) in targets.items()]


def test_every_action_is_permitted(cluster: Cluster, actor: httpx.Client) -> None:
    actuator: KubernetesActuator = actuator_of(cluster, "actor")
    worked = (OutcomeStatus.DONE, OutcomeStatus.ALREADY, OutcomeStatus.IN_PROGRESS)
    outcomes = {}
    for action in every_action(cluster):
        until(lambda: is_observed(cluster.get(CHAT)), "the controller has processed the last change")
        outcomes[action.kind] = actuator.perform(action)
    assert {kind for kind, outcome in outcomes.items() if outcome.status not in worked} == set()
    assert outcomes[ActionKind.ROLLBACK].status is OutcomeStatus.DONE
    assert outcomes[ActionKind.DRAIN].status is OutcomeStatus.IN_PROGRESS


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/secrets", None),
        ("DELETE", "/api/v1/nodes/acting-a", None),
        ("POST", f"/api/v1/namespaces/{SPACE}/pods", {"metadata": {"name": "x"}, "spec": template()["spec"]}),
        ("DELETE", f"/apis/apps/v1/namespaces/{SPACE}/deployments/chat", None),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "x"}}),
        ("POST", f"/api/v1/namespaces/{SPACE}/pods/chat/exec?command=sh", None),
    ],
)
def test_other_requests_are_refused(actor: httpx.Client, method: str, path: str, body: Any) -> None:
    assert actor.request(method, path, json=body).status_code == 403


def test_the_reading_account_cannot_act(cluster: Cluster, actor: httpx.Client) -> None:
    with pytest.raises(ActuationError, match="403"):
        actuator_of(cluster, "reader").perform(an_action(ActionKind.CORDON, node_ref("acting-a")))


def test_permissions_that_an_account_lacks_are_listed_by_action(cluster: Cluster, actor: httpx.Client) -> None:
    def lacking(token: str) -> dict[ActionKind, tuple[Permission, ...]]:
        access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
        return missing(cluster.url, access)

    assert lacking("actor") == {}
    by_reader = lacking("reader")
    assert by_reader[ActionKind.CORDON] == (Permission("patch", "nodes"),)
    assert set(by_reader) == set(CHANGES), "a reading account can perform nothing"


def test_the_manifest_grants_what_the_actions_need_and_lists_them() -> None:
    assert set(NEEDED) == set(CHANGES)
    assert {each for needed in NEEDED.values() for each in needed} <= granted_by_manifest()
