"""Weights in routes of Gateway API and Istio: read, changed in place, created."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from outrider.errors import UsageError
from planner.traffic import routes
from planner.traffic.routes import RouteLocation

WEIGHTS = {"chat-0": 20, "Chat_1": 80}
PLACE = RouteLocation("chat", "prod", {"chat-0": "chat-0", "Chat_1": "chat-1"})


def http_route() -> dict[str, Any]:
    """As printed by kubectl: two rules with the same backends, a filter, a redirect, and the server's own fields."""
    refs = [{"name": "chat-0", "port": 8000, "weight": 1}, {"name": "chat-1", "port": 8000}]
    match = {"path": {"type": "PathPrefix", "value": "/v1/chat"}}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {
            "name": "chat", "namespace": "prod", "uid": "u", "resourceVersion": "9", "generation": 3,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "llm"},
        },
        "spec": {
            "parentRefs": [{"name": "edge"}],
            "rules": [
                {"matches": [match], "backendRefs": refs, "timeouts": {"request": "60s"}},
                {"backendRefs": deepcopy(refs)},
                {"backendRefs": [{"name": "docs", "port": 80, "weight": 1}]},
                {"filters": [{"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}}]},
            ],
        },
        "status": {"parents": []},
    }  # fmt: skip


def virtual_service() -> dict[str, Any]:
    host = "chat.prod.svc.cluster.local"
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "chat", "namespace": "prod"},
        "spec": {
            "hosts": [host],
            "http": [
                {
                    "retries": {"attempts": 2},
                    "route": [
                        {"destination": {"host": host, "subset": "chat-0"}, "weight": 100},
                        {"destination": {"host": host, "subset": "chat-1"}},
                        {"destination": {"host": "spare"}, "weight": 0},
                    ],
                }
            ],
        },
    }


def test_weights_are_read_as_gateway_and_mesh_read_them() -> None:
    assert routes.current_weights(http_route(), "r") == {"chat-0": 1.0, "chat-1": 1.0}
    assert routes.current_weights(virtual_service(), "r") == {"chat-0": 100.0, "chat-1": 0.0, "spare": 0.0}


def test_nothing_but_weights_changes() -> None:
    before = http_route()
    after = routes.set_weights(before, {"chat-0": 30, "chat-1": 70}, "r")
    assert before == http_route(), "the input is unchanged"
    assert [[one["weight"] for one in rule["backendRefs"]] for rule in after["spec"]["rules"][:3]] == [
        [30, 70], [30, 70], [1],
    ]  # fmt: skip
    assert after["metadata"] == {"name": "chat", "namespace": "prod", "annotations": {"team": "llm"}}
    assert "status" not in after
    for rule in (*before["spec"]["rules"], *after["spec"]["rules"]):
        for one in rule.get("backendRefs", []):
            one.pop("weight", None)
    assert after["spec"] == before["spec"]


def test_a_mesh_route_is_reweighted_by_its_subsets() -> None:
    weights = {"chat-0": 30, "chat-1": 60, "spare": 10}
    after = routes.set_weights(virtual_service(), weights, "r")
    assert routes.current_weights(after, "r") == weights
    assert after["spec"]["http"][0]["retries"] == {"attempts": 2}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda one: one.update(kind="Ingress"), "is not an HTTPRoute"),
        (lambda one: one.update(metadata={}), "is not an HTTPRoute"),
        (lambda one: one.update(spec={"rules": []}), "no rule that splits requests"),
        (lambda one: one.update(spec=None), "no rule that splits requests"),
        (lambda one: one["spec"]["rules"][1]["backendRefs"][0].update(name="x"), "have different backends"),
        (lambda one: one["spec"]["rules"][0]["backendRefs"][0].update(name=""), "rule 1: a backend has no name"),
        (lambda one: one["spec"]["rules"][0]["backendRefs"][0].update(weight=-1), "has the weight -1"),
        (lambda one: one["spec"]["rules"][0]["backendRefs"][0].update(weight="half"), "has the weight 'half'"),
        (
            lambda one: one["spec"]["rules"][0]["backendRefs"].append(
                {"name": "chat-0", "namespace": "canary", "port": 8000}
            ),
            "rule 1: chat-0 appears twice",
        ),
    ],
)
def test_an_invalid_route_is_refused(change: Any, text: str) -> None:
    route = http_route()
    change(route)
    with pytest.raises(UsageError, match=text):
        routes.current_weights(route, "r.yaml")


