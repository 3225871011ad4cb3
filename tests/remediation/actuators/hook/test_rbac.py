"""Hooks with the token of the acting account: what deploy/rbac-act.yaml grants works, nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.hook.actuator import HookActuator
from remediation.actuators.hook.job import JobHook
from remediation.actuators.hook.job_manifest import JobOptions, job_name, packaged
from remediation.actuators.hook.permissions import of_job, of_nvsentinel
from remediation.actuators.kubernetes.permissions import Permission, missing
from tests.remediation.actuators.hook.conftest import SPACE
from tests.support.kube import ACTOR, Cluster
from tests.support.kube_actions import an_action, node_ref
from tests.support.kube_jobs import await_end, end_pod, pod_of
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
ROOT = Path(__file__).parents[4]
GRANTED = "outrider"
DIAGNOSTIC = ActionKind.RUN_DIAGNOSTIC


@pytest.fixture
def actor(cluster: Cluster) -> Iterator[httpx.Client]:
    """A client with the token of the acting account, once its Role is in force."""
    for name in ("rbac.yaml", "rbac-act.yaml"):
        cluster.apply((ROOT / "deploy" / name).read_text(encoding="utf-8"))
    jobs = f"/apis/batch/v1/namespaces/{GRANTED}/jobs"
    headers = {"Authorization": f"Bearer {ACTOR}"}
    with httpx.Client(base_url=cluster.url, headers=headers, verify=False, timeout=30) as client:
        until(lambda: client.get(f"{jobs}/none").status_code == 404, "the role is in force")
        yield client
    cluster.delete(jobs, params={"propagationPolicy": "Background"})
    cluster.delete(f"/api/v1/namespaces/{GRANTED}/pods", json={"gracePeriodSeconds": 0})


def actuator(cluster: Cluster, namespace: str, token: str = "actor") -> HookActuator:
    access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
    options = JobOptions(packaged(DIAGNOSTIC), namespace=namespace, image="dcgm:test")
    return HookActuator({DIAGNOSTIC: JobHook(cluster.url, access, options)})


def diagnostic() -> Action:
    return an_action(DIAGNOSTIC, node_ref("hook-a"))


def test_a_diagnostic_runs_to_its_end_with_the_granted_permissions(cluster: Cluster, actor: httpx.Client) -> None:
    del actor
    hook, action = actuator(cluster, GRANTED), diagnostic()
    assert hook.perform(action).status is OutcomeStatus.IN_PROGRESS
    end_pod(cluster, pod_of(cluster, GRANTED, job_name(action)), message='{"passed": true}')
    await_end(cluster, GRANTED, job_name(action))
    assert hook.perform(action).status is OutcomeStatus.DONE


def test_jobs_are_refused_in_every_other_namespace(cluster: Cluster, actor: httpx.Client) -> None:
    assert actor.get(f"/apis/batch/v1/namespaces/{SPACE}/jobs").status_code == 403
    assert actor.delete(f"/apis/batch/v1/namespaces/{GRANTED}/jobs/none").status_code == 403
    with pytest.raises(ActuationError, match="403") as caught:
        actuator(cluster, SPACE).perform(diagnostic())
    assert "deploy/rbac-act.yaml" in caught.value.hint
    with pytest.raises(ActuationError, match="403"):
        actuator(cluster, GRANTED, "reader").perform(diagnostic())


def test_missing_permissions_of_hooks_are_listed(cluster: Cluster, actor: httpx.Client) -> None:
    del actor

    def lacking(token: str, namespace: str) -> dict[ActionKind, tuple[Permission, ...]]:
        access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
        needed = {DIAGNOSTIC: of_job(namespace), ActionKind.RESET_GPU: of_nvsentinel(ActionKind.RESET_GPU)}
        return missing(cluster.url, access, needed)

    assert lacking("actor", GRANTED) == {}
    elsewhere = lacking("actor", SPACE)
    assert {(each.verb, each.resource) for each in elsewhere[DIAGNOSTIC]} == {("create", "jobs"), ("get", "jobs")}
    by_reader = lacking("reader", GRANTED)
    assert {each.resource for each in by_reader[ActionKind.RESET_GPU]} == {"gpuresets"}
    assert Permission("create", "jobs", "batch", GRANTED) in by_reader[DIAGNOSTIC]
