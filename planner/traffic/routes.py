"""Weights as documents for a gateway or a mesh: Gateway API's HTTPRoute, Istio's VirtualService.

Renders only, sends nothing. An existing route keeps everything but its weights. A new one addresses each replica by a
label of its pod: by a Service of its own (Gateway API supports nothing smaller) or as a subset of the service (Istio).
Formats follow Gateway API 1 and Istio's networking 1.
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
"""Most backendRefs of one rule, by the schema of HTTPRoute."""
ANY_HOST = "*"
_HOST = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SERVERS = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class RouteLocation:
    """Location of a new route.

    ``pods`` of the replicas by name; ``gateway`` as name or namespace/name, otherwise the mesh. ``hosts`` are the host
    names of requests to the gateway; without any, all of them.
    """

    service: str
    namespace: str
    pods: Mapping[str, str]
    port: int = 8000
    pod_label: str = POD_LABEL
    gateway: str | None = None
    hosts: tuple[str, ...] = ()


def current_weights(route: Document, source: str) -> dict[str, float]:
    """Returns the backends of a route and their current weights.

    Raises UsageError if it is not a route, if its rules split requests among different backends, and if only namespace,
    host or port distinguish backends.
    """
    rules = [
        {_name(backend): _weight(backend, route) for backend in rule} for rule in _rules(route, source) if len(rule) > 1
    ]
    if not rules:
        raise UsageError(f"{source} has no rule that splits requests", hint="a rule needs two or more backends")
    if any(rule.keys() != rules[0].keys() for rule in rules):
        raise UsageError(f"the rules of {source} have different backends", hint="give a route with one set of them")
    return rules[0]


def set_weights(route: Document, weights: Mapping[str, int], source: str) -> Document:
    """Returns the route with these weights, without the API server's own fields. Raises UsageError."""
    copy = deepcopy(dict(route))
    for rule in _rules(copy, source):
        for backend in rule:
            if len(rule) > 1:
                backend["weight"] = weights[_name(backend)]
    copy.pop("status", None)
    meta = {key: value for key, value in copy["metadata"].items() if key not in _SERVERS}
    if "annotations" in meta:
        meta["annotations"] = {key: value for key, value in meta["annotations"].items() if key != _LAST_APPLIED}
    return {**copy, "metadata": meta}


def backends(replicas: Sequence[str]) -> dict[str, str]:
    """Backend names by replica: the replica's name in a form that Kubernetes accepts."""
    return {replica: name_of(replica, 50) for replica in replicas}


def documents(kind: Kind, location: RouteLocation, weights: Mapping[str, int]) -> tuple[Document, ...]:
    """Returns a new route for the replicas of ``weights`` and ``location.pods``, and the objects it needs.

    Raises UsageError for more replicas than a rule may have, and for invalid hosts or hosts without a gateway.
    """
    _check_hosts(location)
    most = MOST_BACKENDS.get(kind)
    if most is not None and len(weights) > most:
        message = f"a rule of an HTTPRoute has at most {most} backends, not {len(weights)}"
        raise UsageError(message, hint="use --format istio, or steer pools of replicas")
    return _gateway(location, weights) if kind == "gateway" else _istio(location, weights)


def _gateway(location: RouteLocation, weights: Mapping[str, int]) -> tuple[Document, ...]:
    named = backends(list(weights))
    services = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": named[replica], "namespace": location.namespace, "labels": _labels(location)},
            "spec": {
                "selector": {location.pod_label: location.pods[replica]},
                "ports": [{"name": "http", "port": location.port, "targetPort": location.port}],
            },
        }
        for replica in weights
    ]
    parent: dict[str, Any] = {"group": "", "kind": "Service", "name": location.service, "port": location.port}
    if location.gateway is not None:
        space, _, name = location.gateway.rpartition("/")
        parent = {"name": name, **({"namespace": space} if space else {})}
    # without hosts a route has those of its gateway; the specification has no name for all of them
    hosts = {} if not location.hosts or ANY_HOST in location.hosts else {"hostnames": list(location.hosts)}
    refs = [{"name": named[replica], "port": location.port, "weight": weight} for replica, weight in weights.items()]
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": _meta(location),
        "spec": {"parentRefs": [parent], **hosts, "rules": [{"backendRefs": refs}]},
    }
    return *services, route