def test_a_new_route_has_a_service_for_each_replica() -> None:
    *services, route = routes.documents("gateway", PLACE, WEIGHTS)
    refs = route["spec"]["rules"][0]["backendRefs"]
    assert [one["metadata"]["name"] for one in services] == [one["name"] for one in refs]
    assert [one["spec"]["selector"][routes.POD_LABEL] for one in services] == ["chat-0", "chat-1"]
    assert [one["weight"] for one in refs] == [20, 80]
    assert route["spec"]["parentRefs"] == [{"group": "", "kind": "Service", "name": "chat", "port": 8000}]
    edge = RouteLocation("chat", "prod", PLACE.pods, gateway="infra/edge")
    assert routes.documents("gateway", edge, WEIGHTS)[-1]["spec"]["parentRefs"] == [
        {"name": "edge", "namespace": "infra"}
    ]


def test_a_new_mesh_route_has_a_subset_for_each_replica() -> None:
    rule, route = routes.documents("istio", PLACE, WEIGHTS)
    subsets = {one["name"]: one["labels"] for one in rule["spec"]["subsets"]}
    shared = routes.current_weights(route, "made")
    assert shared.keys() == subsets.keys()
    assert list(shared.values()) == [20, 80]
    assert list(subsets.values()) == [{routes.POD_LABEL: "chat-0"}, {routes.POD_LABEL: "chat-1"}]


def test_at_a_gateway_a_route_uses_the_requested_host_names() -> None:
    def spec(kind: routes.Kind, *hosts: str, gateway: str | None = "infra/edge") -> Any:
        return routes.documents(kind, RouteLocation("chat", "prod", PLACE.pods, gateway=gateway, hosts=hosts), WEIGHTS)[
            -1
        ]["spec"]

    assert (spec("istio")["gateways"], spec("istio")["hosts"]) == (["infra/edge"], ["*"])
    assert spec("istio", "chat.example.com")["hosts"] == ["chat.example.com"]
    assert spec("istio", gateway=None)["hosts"] == ["chat.prod.svc.cluster.local"]
    assert spec("gateway", "chat.example.com", "*.example.org")["hostnames"] == ["chat.example.com", "*.example.org"]
    assert "hostnames" not in spec("gateway", "*"), "a route without any has those of its gateway"


@pytest.mark.parametrize(
    ("host", "gateway", "text"),
    [
        ("chat.example.com", None, "--host applies to a gateway"),
        ("Chat.example.com", "edge", "'Chat.example.com' is not a host name"),
        ("chat.*.com", "edge", "is not a host name"),
        ("https://chat.example.com", "edge", "is not a host name"),
        ("", "edge", "'' is not a host name"),
    ],
)
def test_an_invalid_gateway_host_is_refused(host: str, gateway: str | None, text: str) -> None:
    place = RouteLocation("chat", "prod", PLACE.pods, gateway=gateway, hosts=(host,))
    with pytest.raises(UsageError, match=text):
        routes.documents("istio", place, WEIGHTS)


def test_more_replicas_than_a_rule_allows_need_the_mesh() -> None:
    many = {f"chat-{n}": 5 for n in range(20)}
    place = RouteLocation("chat", "prod", {name: name for name in many})
    with pytest.raises(UsageError, match="at most 16 backends, not 20"):
        routes.documents("gateway", place, many)
    assert len(routes.documents("istio", place, many)[0]["spec"]["subsets"]) == 20
