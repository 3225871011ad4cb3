"""Weights and outlier ejection of Istio on a real control plane, with the real definitions."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from remediation.actuators.kubernetes.ownership import OWNER, SESSION
from remediation.actuators.traffic.diversions import TRAFFIC
from remediation.actuators.traffic.route import OutlierEjection, TrafficRoute
from tests.support.kube import Cluster
from tests.support.kube_actions import an_action
from tests.support.traffic_scene import (
    CHAT,
    DESTINATION_RULES,
    SERVING,
    SPACE,
    VIRTUAL_SERVICES,
    actuator_of,
    labels_of,
    replica_ref,
    replicas,
)

pytestmark = pytest.mark.control_plane
HOST = f"chat.{SPACE}.svc.cluster.local"
VERSION = {"apiVersion": "networking.istio.io/v1"}
WEIGHTED = TrafficRoute("virtual_service", "chat")
EJECTING = TrafficRoute("destination_rule", ejection=OutlierEjection(3, 5.0, 60.0, 40))
SET = {"consecutive5xxErrors": 3, "interval": "5s", "baseEjectionTime": "60s", "maxEjectionPercent": 40}


def shift(target: Any = None, **params: Any) -> Any:
    return an_action(ActionKind.SHIFT_TRAFFIC, target or replica_ref("chat-0"), **{"service": "chat", **params})


def restore(target: Any = None, **params: Any) -> Any:
    return an_action(ActionKind.RESTORE_TRAFFIC, target or replica_ref("chat-0"), **{"service": "chat", **params})


def virtual_service(cluster: Cluster, *entries: tuple[dict[str, Any], int | None]) -> str:
    """Creates the VirtualService ``chat`` with one named rule; a weight of None is left out."""
    route = [
        {"destination": destination, **({} if weight is None else {"weight": weight})}
        for destination, weight in entries
    ]
    spec = {"hosts": [HOST], "http": [{"name": "all", "route": route}]}
    cluster.create(VIRTUAL_SERVICES, {**VERSION, "kind": "VirtualService", "metadata": {"name": "chat"}, "spec": spec})
    return f"{VIRTUAL_SERVICES}/chat"


def destination_rule(cluster: Cluster, **spec: Any) -> str:
    body = {**VERSION, "kind": "DestinationRule", "metadata": {"name": "chat"}, "spec": {"host": HOST, **spec}}
    cluster.create(DESTINATION_RULES, body)
    return f"{DESTINATION_RULES}/chat"


def subset_of(name: str) -> dict[str, Any]:
    return {"host": HOST, "subset": name}


def by_subset(cluster: Cluster) -> str:
    """Three replicas, each a subset with a third of the traffic."""
    names = replicas(cluster)
    destination_rule(cluster, subsets=[{"name": name, "labels": {"replica": name}} for name in names])
    return virtual_service(
        cluster, *((subset_of(name), weight) for name, weight in zip(names, (34, 33, 33), strict=True))
    )


def weights(cluster: Cluster, path: str) -> dict[str, Any]:
    route = cluster.get(path)["spec"]["http"][0]["route"]
    return {entry["destination"].get("subset", entry["destination"]["host"]): entry.get("weight") for entry in route}


def policy(cluster: Cluster, path: str) -> Any:
    return cluster.get(path)["spec"].get("trafficPolicy")


def test_a_subset_leaves_the_route_once_and_returns_with_its_exact_weight(cluster: Cluster) -> None:
    path, actuator, action = by_subset(cluster), actuator_of(cluster, WEIGHTED), shift()
    before = cluster.get(path)["spec"]
    outcome = actuator.perform(action)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.DONE, "VirtualService chat: all/chat-0 34 -> 0")
    assert weights(cluster, path) == {"chat-0": 0, "chat-1": 33, "chat-2": 33}
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    with pytest.raises(ActuationError, match="another session"):
        actuator.perform(restore(session="ses-2"))
    assert actuator.perform(restore()).status is OutcomeStatus.DONE
    assert cluster.get(path)["spec"] == before


def test_a_dry_run_changes_nothing(cluster: Cluster) -> None:
    path, actuator, action = by_subset(cluster), actuator_of(cluster, WEIGHTED), shift(dry_run=True)
    (request,) = actuator.requests(action)
    assert {"op": "add", "path": "/spec/http/0/route/0/weight", "value": 0} in request.body
    assert actuator.perform(action).status is OutcomeStatus.DRY_RUN
    assert weights(cluster, path)["chat-0"] == 34


def test_computed_weights_are_set_and_a_change_by_hand_stays(cluster: Cluster) -> None:
    path, actuator = by_subset(cluster), actuator_of(cluster, WEIGHTED)
    action = an_action(ActionKind.BALANCE_TRAFFIC, CHAT, weights={"chat-0": 10, "chat-1": 45, "chat-2": 45})
    assert actuator.perform(action).status is OutcomeStatus.DONE
    assert weights(cluster, path) == {"chat-0": 10, "chat-1": 45, "chat-2": 45}
    http = cluster.get(path)["spec"]["http"]
    http[0]["route"][1]["weight"] = 90
    cluster.patch(path, {"spec": {"http": http}})
    outcome = actuator.perform(an_action(ActionKind.RESTORE_TRAFFIC, CHAT))
    assert "all/chat-1 was changed by hand to 90; it stays" in outcome.detail
    assert weights(cluster, path) == {"chat-0": 34, "chat-1": 90, "chat-2": 33}


def test_the_only_destination_is_not_taken_out(cluster: Cluster) -> None:
    replicas(cluster, 1)
    path = virtual_service(cluster, ({"host": "chat-0"}, None))
    with pytest.raises(ActuationError, match="no backend would get traffic"):
        actuator_of(cluster, WEIGHTED).perform(shift())
    assert weights(cluster, path) == {"chat-0": None}


def test_a_destination_without_a_weight_among_several_has_no_traffic(cluster: Cluster) -> None:
    replicas(cluster)
    virtual_service(cluster, ({"host": "chat-0"}, 100), ({"host": "chat-1"}, None))
    with pytest.raises(ActuationError, match="no backend would get traffic"):
        actuator_of(cluster, WEIGHTED).perform(shift())


def test_a_pod_of_a_shared_host_leaves_its_service(cluster: Cluster) -> None:
    replicas(cluster)
    path = virtual_service(cluster, ({"host": HOST}, 100))
    outcome = actuator_of(cluster, WEIGHTED).perform(shift())
    assert "pod chat-0 leaves Service chat" in outcome.detail
    assert SERVING not in labels_of(cluster, "chat-0")
    assert weights(cluster, path) == {HOST: 100}


def test_backends_outside_the_cluster_are_named_by_the_configuration(cluster: Cluster) -> None:
    path = virtual_service(cluster, ({"host": "gpu-a.example.com"}, 50), ({"host": "gpu-b.example.com"}, 50))
    with pytest.raises(ActuationError, match="no backend of VirtualService chat serves chat-0"):
        actuator_of(cluster, WEIGHTED).perform(shift())
    named = TrafficRoute("virtual_service", "chat", backends={"chat-0": "gpu-a.example.com"})
    actuator_of(cluster, named).perform(shift())
    assert weights(cluster, path) == {"gpu-a.example.com": 0, "gpu-b.example.com": 50}


def test_a_missing_route_is_named(cluster: Cluster) -> None:
    with pytest.raises(ActuationError, match="VirtualService chat does not exist in traffic"):
        actuator_of(cluster, WEIGHTED).perform(shift())


def test_an_account_without_the_permission_is_refused(cluster: Cluster) -> None:
    path = by_subset(cluster)
    for route in (WEIGHTED, EJECTING):
        with pytest.raises(ActuationError, match="403"):
            actuator_of(cluster, route, "stranger").perform(shift())
    assert weights(cluster, path)["chat-0"] == 34


@pytest.mark.parametrize(
    "former",
    [
        None,
        {"connectionPool": {"tcp": {"maxConnections": 100}}},
        {"outlierDetection": {"consecutive5xxErrors": 20, "minHealthPercent": 10}},
    ],
)
def test_outlier_ejection_is_set_once_and_the_former_policy_returns(cluster: Cluster, former: Any) -> None:
    path = destination_rule(cluster, **({} if former is None else {"trafficPolicy": former}))
    actuator, action = actuator_of(cluster, EJECTING), shift()
    outcome = actuator.perform(action)
    assert outcome.status is OutcomeStatus.DONE
    assert "DestinationRule chat ejects outliers: consecutive5xxErrors 3, interval 5s" in outcome.detail
    assert policy(cluster, path) == {
        **(former or {}), "outlierDetection": {**(former or {}).get("outlierDetection", {}), **SET}
    }  # fmt: skip
    assert actuator.perform(action).status is OutcomeStatus.ALREADY
    assert cluster.get(path)["metadata"]["labels"][SESSION] == "ses-1"
    assert actuator.perform(restore()).status is OutcomeStatus.DONE
    assert policy(cluster, path) == former
    assert OWNER not in cluster.get(path)["metadata"].get("labels", {})
    assert actuator.perform(restore()).status is OutcomeStatus.ALREADY


def test_ejection_ends_with_the_last_replica_that_needs_it(cluster: Cluster) -> None:
    path, actuator = destination_rule(cluster), actuator_of(cluster, EJECTING)
    actuator.perform(shift(replica_ref("chat-0"), session="ses-1"))
    actuator.perform(shift(replica_ref("chat-1"), session="ses-1"))
    actuator.perform(shift(CHAT, session="ses-2"))
    actuator.perform(restore(replica_ref("chat-0"), session="ses-1"))
    actuator.perform(restore(CHAT, session="ses-2"))
    assert policy(cluster, path) == {"outlierDetection": SET}
    actuator.perform(restore(replica_ref("chat-1"), session="ses-1"))
    assert policy(cluster, path) is None


def test_ejection_of_another_session_is_not_undone(cluster: Cluster) -> None:
    path, actuator = destination_rule(cluster), actuator_of(cluster, EJECTING)
    actuator.perform(shift(session="ses-1"))
    with pytest.raises(ActuationError, match="another session"):
        actuator.perform(restore(session="ses-2"))
    assert policy(cluster, path) == {"outlierDetection": SET}


def test_ejection_that_an_operator_changed_stays(cluster: Cluster) -> None:
    path, actuator = destination_rule(cluster), actuator_of(cluster, EJECTING)
    actuator.perform(shift())
    cluster.patch(path, {"spec": {"trafficPolicy": {"outlierDetection": {"maxEjectionPercent": 90}}}})
    assert "changed by hand" in actuator.perform(restore()).detail
    assert policy(cluster, path)["outlierDetection"]["maxEjectionPercent"] == 90
    assert TRAFFIC not in cluster.get(path)["metadata"].get("annotations", {})


def test_subsets_that_override_the_ejection_are_named(cluster: Cluster) -> None:
    own = {"name": "canary", "labels": {"track": "canary"}, "trafficPolicy": {"outlierDetection": {"interval": "1s"}}}
    destination_rule(cluster, subsets=[own])
    outcome = actuator_of(cluster, EJECTING).perform(shift())
    assert "subsets with their own setting: canary" in outcome.detail


def test_ejection_has_no_weights_and_needs_its_object(cluster: Cluster) -> None:
    actuator = actuator_of(cluster, EJECTING)
    with pytest.raises(ActuationError, match="DestinationRule for chat does not exist in traffic"):
        actuator.perform(shift())
    assert actuator.perform(restore()).status is OutcomeStatus.ALREADY
    with pytest.raises(ActuationError, match="DestinationRule other does not exist in traffic"):
        actuator_of(cluster, TrafficRoute("destination_rule", "other")).perform(shift())
    destination_rule(cluster)
    with pytest.raises(ActuationError, match="a DestinationRule has no weights"):
        actuator.perform(shift(weight=0.5))
    with pytest.raises(ActuationError, match="a DestinationRule has no weights"):
        actuator.perform(an_action(ActionKind.BALANCE_TRAFFIC, CHAT, weights={"chat-0": 1}))


def test_objects_of_a_gitops_controller_are_left_to_it(cluster: Cluster) -> None:
    path, rule = by_subset(cluster), f"{DESTINATION_RULES}/chat"
    for each in (path, rule):
        cluster.patch(each, {"metadata": {"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}})
    for route in (WEIGHTED, EJECTING):
        with pytest.raises(ActuationError, match="managed by Flux Kustomization apps, which would revert it"):
            actuator_of(cluster, route).perform(shift())
