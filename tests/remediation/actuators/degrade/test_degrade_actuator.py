"""Degrade levels on a real control plane: the ConfigMap, and offline Deployments at zero."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.degrade.actuator import DegradeActuator
from remediation.actuators.degrade.offline_work import REPLICAS
from remediation.actuators.kubernetes.ownership import ACTION, OWNER
from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE, an_action, service_ref
from tests.support.kube_scene import deployment

pytestmark = pytest.mark.control_plane
CHAT = service_ref("chat-70b")
MAPS = f"/api/v1/namespaces/{SPACE}/configmaps"
CHAT_MAP = f"{MAPS}/outrider-degrade-chat-70b"


def actuator_of(cluster: Cluster, token: str = "admin") -> DegradeActuator:
    access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
    return DegradeActuator(cluster.url, access)


def level(number: int, **params: Any) -> Action:
    kind = ActionKind.DEGRADE_SERVICE if number else ActionKind.RESTORE_SERVICE
    content = {"reject": [], "defer": [], "pause": [], "max_output_tokens": None, "model": None, "name": "a level"}
    return an_action(kind, CHAT, **{**content, "level": number, **params})


def content_of(cluster: Cluster) -> dict[str, Any]:
    return dict(json.loads(cluster.get(CHAT_MAP)["data"]["degrade.json"]))


def test_a_level_is_written_once_and_can_be_read_by_gateways(cluster: Cluster) -> None:
    actuator, action = actuator_of(cluster), level(3, reject=["offline"], max_output_tokens=192)
    assert actuator.perform(action).status is OutcomeStatus.DONE
    stored = cluster.get(CHAT_MAP)
    assert stored["data"]["level"] == "3"
    assert stored["metadata"]["labels"][OWNER] == "outrider"
    assert content_of(cluster)["max_output_tokens"] == 192
    assert content_of(cluster)["reject"] == ["offline"]
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    assert cluster.get(CHAT_MAP)["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]


def test_level_0_stays_readable(cluster: Cluster) -> None:
    actuator = actuator_of(cluster)
    actuator.perform(level(3))
    action = level(0)
    assert actuator.perform(action).status is OutcomeStatus.DONE
    assert (cluster.get(CHAT_MAP)["data"]["level"], content_of(cluster)["action"]) == ("0", action.id)


@pytest.mark.parametrize("space", [SPACE, "deleted-space"])
def test_without_a_config_map_there_is_no_level_to_end(cluster: Cluster, space: str) -> None:
    """Also in a namespace that was deleted with its service."""
    actuator, action = actuator_of(cluster), level(0)
    action = replace(action, target=replace(action.target, namespace=space))
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    assert cluster.http.get(f"/api/v1/namespaces/{space}/configmaps/outrider-degrade-chat-70b").status_code == 404


def test_a_dry_run_shows_the_requests_and_stores_nothing(cluster: Cluster) -> None:
    action = replace(level(1), dry_run=True)
    actuator = actuator_of(cluster)
    (request,) = actuator.requests(action)
    assert (request.method, request.url) == ("POST", MAPS)
    assert actuator.perform(action).status is OutcomeStatus.DRY_RUN
    assert cluster.http.get(CHAT_MAP).status_code == 404


def test_a_config_map_of_someone_else_is_left_alone(cluster: Cluster) -> None:
    body = {"metadata": {"name": "outrider-degrade-chat-70b"}}
    cluster.create(MAPS, body)
    with pytest.raises(ActuationError, match="is not ours") as caught:
        actuator_of(cluster).perform(level(1))
    assert not caught.value.retryable


def test_offline_work_is_paused_and_comes_back_with_its_exact_replicas(cluster: Cluster) -> None:
    path = deployment(cluster, SPACE, replicas=3)
    name = path.rsplit("/", 1)[1]
    actuator, pause = actuator_of(cluster), level(1, pause=[name])
    actuator.perform(pause)
    paused = cluster.get(path)
    assert paused["spec"]["replicas"] == 0
    assert paused["metadata"]["annotations"][REPLICAS] == "3"
    assert paused["metadata"]["annotations"][ACTION] == pause.id
    assert actuator.perform(pause).status is OutcomeStatus.ALREADY
    actuator.perform(level(2, pause=[name]))
    assert cluster.get(path)["metadata"]["annotations"][REPLICAS] == "3", "a deeper level keeps it paused"
    actuator.perform(level(0))
    back = cluster.get(path)
    assert back["spec"]["replicas"] == 3
    assert REPLICAS not in back["metadata"].get("annotations", {})
    assert OWNER not in back["metadata"].get("labels", {})


def test_replicas_set_by_hand_during_the_pause_stay(cluster: Cluster) -> None:
    path = deployment(cluster, SPACE, replicas=3)
    actuator = actuator_of(cluster)
    actuator.perform(level(1, pause=[path.rsplit("/", 1)[1]]))
    cluster.patch(path, {"spec": {"replicas": 1}})
    actuator.perform(level(0))
    back = cluster.get(path)
    assert back["spec"]["replicas"] == 1
    assert REPLICAS not in back["metadata"].get("annotations", {})


def test_autoscaled_and_missing_offline_work_is_left_alone(cluster: Cluster) -> None:
    path = deployment(cluster, SPACE, replicas=3)
    name = path.rsplit("/", 1)[1]
    scaler = f"/apis/autoscaling/v2/namespaces/{SPACE}/horizontalpodautoscalers"
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    spec = {"scaleTargetRef": reference, "maxReplicas": 5}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "b"}, "spec": spec}
    cluster.create(scaler, body)
    try:
        outcome = actuator_of(cluster).perform(level(1, pause=[name, "no-such"]))
    finally:
        cluster.delete(f"{scaler}/b")
    assert "belong to an autoscaler" in outcome.detail
    assert "no Deployment no-such" in outcome.detail
    assert cluster.get(path)["spec"]["replicas"] == 3
    assert cluster.get(CHAT_MAP)["data"]["level"] == "1", "the level itself is published"
