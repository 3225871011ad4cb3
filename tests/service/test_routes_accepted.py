"""Routes with weights on a real API server with the real definitions of Gateway API and Istio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.traffic import routes
from planner.traffic.routes import Kind, RouteLocation
from tests.support import crds
from tests.support.accepted import SPACE, accepting, applied, taken, where
from tests.support.kube import Cluster

pytestmark = pytest.mark.control_plane

WEIGHTS = {"chat-0": 20, "chat-1": 0, "Chat_2": 80}
PLACE = RouteLocation("chat", SPACE, {"chat-0": "chat-0", "chat-1": "chat-1", "Chat_2": "chat-2"})


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    with accepting(control_plane, *crds.ROUTES) as found:
        yield found
        for one in found.get(where("v1/Service"))["items"]:
            found.delete(where("v1/Service", one["metadata"]["name"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gateway", "istio"])
@pytest.mark.parametrize(
    ("gateway", "hosts"),
    [
        (None, ()),
        ("infra/edge", ()),
        ("infra/edge", ("*",)),
        ("infra/edge", ("chat.example.com", "*.example.org")),
    ],
)
def test_new_routes_are_accepted(cluster: Cluster, kind: Kind, gateway: str | None, hosts: tuple[str, ...]) -> None:
    for body in routes.documents(kind, RouteLocation("chat", SPACE, PLACE.pods, gateway=gateway, hosts=hosts), WEIGHTS):
        taken(cluster, body)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gateway", "istio"])
def test_a_route_of_the_server_gets_new_weights(cluster: Cluster, kind: Kind) -> None:
    route = routes.documents(kind, PLACE, WEIGHTS)[-1]
    taken(cluster, route)
    path = where(str(route["kind"]), str(route["metadata"]["name"]))
    before = cluster.get(path)
    now = routes.current_weights(before, "the server's")
    wanted = dict(zip(now, (50, 25, 25), strict=True))
    answer = applied(cluster, routes.set_weights(before, wanted, "the server's"))
    assert answer.status_code == 200, answer.text
    after = cluster.get(path)
    assert routes.current_weights(after, "the server's") == wanted
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert routes.set_weights(after, {name: int(weight) for name, weight in now.items()}, "")["spec"] == before["spec"]


@pytest.mark.slow
def test_a_route_of_another_program_is_not_changed(cluster: Cluster) -> None:
    route = routes.documents("gateway", PLACE, WEIGHTS)[-1]
    assert applied(cluster, route, "argocd-controller").status_code == 201
    other = routes.set_weights(route, {"chat-0": 40, "chat-1": 20, routes.backends(["Chat_2"])["Chat_2"]: 40}, "")
    refused = applied(cluster, other)
    assert refused.status_code == 409, refused.text
    assert "argocd-controller" in refused.json()["message"]


@pytest.mark.slow
def test_a_route_accepts_sixteen_backends_at_most(cluster: Cluster) -> None:
    many = {f"chat-{number}": 6 for number in range(16)}
    *_, route = routes.documents("gateway", RouteLocation("chat", SPACE, {name: name for name in many}), many)
    taken(cluster, route)
    refs = route["spec"]["rules"][0]["backendRefs"]
    refs.append({"name": "one-more", "port": 8000, "weight": 1})
    assert "must have at most 16 items" in applied(cluster, route).text
