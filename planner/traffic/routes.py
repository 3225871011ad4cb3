"""Weights as documents that a gateway or a mesh takes: Gateway API's HTTPRoute, Istio's VirtualService.

Renders, and sends nothing. A route that exists is told again with other weights and nothing else changed; a new one
addresses each replica by a label of its pod: by a Service of its own (Gateway API knows nothing smaller) or as a
subset of the service (Istio). Numbers follow Gateway API 1 and Istio's networking 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from outrider.errors import UsageError
from planner.manifests.kube_names import name_of

Document = Mapping[str, Any]
Kind = Literal["gateway", "istio"]
KINDS: dict[str, Kind] = {"HTTPRoute": "gateway", "VirtualService": "istio"}
POD_LABEL = "statefulset.kubernetes.io/pod-name"
"""Set by Kubernetes on the pods of StatefulSets, so also on the leaders of LeaderWorkerSets."""
MOST_BACKENDS = {"gateway": 16}
"""backendRefs of one rule, by the schema of HTTPRoute."""
ANY_HOST = "*"
_HOST = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SERVERS = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a new route is. ``pods`` of the replicas by name; ``gateway`` as name or namespace/name, else the mesh.

    ``hosts`` are the names that requests to the gateway bear, any name when none is given.
    """

    service: str
    namespace: str
    pods: Mapping[str, str]
    port: int = 8000
    pod_label: str = POD_LABEL
    gateway: str | None = None
    hosts: tuple[str, ...] = ()


def current(route: Document, source: str) -> dict[str, float]:
    """The backends of a route and their weights as they are.

    Raises UsageError for what is no route, for one whose rules share requests out among different backends, and for
    backends that only their namespace, host or port tells apart.
    """
    rules = [{_name(one): _weight(one, route) for one in rule} for rule in _rules(route, source) if len(rule) > 1]
    if not rules:
        raise UsageError(f"{source} shares requests out among no backends", hint="a rule needs two or more")
    if any(rule.keys() != rules[0].keys() for rule in rules):
        raise UsageError(f"the rules of {source} have different backends", hint="give a route with one set of them")
    return rules[0]


def reweighted(route: Document, weights: Mapping[str, int], source: str) -> Document:
    """The route with these weights, without what only the API server writes. Raises UsageError."""
    found = deepcopy(dict(route))
    for rule in _rules(found, source):
        for backend in rule:
            if len(rule) > 1:
                backend["weight"] = weights[_name(backend)]
    found.pop("status", None)
    meta = {key: value for key, value in found["metadata"].items() if key not in _SERVERS}
    if "annotations" in meta:
        meta["annotations"] = {key: value for key, value in meta["annotations"].items() if key != _LAST_APPLIED}
    return {**found, "metadata": meta}


def backends(replicas: Sequence[str]) -> dict[str, str]:
    """The backend that a replica is, by replica: its name as Kubernetes takes names."""
    return {replica: name_of(replica, 50) for replica in replicas}


def documents(kind: Kind, place: Place, weights: Mapping[str, int]) -> tuple[Document, ...]:
    """A new route for replicas, whose names ``weights`` and ``place.pods`` have, with what it needs beside it.

    Raises UsageError for more replicas than a rule may have and for hosts that are none, or are of no gateway.
    """
    _check_hosts(place)
    most = MOST_BACKENDS.get(kind)
    if most is not None and len(weights) > most:
        said = f"a rule of an HTTPRoute has at most {most} backends, here are {len(weights)}"
        raise UsageError(said, hint="take --format istio, or steer pools of replicas")
    return _gateway(place, weights) if kind == "gateway" else _istio(place, weights)


def _gateway(place: Place, weights: Mapping[str, int]) -> tuple[Document, ...]:
    named = backends(list(weights))
    services = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": named[replica], "namespace": place.namespace, "labels": _labels(place)},
            "spec": {
                "selector": {place.pod_label: place.pods[replica]},
                "ports": [{"name": "http", "port": place.port, "targetPort": place.port}],
            },
        }
        for replica in weights
    ]
    parent: dict[str, Any] = {"group": "", "kind": "Service", "name": place.service, "port": place.port}
    if place.gateway is not None:
        space, _, name = place.gateway.rpartition("/")
        parent = {"name": name, **({"namespace": space} if space else {})}
    # without any, a route has the hosts of its gateway; the definition knows no name for all of them
    hosts = {} if not place.hosts or ANY_HOST in place.hosts else {"hostnames": list(place.hosts)}
    refs = [{"name": named[replica], "port": place.port, "weight": weight} for replica, weight in weights.items()]
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": _meta(place),
        "spec": {"parentRefs": [parent], **hosts, "rules": [{"backendRefs": refs}]},
    }
    return *services, route


