"""Cached objects of a cluster, reduced to the parts that are needed. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.kubernetes.actors import managers
from collectors.kubernetes.api import ApiChange, Json, items, mapping, text, texts, version_of


@dataclass(frozen=True, slots=True)
class Resource:
    """A type of objects. ``optional``: a cluster may lack it; ``namespaced``: its objects are in namespaces.

    ``chosen`` are selectors by query parameter that limit the objects.
    """

    name: str
    group: str
    kind: str
    namespaced: bool = True
    optional: bool = True
    chosen: tuple[tuple[str, str], ...] = ()


NODES = Resource("nodes", "/api/v1", "Node", namespaced=False)
PODS = Resource("pods", "/api/v1", "Pod")
SERVICES = Resource("services", "/api/v1", "Service")
ENDPOINT_SLICES = Resource("endpointslices", "/apis/discovery.k8s.io/v1", "EndpointSlice")
NODE_TOPOLOGIES = Resource(
    "noderesourcetopologies", "/apis/topology.node.k8s.io/v1alpha2", "NodeResourceTopology", namespaced=False
)
RESOURCE_SLICES = Resource("resourceslices", "/apis/resource.k8s.io/v1", "ResourceSlice", namespaced=False)
CONFIG_MAPS = Resource("configmaps", "/api/v1", "ConfigMap")
QUOTAS = Resource("resourcequotas", "/api/v1", "ResourceQuota")
DEPLOYMENTS = Resource("deployments", "/apis/apps/v1", "Deployment", optional=False)
STATEFUL_SETS = Resource("statefulsets", "/apis/apps/v1", "StatefulSet", optional=False)
LEADER_WORKER_SETS = Resource("leaderworkersets", "/apis/leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
DISRUPTION_BUDGETS = Resource("poddisruptionbudgets", "/apis/policy/v1", "PodDisruptionBudget")
AUTOSCALERS = Resource("horizontalpodautoscalers", "/apis/autoscaling/v2", "HorizontalPodAutoscaler")
INFERENCE_SERVICES = Resource("inferenceservices", "/apis/serving.kserve.io/v1beta1", "InferenceService")
RAY_SERVICES = Resource("rayservices", "/apis/ray.io/v1", "RayService")
WORKLOADS = (DEPLOYMENTS, STATEFUL_SETS, LEADER_WORKER_SETS, INFERENCE_SERVICES, RAY_SERVICES)
EVENTS = Resource("events", "/api/v1", "Event", optional=False)
PLACES = (NODES, PODS, ENDPOINT_SLICES, NODE_TOPOLOGIES, RESOURCE_SLICES)  # sources of the topology
KEPT = (*PLACES, CONFIG_MAPS, QUOTAS, DISRUPTION_BUDGETS, AUTOSCALERS, *WORKLOADS)
_NOT_KEPT = frozenset({"managedFields"})
MANAGERS = "managers"  # summary of the managed fields


@dataclass(frozen=True, slots=True)
class ResourceUpdate:
    """Result of one reading of a resource. ``whole``: a full list, of ``namespace`` if one is named."""

    resource: Resource
    changes: Sequence[ApiChange]
    whole: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """An object before and after a change: empty if it did not exist before, or no longer exists.

    ``after`` is complete, ``before`` is the cached form. For a reported deletion, ``before`` has the last state.
    """

    before: Json
    after: Json


@dataclass(slots=True)
class CachedObjects:
    """The objects of one type by uid. ``version`` rises with every change of them.

    ``keep`` reduces an object for the cache; ``slim`` by default.
    """

    objects: dict[str, Json] = field(default_factory=dict)
    version: int = 0
    keep: Callable[[Resource, Json], Json] | None = None

    def take(self, news: ResourceUpdate) -> list[ObjectChange]:
        """Applies an update; returns each changed object. Objects missing from a full list are deleted."""
        changed: list[ObjectChange] = []
        if news.whole:
            listed = {uid_of(change.object) for change in news.changes}
            here = [
                uid
                for uid, item in self.objects.items()
                if uid not in listed and news.namespace in ("", key_of(item)[0])
            ]
            changed += [ObjectChange(self.objects.pop(uid), {}) for uid in here]
        for change in news.changes:
            uid = uid_of(change.object)
            if not uid:
                continue
            before = self.objects.get(uid, {})
            if change.what == "DELETED":
                self.objects.pop(uid, None)
                changed.append(ObjectChange({**before, **_last(change.object)}, {}))
            elif not before or not version_of(change.object) or version_of(before) != version_of(change.object):
                self.objects[uid] = (self.keep or slim)(news.resource, change.object)
                changed.append(ObjectChange(before, change.object))
        self.version += bool(changed)
        return changed


class Objects:
    """The cached objects of one cluster."""

    def __init__(self, caches: Mapping[str, CachedObjects] | None = None) -> None:
        """``caches`` by name of the resource."""
        self.by_resource: dict[str, CachedObjects] = {resource.name: CachedObjects() for resource in (*KEPT, SERVICES)}
        self.by_resource.update(caches or {})

    @staticmethod
    def of(objects: Iterable[tuple[Resource, Json]]) -> Objects:
        """A cluster with these objects, for manifests and tests."""
        cluster_objects = Objects()
        for resource, document in objects:
            cluster_objects.by_resource[resource.name].take(ResourceUpdate(resource, [ApiChange("ADDED", document)]))
        return cluster_objects

    @property
    def version(self) -> int:
        """Rises with every change of any object."""
        return sum(cache.version for cache in self.by_resource.values())

    def all(self, resource: Resource) -> list[Json]:
        """All objects of a type."""
        return list(self.by_resource[resource.name].objects.values())

    def has(self, kind: str) -> bool:
        """True if objects of that kind are cached, so that the objects they own need no events of their own."""
        return any(resource.kind == kind and self.by_resource[resource.name].objects for resource in WORKLOADS)


def uid_of(document: Json) -> str:
    """Uid of an object; namespace and name without one, "" for an empty object."""
    return text(mapping(document.get("metadata")).get("uid")) or "/".join(filter(None, key_of(document)))


def key_of(document: Json) -> tuple[str, str]:
    """Namespace and name of an object; the namespace is empty for a cluster-scoped one."""
    meta = mapping(document.get("metadata"))
    return text(meta.get("namespace")), text(meta.get("name"))


def labels_of(document: Json) -> dict[str, str]:
    """Labels of an object."""
    return texts(mapping(document.get("metadata")).get("labels"))


def owner_of(document: Json) -> tuple[str, str]:
    """Kind and name of the controller of an object; the first owner if none is the controller."""
    owners = items(mapping(document.get("metadata")).get("ownerReferences"))
    chosen = next((owner for owner in owners if owner.get("controller") is True), owners[0] if owners else {})
    return text(chosen.get("kind")), text(chosen.get("name"))


def slim(resource: Resource, document: Json) -> Json:
    """The object without unneeded parts; of a ConfigMap's values only digests."""
    meta = {name: value for name, value in mapping(document.get("metadata")).items() if name not in _NOT_KEPT}
    if resource is PODS:
        return {**document, "metadata": meta}
    if resource is CONFIG_MAPS:
        return {"metadata": meta, "digests": digests(document), MANAGERS: managers(document)}
    return {**document, "metadata": meta, MANAGERS: managers(document)}


