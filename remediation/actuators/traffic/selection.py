"""Services and InferencePools, and the pods that their selectors choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remediation.actuators.api_server import ApiServer
from remediation.actuators.kubernetes.change import refused
from remediation.actuators.kubernetes.evictions import is_finished, is_ready, is_terminating
from remediation.actuators.kubernetes.ownership import Json, metadata

SERVICE, POOL = "Service", "InferencePool"
_PATHS = {
    SERVICE: "/api/v1/namespaces/{namespace}/services",
    POOL: "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """A Service or InferencePool with the labels that a pod needs to get its traffic."""

    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    headless: bool = False
    exists: bool = True

    def __str__(self) -> str:
        """Kind and name."""
        return f"{self.kind} {self.name}"

    def selects(self, labels: Mapping[str, Any]) -> bool:
        """True if a pod with these labels gets its traffic."""
        return bool(self.labels) and all(labels.get(key) == value for key, value in self.labels.items())


@dataclass(slots=True)
class PodLists:
    """Pods by selection, read once per attempt."""

    server: ApiServer
    _pods: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)

    def of(self, selection: Selection) -> list[dict[str, Any]]:
        """Returns the selected pods that have not ended; none for a selection without labels."""
        if not selection.labels:
            return []
        query = ",".join(f"{key}={value}" for key, value in sorted(selection.labels.items()))
        key = (selection.namespace, query)
        if key not in self._pods:
            path = f"/api/v1/namespaces/{selection.namespace}/pods"
            listed = self.server.get(path, query=(("labelSelector", query),)).get("items", [])
            self._pods[key] = [pod for pod in listed if not is_finished(pod)]
        return self._pods[key]


def name(pod: Json) -> str:
    """Returns the name of an object."""
    return str(metadata(pod).get("name"))


def serving(pods: Iterable[Json]) -> list[str]:
    """Returns the names of the ready pods that are not being deleted."""
    return [name(pod) for pod in pods if is_ready(pod) and not is_terminating(pod)]


def read(server: ApiServer, kind: str, namespace: str, name_: str) -> Selection:
    """Returns one Service or InferencePool. Raises ActuationError if it does not exist."""
    selection = find(server, kind, namespace, name_)
    if not selection.exists:
        raise refused(f"{kind} {namespace}/{name_} does not exist", "check remediation.traffic.routes")
    return selection


def find(server: ApiServer, kind: str, namespace: str, name_: str) -> Selection:
    """Returns one Service or InferencePool; a missing one selects nothing."""
    document = server.get(f"{_PATHS[kind].format(namespace=namespace)}/{name_}", missing_is_empty=True)
    return _selection(kind, document) if document else Selection(kind, namespace, name_, {}, exists=False)


def all_of(server: ApiServer, kind: str, namespace: str) -> list[Selection]:
    """Returns every Service or InferencePool of a namespace; none if the kind is not installed."""
    listed = server.get(_PATHS[kind].format(namespace=namespace), missing_is_empty=True).get("items", [])
    return [_selection(kind, document) for document in listed]


def choose(kind: str, selections: Sequence[Selection], labels: Mapping[str, Any], service: str, pod: str) -> Selection:
    """Returns the selection that sends a pod its traffic: that of the service's name, else the only one.

    Headless Services count only if there is no other. Raises ActuationError for none, and for several.
    """
    matching = [selection for selection in selections if selection.selects(labels)]
    named = [selection for selection in matching if selection.name == service]
    routed = named or [selection for selection in matching if not selection.headless] or matching
    if not routed:
        raise refused(f"no {kind} selects pod {pod}", "configure remediation.traffic.routes for its service")
    if len(routed) > 1:
        names = ", ".join(sorted(selection.name for selection in routed))
        raise refused(f"several {kind}s select pod {pod}: {names}", "name one in remediation.traffic.routes")
    return routed[0]


def _selection(kind: str, document: Json) -> Selection:
    spec = document.get("spec") or {}
    selector = spec.get("selector") or {}
    labels = selector if kind == SERVICE else selector.get("matchLabels") or {}
    meta = metadata(document)
    return Selection(
        kind, str(meta.get("namespace")), str(meta.get("name")), dict(labels), spec.get("clusterIP") == "None"
    )
