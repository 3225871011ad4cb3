"""Permissions of traffic actions, on a real control plane with the token of the acting account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.kubernetes.permissions import Permission, missing
from remediation.actuators.traffic.actuator import ACTIONS, TECHNIQUES
from remediation.actuators.traffic.permissions import NEEDED, needed
from remediation.actuators.traffic.route import KINDS, RouteKind, TrafficRoute
from tests.support.kube import ACTOR, Cluster
from tests.support.kube_actions import an_action, granted_by_manifest
from tests.support.traffic_scene import (
    CHAT,
    DESTINATION_RULES,
    HTTP_ROUTES,
    INGRESSES,
    PODS,
    POOLS,
    SERVICES,
    VIRTUAL_SERVICES,
    actuator_of,
    http_route,
    replica_ref,
    replicas,
)
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
ROOT = Path(__file__).parents[4]
ISTIO = {"apiVersion": "networking.istio.io/v1"}
ROUTES: dict[RouteKind, TrafficRoute] = {kind: TrafficRoute(kind, "chat") for kind in KINDS}


@pytest.fixture
def actor(cluster: Cluster) -> Iterator[httpx.Client]:
    """A client with the token of the acting account, once its role is in force."""
    for name in ("rbac.yaml", "rbac-act.yaml"):
        cluster.apply((ROOT / "deploy" / name).read_text(encoding="utf-8"))
    headers = {"Authorization": f"Bearer {ACTOR}"}
    with httpx.Client(base_url=cluster.url, headers=headers, verify=False, timeout=30) as client:
        until(lambda: client.get(SERVICES).status_code == 200, "the role is in force")
        yield client


def objects(cluster: Cluster) -> None:
    """Creates the objects of every technique, each named ``chat``."""
    names = replicas(cluster)
    http_route(cluster, dict.fromkeys(names, 10))
    picker = {"name": "picker", "port": {"number": 9002}}
    selector = {"matchLabels": {"app": "chat", "outrider.io/serving": "true"}}
    pool = {"selector": selector, "targetPorts": [{"number": 8000}], "endpointPickerRef": picker}
    kind = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
    cluster.create(POOLS, {**kind, "metadata": {"name": "chat"}, "spec": pool})
    rule = {"metadata": {"name": "chat"}, "spec": {"host": "chat"}}
    cluster.create(DESTINATION_RULES, {**ISTIO, "kind": "DestinationRule", **rule})
    route = [{"destination": {"host": name}, "weight": 10} for name in names]
    virtual = {"metadata": {"name": "chat"}, "spec": {"hosts": ["chat"], "http": [{"route": route}]}}
    cluster.create(VIRTUAL_SERVICES, {**ISTIO, "kind": "VirtualService", **virtual})
    for name, backend, notes in (("main", "chat-1", {}), ("chat", "chat-0", {"canary": "true", "canary-weight": "5"})):
        path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": backend, "port": {"number": 8000}}}}
        meta = {
            "name": name,
            "annotations": {f"nginx.ingress.kubernetes.io/{key}": note for key, note in notes.items()},
        }
        cluster.create(
            INGRESSES, {"metadata": meta, "spec": {"rules": [{"host": "a.example", "http": {"paths": [path]}}]}}
        )


def every_action() -> list[Any]:
    target = replica_ref("chat-0")
    return [
        an_action(ActionKind.SHIFT_TRAFFIC, target, service="chat"),
        an_action(ActionKind.RESTORE_TRAFFIC, target, service="chat"),
        an_action(ActionKind.BALANCE_TRAFFIC, CHAT, weights={"chat-0": 1, "chat-1": 2}),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_technique_is_permitted(cluster: Cluster, actor: httpx.Client, kind: RouteKind) -> None:
    objects(cluster)
    actuator = actuator_of(cluster, ROUTES[kind], "actor")
    balances = kind in ("http_route", "virtual_service", "ingress_canary")
    for action in every_action()[: 3 if balances else 2]:
        assert actuator.perform(action).status is OutcomeStatus.DONE


@pytest.mark.parametrize("kind", KINDS)
def test_the_reading_account_cannot_change_traffic(cluster: Cluster, actor: httpx.Client, kind: RouteKind) -> None:
    objects(cluster)
    with pytest.raises(ActuationError, match="403"):
        actuator_of(cluster, ROUTES[kind], "reader").perform(every_action()[0])


@pytest.mark.parametrize("path", [SERVICES, HTTP_ROUTES, VIRTUAL_SERVICES, DESTINATION_RULES, POOLS, INGRESSES, PODS])
def test_routes_services_and_pods_cannot_be_created_or_deleted(
    cluster: Cluster, actor: httpx.Client, path: str
) -> None:
    objects(cluster)
    assert actor.post(path, json={"metadata": {"name": "x"}}).status_code == 403
    if path != PODS:
        assert actor.delete(f"{path}/chat").status_code == 403


def test_permissions_that_an_account_lacks_are_listed_by_action(cluster: Cluster, actor: httpx.Client) -> None:
    def lacking(token: str, routes: dict[str, TrafficRoute]) -> dict[ActionKind, tuple[Permission, ...]]:
        access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
        return missing(cluster.url, access, needed(routes))

    routes = {kind: TrafficRoute(kind, "chat") for kind in KINDS}
    assert lacking("actor", dict(routes)) == {}
    by_reader = lacking("reader", {"chat": routes["http_route"]})
    assert Permission("patch", "pods") in by_reader[ActionKind.SHIFT_TRAFFIC]
    assert Permission("patch", "httproutes", "gateway.networking.k8s.io") in by_reader[ActionKind.BALANCE_TRAFFIC]


def test_the_manifest_grants_what_every_technique_needs() -> None:
    assert set(NEEDED) == set(TECHNIQUES) == set(KINDS)
    assert {each for permissions in NEEDED.values() for each in permissions} <= granted_by_manifest()


def test_only_configured_techniques_need_permissions() -> None:
    default = needed({})
    assert set(default) == set(ACTIONS)
    assert default[ActionKind.BALANCE_TRAFFIC] == ()
    assert {each.group for each in default[ActionKind.SHIFT_TRAFFIC]} == {"", "apps"}
    istio = needed({"chat": TrafficRoute("destination_rule")})
    assert Permission("patch", "destinationrules", "networking.istio.io") in istio[ActionKind.RESTORE_TRAFFIC]
