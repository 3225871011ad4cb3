"""Rollback, pause and scaling of workloads on a real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.api_server import ApiServer, ConflictError
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.kubernetes.ownership import ACTION, OWNER
from remediation.actuators.kubernetes.revisions import is_observed
from remediation.actuators.kubernetes.rollback_record import ROLLED_BACK
from remediation.actuators.kubernetes.workloads import PAUSED_BY
from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE, actuator_of, an_action, service_ref
from tests.support.kube_scene import deployment, run, template
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
CHAT = service_ref("chat-70b")
DEPLOYMENT, STATEFUL_SET = ["Deployment/chat"], ["StatefulSet/chat"]
SETS = f"/apis/apps/v1/namespaces/{SPACE}/statefulsets"
GOOD, BAD = "vllm:good", "vllm:bad"


def revised(cluster: Cluster, path: str, image: str = BAD) -> None:
    """Rolls out an image; returns once its revision is known."""
    before = cluster.get(path)
    cluster.patch(path, {"spec": {"template": template(image)}})

    def is_known() -> bool:
        now = cluster.get(path)
        if not is_observed(now):
            return False
        if "updateRevision" in now["status"]:
            return bool(now["status"]["updateRevision"] != before["status"]["updateRevision"])
        revision = "deployment.kubernetes.io/revision"
        return now["metadata"]["annotations"][revision] != before["metadata"]["annotations"][revision]

    until(is_known, "the new revision is known")


def settled_deployment(cluster: Cluster, **spec: Any) -> str:
    path = deployment(cluster, SPACE, template=template(GOOD), **spec)

    def is_known() -> bool:
        now = cluster.get(path)
        return "annotations" in now["metadata"] and is_observed(now)

    until(is_known, "the first revision is known")
    return path


def stateful_set(cluster: Cluster) -> str:
    """Creates the StatefulSet ``chat`` with one ready pod; returns its path."""
    spec = {"selector": {"matchLabels": {"app": "chat"}}, "serviceName": "chat", "replicas": 1}
    cluster.create(SETS, {"metadata": {"name": "chat"}, "spec": {**spec, "template": template(GOOD)}})
    run(cluster, cluster.scheduled(SPACE, 1)[0])
    return f"{SETS}/chat"


def pods_of(cluster: Cluster, image: str) -> list[dict[str, Any]]:
    """Returns the pods of an image. Confirms the end of pods, as the kubelet does."""
    pods = cluster.pods(SPACE)
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            path = f"/api/v1/namespaces/{SPACE}/pods/{pod['metadata']['name']}"
            cluster.delete(path, json={"gracePeriodSeconds": 0})
    return [pod for pod in pods if pod["spec"]["containers"][0]["image"] == image]


def image_of(cluster: Cluster, path: str) -> str:
    return str(cluster.get(path)["spec"]["template"]["spec"]["containers"][0]["image"])


def rollback(*workloads: str, **parts: Any) -> Any:
    return an_action(ActionKind.ROLLBACK, CHAT, workloads=list(workloads), **parts)


def test_a_rollback_restores_the_previous_template_once(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    first = cluster.get(path)["spec"]["template"]
    revised(cluster, path)
    action = rollback(*DEPLOYMENT)
    outcome = actuator.perform(action)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "Deployment chat is rolled back to revision 1")
    restored = cluster.get(path)
    assert restored["spec"]["template"] == first
    assert restored["metadata"]["labels"][OWNER] == "outrider"
    assert restored["metadata"]["annotations"][ACTION] == action.id
    assert actuator.perform(action).status is OutcomeStatus.ALREADY, "a second rollback would return to the bad image"
    assert image_of(cluster, path) == GOOD


def rolled_back(cluster: Cluster, actuator: KubernetesActuator, path: str, session: str) -> None:
    """Rolls a workload back; returns once its controller has numbered the restored revision."""
    before = cluster.get(path)
    kind = "StatefulSet" if "serviceName" in before["spec"] else "Deployment"
    assert actuator.perform(rollback(f"{kind}/chat", session=session)).status is OutcomeStatus.DONE

    def is_numbered() -> bool:
        now = cluster.get(path)
        return is_observed(now) and state_of(now) != state_of(before)

    until(is_numbered, "the restored revision is numbered")


def state_of(workload: dict[str, Any]) -> str:
    notes = workload["metadata"].get("annotations", {})
    return str(workload["status"].get("updateRevision") or notes.get("deployment.kubernetes.io/revision"))


@pytest.mark.parametrize("session", ["ses-1", "ses-2"])
def test_a_second_rollback_does_not_restore_the_abandoned_revision(
    cluster: Cluster, actuator: KubernetesActuator, session: str
) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    rolled_back(cluster, actuator, path, "ses-1")
    again = rollback(*DEPLOYMENT, session=session)
    if session == "ses-1":
        assert actuator.perform(again).status is OutcomeStatus.ALREADY
    else:
        with pytest.raises(ActuationError, match="was rolled back already by session ses-1") as refused:
            actuator.perform(again)
        assert not refused.value.retryable
    assert image_of(cluster, path) == GOOD


def test_a_second_rollback_of_a_stateful_set_is_refused(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = stateful_set(cluster)
    revised(cluster, path)
    rolled_back(cluster, actuator, path, "ses-1")
    with pytest.raises(ActuationError, match="was rolled back already by session ses-1"):
        actuator.perform(rollback(*STATEFUL_SET, session="ses-2"))
    assert image_of(cluster, path) == GOOD


def test_a_later_bad_revision_is_rolled_back_past_the_abandoned_one(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    rolled_back(cluster, actuator, path, "ses-1")
    revised(cluster, path, "vllm:worse")
    rolled_back(cluster, actuator, path, "ses-2")
    assert image_of(cluster, path) == GOOD


def test_an_abandoned_revision_that_is_rolled_out_again_can_be_restored(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    rolled_back(cluster, actuator, path, "ses-1")
    for image in (BAD, "vllm:worse"):  # an operator repaired the cause elsewhere
        revised(cluster, path, image)
    rolled_back(cluster, actuator, path, "ses-2")
    assert image_of(cluster, path) == BAD


def test_an_edited_record_of_a_rollback_is_ignored(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    cluster.patch(path, {"metadata": {"annotations": {ROLLED_BACK: '{"abandoned": 1}'}}})
    revised(cluster, path)
    rolled_back(cluster, actuator, path, "ses-1")
    assert image_of(cluster, path) == GOOD


def test_a_dry_run_of_a_rollback_changes_nothing(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    outcome = actuator.perform(rollback(*DEPLOYMENT, dry_run=True))
    assert outcome.status is OutcomeStatus.DRY_RUN
    assert image_of(cluster, path) == BAD


def test_a_first_revision_cannot_be_rolled_back(cluster: Cluster, actuator: KubernetesActuator) -> None:
    settled_deployment(cluster)
    with pytest.raises(ActuationError, match="Deployment chat has no earlier revision"):
        actuator.perform(rollback(*DEPLOYMENT))


def test_a_workload_of_a_reconciler_is_left_to_it(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    cluster.patch(path, {"metadata": {"annotations": {"synced": "yes"}}}, by="argocd-controller")
    for kind in (ActionKind.ROLLBACK, ActionKind.PAUSE_ROLLOUT):
        with pytest.raises(ActuationError, match="managed by argocd-controller, which would revert it"):
            actuator.perform(an_action(kind, CHAT, workloads=DEPLOYMENT))
    assert image_of(cluster, path) == BAD


def test_a_rollout_paused_by_an_operator_is_not_rolled_back(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    cluster.patch(path, {"spec": {"paused": True}})
    with pytest.raises(ActuationError, match="is paused"):
        actuator.perform(rollback(*DEPLOYMENT))
    outcome = actuator.perform(an_action(ActionKind.RESUME_ROLLOUT, CHAT, workloads=DEPLOYMENT))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.ALREADY, "Deployment chat stays paused by someone else")
    assert cluster.get(path)["spec"]["paused"] is True


def test_a_rollout_that_this_session_paused_is_rolled_back_and_continues(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    pause = an_action(ActionKind.PAUSE_ROLLOUT, CHAT, workloads=DEPLOYMENT)
    assert actuator.perform(pause).status is OutcomeStatus.DONE
    other = an_action(ActionKind.ROLLBACK, CHAT, workloads=DEPLOYMENT, session="ses-2")
    with pytest.raises(ActuationError, match="is paused"):
        actuator.perform(other)
    assert actuator.perform(rollback(*DEPLOYMENT)).status is OutcomeStatus.DONE
    assert image_of(cluster, path) == GOOD
    assert "paused" not in cluster.get(path)["spec"]
    resume = an_action(ActionKind.RESUME_ROLLOUT, CHAT, workloads=DEPLOYMENT)
    assert actuator.perform(resume).status is OutcomeStatus.ALREADY


def test_a_rollout_is_paused_and_resumed(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    pause = an_action(ActionKind.PAUSE_ROLLOUT, CHAT, workloads=DEPLOYMENT)
    assert actuator.perform(pause).status is OutcomeStatus.DONE
    assert cluster.get(path)["spec"]["paused"] is True
    assert actuator.perform(pause).status is OutcomeStatus.ALREADY
    resume = an_action(ActionKind.RESUME_ROLLOUT, CHAT, workloads=DEPLOYMENT)
    assert actuator.perform(resume).status is OutcomeStatus.DONE
    resumed = cluster.get(path)
    assert "paused" not in resumed["spec"]
    assert OWNER not in resumed["metadata"].get("labels", {})


@pytest.mark.parametrize("earlier", [ActionKind.SCALE, ActionKind.ROLLBACK])
def test_a_pause_by_an_operator_stays_after_our_earlier_changes(
    cluster: Cluster, actuator: KubernetesActuator, earlier: ActionKind
) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    actuator.perform(an_action(earlier, CHAT, workloads=DEPLOYMENT, replicas=3))
    cluster.patch(path, {"spec": {"paused": True}})
    for kind in (ActionKind.PAUSE_ROLLOUT, ActionKind.RESUME_ROLLOUT):
        outcome = actuator.perform(an_action(kind, CHAT, workloads=DEPLOYMENT))
        assert (outcome.status, "someone else" in outcome.detail) == (OutcomeStatus.ALREADY, True)
    with pytest.raises(ActuationError, match="is paused"):
        actuator.perform(rollback(*DEPLOYMENT))
    assert cluster.get(path)["spec"]["paused"] is True


def test_a_pause_that_an_operator_made_after_ending_ours_stays(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    actuator.perform(an_action(ActionKind.PAUSE_ROLLOUT, CHAT, workloads=DEPLOYMENT))
    for paused in (None, True):
        cluster.patch(path, {"spec": {"paused": paused}})
    outcome = actuator.perform(an_action(ActionKind.RESUME_ROLLOUT, CHAT, workloads=DEPLOYMENT))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.ALREADY, "Deployment chat stays paused by someone else")
    assert cluster.get(path)["spec"]["paused"] is True


def test_a_pause_ends_with_the_last_session_that_needs_it(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)

    def performed(kind: ActionKind, session: str) -> OutcomeStatus:
        return actuator.perform(an_action(kind, CHAT, workloads=DEPLOYMENT, session=session)).status

    assert performed(ActionKind.PAUSE_ROLLOUT, "ses-1") is OutcomeStatus.DONE
    assert performed(ActionKind.RESUME_ROLLOUT, "ses-2") is OutcomeStatus.ALREADY
    assert performed(ActionKind.PAUSE_ROLLOUT, "ses-2") is OutcomeStatus.DONE
    assert performed(ActionKind.RESUME_ROLLOUT, "ses-1") is OutcomeStatus.DONE
    assert cluster.get(path)["spec"]["paused"] is True
    assert performed(ActionKind.RESUME_ROLLOUT, "ses-2") is OutcomeStatus.DONE
    resumed = cluster.get(path)
    assert "paused" not in resumed["spec"]
    assert PAUSED_BY not in resumed["metadata"].get("annotations", {})


def test_pods_that_block_a_stateful_set_are_deleted_with_its_rollback(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    path = stateful_set(cluster)
    revised(cluster, path)
    until(lambda: bool(pods_of(cluster, BAD)), "a pod of the bad revision exists")
    action = rollback(*STATEFUL_SET)
    outcome = actuator.perform(action)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "StatefulSet chat is rolled back to revision 1")
    until(lambda: bool(pods_of(cluster, GOOD)) and not pods_of(cluster, BAD), "only a pod of the good revision is left")
    assert actuator.perform(action).status is OutcomeStatus.ALREADY


def test_an_interrupted_rollback_of_a_stateful_set_is_completed(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = stateful_set(cluster)
    revised(cluster, path)
    until(lambda: bool(pods_of(cluster, BAD)), "a pod of the bad revision exists")
    action = rollback(*STATEFUL_SET)
    patch, *deletions = actuator.requests(action)
    assert deletions, "the process ends before it sends them"
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    with ApiServer(cluster.url, access) as server:
        server.send(patch, dry_run=False)

    def is_completed() -> bool:
        return actuator.perform(action).status is OutcomeStatus.DONE

    until(is_completed, "the stuck pod is deleted")
    until(lambda: bool(pods_of(cluster, GOOD)) and not pods_of(cluster, BAD), "only a pod of the good revision is left")
    assert actuator.perform(action).status is OutcomeStatus.ALREADY


def test_a_completed_rollback_leaves_pods_of_a_newer_revision(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = stateful_set(cluster)
    revised(cluster, path)
    until(lambda: bool(pods_of(cluster, BAD)), "a pod of the bad revision exists")
    action = rollback(*STATEFUL_SET)
    assert actuator.perform(action).status is OutcomeStatus.DONE
    until(lambda: bool(pods_of(cluster, GOOD)) and not pods_of(cluster, BAD), "only a pod of the good revision is left")
    run(cluster, cluster.scheduled(SPACE, 1)[0])
    revised(cluster, path)
    until(lambda: bool(pods_of(cluster, BAD)), "an operator's rollout has a pod that starts")
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in cluster.pods(SPACE))


def test_replicas_without_an_owner_are_scaled(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster, replicas=2)
    action = an_action(ActionKind.SCALE, CHAT, workloads=DEPLOYMENT, replicas=3)
    outcome = actuator.perform(action)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "Deployment chat: 2 -> 3 replicas")
    assert cluster.get(path)["spec"]["replicas"] == 3
    assert actuator.perform(action).status is OutcomeStatus.ALREADY


def test_a_scale_out_never_lowers_the_live_number(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster, replicas=5)
    outcome = actuator.perform(an_action(ActionKind.SCALE, CHAT, workloads=DEPLOYMENT, replicas=3, current=2))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.ALREADY, "Deployment chat already has 5 replicas")
    assert cluster.get(path)["spec"]["replicas"] == 5


@pytest.mark.parametrize("live", [3, 6])
def test_a_scale_in_of_another_number_than_decided_is_refused(
    cluster: Cluster, actuator: KubernetesActuator, live: int
) -> None:
    path = settled_deployment(cluster, replicas=live)
    scale_in = an_action(ActionKind.SCALE, CHAT, workloads=DEPLOYMENT, replicas=2, current=4)
    with pytest.raises(ActuationError, match=f"has {live} replicas, and the scale-in was decided for 4") as refused:
        actuator.perform(scale_in)
    assert not refused.value.retryable
    assert cluster.get(path)["spec"]["replicas"] == live
    cluster.patch(path, {"spec": {"replicas": 4}})
    assert actuator.perform(scale_in).status is OutcomeStatus.DONE
    assert cluster.get(path)["spec"]["replicas"] == 2
    cluster.patch(path, {"spec": {"replicas": 1}})
    assert actuator.perform(scale_in).status is OutcomeStatus.ALREADY, "nothing is left to remove"


def test_replicas_of_an_autoscaler_are_left_to_it(cluster: Cluster, actuator: KubernetesActuator) -> None:
    settled_deployment(cluster, replicas=2)
    hpas = f"/apis/autoscaling/v2/namespaces/{SPACE}/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    cluster.create(hpas, {"metadata": {"name": "chat"}, "spec": {"scaleTargetRef": target, "maxReplicas": 8}})
    with pytest.raises(ActuationError, match="belong to HorizontalPodAutoscaler chat"):
        actuator.perform(an_action(ActionKind.SCALE, CHAT, workloads=DEPLOYMENT, replicas=3))
    cluster.delete(f"{hpas}/chat")


@pytest.mark.parametrize(
    ("workloads", "message"),
    [([], "no workload of chat-70b is known"), (["LeaderWorkerSet/chat"], "a LeaderWorkerSet cannot be changed")],
)
def test_unknown_workloads_are_refused(actuator: KubernetesActuator, workloads: list[str], message: str) -> None:
    with pytest.raises(ActuationError, match=message) as refused:
        actuator.perform(rollback(*workloads))
    assert not refused.value.retryable


def test_other_kinds_name_the_setting_of_their_actuator(actuator: KubernetesActuator) -> None:
    with pytest.raises(ActuationError, match="does not support shift_traffic") as refused:
        actuator.perform(an_action(ActionKind.SHIFT_TRAFFIC, CHAT))
    assert "remediation.actuators.shift_traffic" in refused.value.hint


def test_an_account_without_permission_is_refused(cluster: Cluster) -> None:
    settled_deployment(cluster)
    with pytest.raises(ActuationError, match="403"):
        actuator_of(cluster, "stranger").perform(rollback(*DEPLOYMENT))


def test_a_template_of_an_older_version_is_a_conflict(cluster: Cluster, actuator: KubernetesActuator) -> None:
    path = settled_deployment(cluster)
    revised(cluster, path)
    (request,) = actuator.requests(rollback(*DEPLOYMENT))
    cluster.patch(path, {"metadata": {"annotations": {"edited": "meanwhile"}}})
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    with ApiServer(cluster.url, access) as server, pytest.raises(ConflictError):
        server.send(request, dry_run=False)
    assert image_of(cluster, path) == BAD