def bare(resource: Resource, document: Json) -> Json:
    """Of a pod only its identity, if the rest is read on arrival; otherwise as ``slim``."""
    if resource.name != PODS.name:
        return slim(resource, document)
    meta = mapping(document.get("metadata"))
    return {"metadata": {name: meta.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}}


def _last(document: Json) -> Json:
    """Last state of an object, without unneeded parts."""
    meta = {name: value for name, value in mapping(document.get("metadata")).items() if name not in _NOT_KEPT}
    return {**document, "metadata": meta}


def digests(config_map: Json) -> dict[str, str]:
    """Each key of a ConfigMap with a short digest of its value, which is never stored."""
    if "digests" in config_map:
        return texts(config_map.get("digests"))
    values = {**mapping(config_map.get("data")), **mapping(config_map.get("binaryData"))}
    return {
        name: hashlib.sha256(text(value).encode(errors="replace")).hexdigest()[:8] for name, value in values.items()
    }


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """True if a label selector matches these labels; an empty one matches everything, a missing one nothing."""
    if any(labels.get(name) != value for name, value in texts(selector.get("matchLabels")).items()):
        return False
    for expression in items(selector.get("matchExpressions")):
        name, operator = text(expression.get("key")), text(expression.get("operator"))
        values = [text(value) for value in expression.get("values") or []]
        matches = {
            "In": labels.get(name) in values and name in labels,
            "NotIn": labels.get(name) not in values,
            "Exists": name in labels,
            "DoesNotExist": name not in labels,
        }
        if not matches.get(operator, False):
            return False
    return True