def _istio(location: RouteLocation, weights: Mapping[str, int]) -> tuple[Document, ...]:
    named = backends(list(weights))
    host = f"{location.service}.{location.namespace}.svc.cluster.local"
    subsets = [{"name": named[replica], "labels": {location.pod_label: location.pods[replica]}} for replica in weights]
    routes = [
        {"destination": {"host": host, "subset": named[replica], "port": {"number": location.port}}, "weight": weight}
        for replica, weight in weights.items()
    ]
    # outside requests do not use the cluster name of the service: at a gateway its own host names count
    at_gateway = {} if location.gateway is None else {"gateways": [location.gateway]}
    hosts = [host] if location.gateway is None else list(location.hosts) or [ANY_HOST]
    rule = {"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": _meta(location)}
    route = {"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": _meta(location)}
    return (
        {**rule, "spec": {"host": host, "subsets": subsets}},
        {**route, "spec": {"hosts": hosts, **at_gateway, "http": [{"route": routes}]}},
    )


def _check_hosts(location: RouteLocation) -> None:
    if location.hosts and location.gateway is None:
        raise UsageError("--host applies to a gateway's route", hint="give --gateway too, or omit --host")
    for host in location.hosts:
        if host != ANY_HOST and (len(host) > 253 or not _HOST.fullmatch(host)):
            hint = "such as chat.example.com, *.example.com, or * for all"
            raise UsageError(f"--host {host!r} is not a host name", hint=hint)


def _meta(location: RouteLocation) -> dict[str, Any]:
    return {
        "name": f"{name_of(location.service)}-steered",
        "namespace": location.namespace,
        "labels": _labels(location),
    }


def _labels(location: RouteLocation) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "outrider", "app.kubernetes.io/part-of": name_of(location.service)}


def _rules(route: Document, source: str) -> Iterator[list[dict[str, Any]]]:
    """The backends of each rule, to be read or changed in place. Raises UsageError if it is not a route."""
    kind = route.get("kind") if isinstance(route, Mapping) else None
    meta = route.get("metadata") if isinstance(route, Mapping) else None
    if kind not in KINDS or not isinstance(meta, Mapping) or not meta.get("name"):
        hint = "give the output of kubectl get -o yaml for one route"
        raise UsageError(f"{source} is not an HTTPRoute or VirtualService", hint=hint)
    spec = route.get("spec")
    rules = spec.get("rules" if kind == "HTTPRoute" else "http") if isinstance(spec, Mapping) else None
    for number, rule in enumerate(rules if isinstance(rules, list) else [], start=1):
        entries = rule.get("backendRefs" if kind == "HTTPRoute" else "route") if isinstance(rule, Mapping) else None
        listed = entries if isinstance(entries, list) else []
        if not all(isinstance(backend, dict) and _name(backend) for backend in listed):
            raise UsageError(f"{source}, rule {number}: a backend has no name", hint="give the route unchanged")
        duplicate = next(
            (name for name, count in Counter(_name(backend) for backend in listed).items() if count > 1), None
        )
        if duplicate is not None:
            message = f"{source}, rule {number}: {duplicate} appears twice, with another namespace, host or port"
            raise UsageError(message, hint="steer by distinct backend names")
        yield listed


def _name(backend: Mapping[str, Any]) -> str:
    """Name of a backendRef, or of a destination's subset, otherwise of its host."""
    destination = backend.get("destination")
    if isinstance(destination, Mapping):
        return str(destination.get("subset") or destination.get("host") or "")
    return str(backend.get("name") or "")


def _weight(backend: Mapping[str, Any], route: Document) -> float:
    """A missing weight is 1 in Gateway API, and 0 among several in Istio. Raises UsageError."""
    value = backend.get("weight", 1 if route["kind"] == "HTTPRoute" else 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{_name(backend)} has the weight {value!r}", hint="weights are whole numbers from 0")
    return float(value)
