"""A service with replicas, Services and routes on a real control plane, for tests of traffic actions."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.model import EntityKind, EntityRef
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.traffic.actuator import traffic_actuator
from remediation.actuators.traffic.route import TrafficRoute
from tests.support import crds
from tests.support.kube import Cluster, MissingError
from tests.support.kube_scene import run

SPACE = "traffic"
SERVING = "outrider.io/serving"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
SERVICES = f"/api/v1/namespaces/{SPACE}/services"
HTTP_ROUTES = f"/apis/gateway.networking.k8s.io/v1/namespaces/{SPACE}/httproutes"
POOLS = f"/apis/inference.networking.k8s.io/v1/namespaces/{SPACE}/inferencepools"
VIRTUAL_SERVICES = f"/apis/networking.istio.io/v1/namespaces/{SPACE}/virtualservices"
DESTINATION_RULES = f"/apis/networking.istio.io/v1/namespaces/{SPACE}/destinationrules"
INGRESSES = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/ingresses"
APPS = f"/apis/apps/v1/namespaces/{SPACE}"
CUSTOM = (HTTP_ROUTES, POOLS, VIRTUAL_SERVICES, DESTINATION_RULES)
CHAT = EntityRef("c", EntityKind.SERVICE, SPACE, "chat")


def replica_ref(name: str) -> EntityRef:
    return EntityRef("c", EntityKind.REPLICA, SPACE, name)


def prepare(cluster: Cluster) -> None:
    """Installs the definitions and the namespace, only once: the definitions are large."""
    if cluster.http.get(f"/api/v1/namespaces/{SPACE}").status_code == 200:
        return
    try:
        crds.install(cluster, *crds.ROUTES, *crds.POOLS)
    except MissingError as error:
        pytest.skip(f"missing: {error}")
    cluster.namespace(SPACE)


def clean(cluster: Cluster) -> None:
    """Deletes everything that tests create in the namespace."""
    for kind in ("deployments", "statefulsets", "replicasets"):
        cluster.delete(f"{APPS}/{kind}", params={"propagationPolicy": "Background"})
    for path in (*CUSTOM, INGRESSES):
        cluster.delete(path)
    for service in cluster.get(SERVICES)["items"]:
        cluster.delete(f"{SERVICES}/{service['metadata']['name']}")
    cluster.delete(PODS, json={"gracePeriodSeconds": 0})


def actuator_of(cluster: Cluster, route: TrafficRoute | None = None, token: str = "admin") -> KubernetesActuator:
    """Returns the actuator of traffic with the credentials of a test account; ``route`` is that of ``chat``."""
    access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
    return traffic_actuator(cluster.url, access, {} if route is None else {"chat": route})


def pod(cluster: Cluster, name: str, *, ready: bool = True, node: str = "", **labels: str) -> dict[str, Any]:
    """Creates a pod with labels, on a node if one is named, ready unless ``ready`` is False."""
    spec = {"containers": [{"name": "vllm", "image": "vllm"}], **({"nodeName": node} if node else {})}
    body = {"metadata": {"name": name, "labels": {"app": "chat", "replica": name, **labels}}, "spec": spec}
    created = cluster.create(PODS, body)
    if ready:
        run(cluster, created)
    return created


def service(cluster: Cluster, name: str, **selector: str) -> None:
    """Creates a Service with a selector."""
    spec = {"selector": selector, "ports": [{"port": 8000}]}
    cluster.create(SERVICES, {"metadata": {"name": name}, "spec": spec})


def labels_of(cluster: Cluster, name: str) -> dict[str, str]:
    labels: dict[str, str] = cluster.get(f"{PODS}/{name}")["metadata"]["labels"]
    return labels


def replicas(cluster: Cluster, count: int = 3, *, node: str = "") -> list[str]:
    """Creates ready replicas ``chat-0`` and so on, with a Service for each and one for all; returns their names."""
    names = [f"chat-{number}" for number in range(count)]
    for name in names:
        pod(cluster, name, node=node, **{SERVING: "true"})
        service(cluster, name, replica=name)
    service(cluster, "chat", app="chat", **{SERVING: "true"})
    return names


def http_route(cluster: Cluster, weights: dict[str, int], **rule: Any) -> str:
    """Creates the HTTPRoute ``chat`` with one rule; returns its path."""
    references = [{"name": name, "port": 8000, "weight": weight} for name, weight in weights.items()]
    body = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "chat", "annotations": {"team": "llm"}},
        "spec": {"parentRefs": [{"name": "public"}], "rules": [{"backendRefs": references, **rule}]},
    }
    cluster.create(HTTP_ROUTES, body)
    return f"{HTTP_ROUTES}/chat"
