"""Permissions of degrade levels, on a real control plane with the token of the acting account."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.degrade.actuator import DegradeActuator
from remediation.actuators.kubernetes.permissions import DEGRADE, missing
from tests.support.acting import apply_roles
from tests.support.kube import ACTOR, Cluster
from tests.support.kube_actions import SPACE, an_action, granted_by_manifest, service_ref
from tests.support.kube_scene import deployment
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
MAPS = f"/api/v1/namespaces/{SPACE}/configmaps"
CHAT_MAP = f"{MAPS}/outrider-degrade-chat-70b"
CONTENT = {"reject": ["offline"], "defer": [], "max_output_tokens": None, "model": None, "name": "a level"}


@pytest.fixture
def actor(cluster: Cluster) -> Iterator[httpx.Client]:
    """A client with the token of the acting account, once its role is in force."""
    apply_roles(cluster)
    headers = {"Authorization": f"Bearer {ACTOR}"}
    with httpx.Client(base_url=cluster.url, headers=headers, verify=False, timeout=30) as client:
        until(lambda: client.get(CHAT_MAP).status_code == 404, "the role is in force")
        yield client


def access_of(cluster: Cluster, token: str) -> Access:
    return Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))


def publish(cluster: Cluster, token: str, level: int, *pause: str) -> OutcomeStatus:
    kind = ActionKind.DEGRADE_SERVICE if level else ActionKind.RESTORE_SERVICE
    action = an_action(kind, service_ref("chat-70b"), **CONTENT, level=level, pause=list(pause))
    return DegradeActuator(cluster.url, access_of(cluster, token)).perform(action).status


def test_levels_and_pauses_of_offline_work_are_permitted(cluster: Cluster, actor: httpx.Client) -> None:
    path = deployment(cluster, SPACE, replicas=3)
    assert publish(cluster, "actor", 1, "chat") is OutcomeStatus.DONE
    assert (cluster.get(CHAT_MAP)["data"]["level"], cluster.get(path)["spec"]["replicas"]) == ("1", 0)
    assert publish(cluster, "actor", 0) is OutcomeStatus.DONE
    assert (cluster.get(CHAT_MAP)["data"]["level"], cluster.get(path)["spec"]["replicas"]) == ("0", 3)


def test_the_reading_account_publishes_no_level(cluster: Cluster, actor: httpx.Client) -> None:
    with pytest.raises(ActuationError, match="403"):
        publish(cluster, "reader", 1)
    lacking = missing(cluster.url, access_of(cluster, "reader"), DEGRADE)
    assert set(lacking) == set(DEGRADE)


def test_config_maps_cannot_be_listed_or_deleted(cluster: Cluster, actor: httpx.Client) -> None:
    publish(cluster, "actor", 1)
    assert actor.get(MAPS).status_code == 403
    assert actor.delete(CHAT_MAP).status_code == 403


def test_the_manifest_grants_what_levels_need(cluster: Cluster, actor: httpx.Client) -> None:
    assert {each for needed in DEGRADE.values() for each in needed} <= granted_by_manifest()
    assert missing(cluster.url, access_of(cluster, "actor"), DEGRADE) == {}