def _istio(place: Place, weights: Mapping[str, int]) -> tuple[Document, ...]:
    named = backends(list(weights))
    host = f"{place.service}.{place.namespace}.svc.cluster.local"
    subsets = [{"name": named[each], "labels": {place.pod_label: place.pods[each]}} for each in weights]
    routes = [
        {"destination": {"host": host, "subset": named[each], "port": {"number": place.port}}, "weight": weight}
        for each, weight in weights.items()
    ]
    # no request from outside names the service as the cluster does: at a gateway its own names count
    at_gateway = {} if place.gateway is None else {"gateways": [place.gateway]}
    hosts = [host] if place.gateway is None else list(place.hosts) or [ANY_HOST]
    rule = {"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": _meta(place)}
    route = {"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": _meta(place)}
    return (
        {**rule, "spec": {"host": host, "subsets": subsets}},
        {**route, "spec": {"hosts": hosts, **at_gateway, "http": [{"route": routes}]}},
    )


def _check_hosts(place: Place) -> None:
    if place.hosts and place.gateway is None:
        raise UsageError("--host is of a gateway's route", hint="give --gateway too, or leave --host out")
    for host in place.hosts:
        if host != ANY_HOST and (len(host) > 253 or not _HOST.fullmatch(host)):
            hint = "such as chat.example.com, *.example.com, or * for all"
            raise UsageError(f"--host {host!r} is no host", hint=hint)


def _meta(place: Place) -> dict[str, Any]:
    return {"name": f"{name_of(place.service)}-steered", "namespace": place.namespace, "labels": _labels(place)}


def _labels(place: Place) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "outrider", "app.kubernetes.io/part-of": name_of(place.service)}


def _rules(route: Document, source: str) -> Iterator[list[dict[str, Any]]]:
    """The backends of each rule, to be read or changed in place. Raises UsageError for what is no route."""
    kind = route.get("kind") if isinstance(route, Mapping) else None
    meta = route.get("metadata") if isinstance(route, Mapping) else None
    if kind not in KINDS or not isinstance(meta, Mapping) or not meta.get("name"):
        hint = "give what kubectl get -o yaml prints of one route"
        raise UsageError(f"{source} is no HTTPRoute or VirtualService", hint=hint)
    spec = route.get("spec")
    rules = spec.get("rules" if kind == "HTTPRoute" else "http") if isinstance(spec, Mapping) else None
    for number, rule in enumerate(rules if isinstance(rules, list) else [], start=1):
        found = rule.get("backendRefs" if kind == "HTTPRoute" else "route") if isinstance(rule, Mapping) else None
        listed = found if isinstance(found, list) else []
        if not all(isinstance(one, dict) and _name(one) for one in listed):
            raise UsageError(f"{source}, rule {number}: a backend has no name", hint="give the route unchanged")
        twice = next((name for name, count in Counter(_name(one) for one in listed).items() if count > 1), None)
        if twice is not None:
            said = f"{source}, rule {number}: {twice} stands there twice, of another namespace, host or port"
            raise UsageError(said, hint="a weight belongs to one: steer by names that differ")
        yield listed


def _name(backend: Mapping[str, Any]) -> str:
    """Of a backendRef its own, of a destination that of its subset, else of its host."""
    destination = backend.get("destination")
    if isinstance(destination, Mapping):
        return str(destination.get("subset") or destination.get("host") or "")
    return str(backend.get("name") or "")


def _weight(backend: Mapping[str, Any], route: Document) -> float:
    """Absent it is 1 by Gateway API, and 0 among several by Istio. Raises UsageError."""
    value = backend.get("weight", 1 if route["kind"] == "HTTPRoute" else 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{_name(backend)} has the weight {value!r}", hint="weights are whole numbers from 0")
    return float(value)
