"""The objects of a cluster as its API tells them, and what is kept of each. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.kubernetes.actors import managers
from collectors.kubernetes.api import ApiChange, Json, items, mapping, text, texts, version_of
from collectors.kubernetes.engine_args import pod_accelerators


@dataclass(frozen=True, slots=True)
class Resource:
    """A sort of objects. ``optional``: a cluster may lack it; ``namespaced``: it lies in namespaces.

    ``chosen`` are selectors by query parameter: of these objects only.
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
PLACES = (NODES, PODS, ENDPOINT_SLICES, NODE_TOPOLOGIES, RESOURCE_SLICES)  # what the topology is made of
KEPT = (*PLACES, CONFIG_MAPS, QUOTAS, DISRUPTION_BUDGETS, AUTOSCALERS, *WORKLOADS)
_NOT_KEPT = frozenset({"managedFields"})
MANAGERS = "managers"  # what is kept of the managed fields


@dataclass(frozen=True, slots=True)
class News:
    """What one reading of a resource brought. ``whole``: all there is, in ``namespace`` where one is named."""

    resource: Resource
    seen: Sequence[ApiChange]
    whole: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """An object before and after something happened to it: empty for one that was not, or is no more.

    ``after`` is whole, ``before`` as it was kept, and of one that was told to be deleted with its last state.
    """

    before: Json
    after: Json


@dataclass(slots=True)
class CachedObjects:
    """The objects of one sort by uid. ``version`` rises with every change of them.

    ``keep`` is what stays of each, without it what ``slim`` leaves.
    """

    objects: dict[str, Json] = field(default_factory=dict)
    version: int = 0
    keep: Callable[[Resource, Json], Json] | None = None

    def take(self, news: News) -> list[ObjectChange]:
        """Note what happened; returns each object that changed. What a whole list lacks is gone."""
        changed: list[ObjectChange] = []
        if news.whole:
            listed = {uid_of(seen.found) for seen in news.seen}
            here = [
                uid for uid, one in self.objects.items() if uid not in listed and news.namespace in ("", key_of(one)[0])
            ]
            changed += [ObjectChange(self.objects.pop(uid), {}) for uid in here]
        for seen in news.seen:
            uid = uid_of(seen.found)
            if not uid:
                continue
            before = self.objects.get(uid, {})
            if seen.what == "DELETED":
                self.objects.pop(uid, None)
                changed.append(ObjectChange({**before, **_last(seen.found)}, {}))
            elif not before or not version_of(seen.found) or version_of(before) != version_of(seen.found):
                self.objects[uid] = (self.keep or slim)(news.resource, seen.found)
                changed.append(ObjectChange(before, seen.found))
        self.version += bool(changed)
        return changed


class Objects:
    """What is known of one cluster's objects."""

    def __init__(self, held: Mapping[str, CachedObjects] | None = None) -> None:
        """``held`` by name of the resource."""
        self.held: dict[str, CachedObjects] = {resource.name: CachedObjects() for resource in (*KEPT, SERVICES)}
        self.held.update(held or {})

    @staticmethod
    def of(objects: Iterable[tuple[Resource, Json]]) -> Objects:
        """A cluster of these objects, for those who read manifests or write tests."""
        made = Objects()
        for resource, found in objects:
            made.held[resource.name].take(News(resource, [ApiChange("ADDED", found)]))
        return made

    @property
    def version(self) -> int:
        """Rises with every change of any object."""
        return sum(one.version for one in self.held.values())

    def all(self, resource: Resource) -> list[Json]:
        """Every object of a sort."""
        return list(self.held[resource.name].objects.values())

    def has(self, kind: str) -> bool:
        """True when objects of that kind are known, so that what they own need not speak for itself."""
        return any(one.kind == kind and self.held[one.name].objects for one in WORKLOADS)


def uid_of(found: Json) -> str:
    """The uid of an object; namespace and name of one that has none, "" of one that is none."""
    return text(mapping(found.get("metadata")).get("uid")) or "/".join(filter(None, key_of(found)))


def key_of(found: Json) -> tuple[str, str]:
    """Namespace and name of an object; the namespace is empty for one of the cluster."""
    meta = mapping(found.get("metadata"))
    return text(meta.get("namespace")), text(meta.get("name"))


def labels_of(found: Json) -> dict[str, str]:
    """The labels of an object."""
    return texts(mapping(found.get("metadata")).get("labels"))


def owner_of(found: Json) -> tuple[str, str]:
    """Kind and name of the controller that made an object; the first owner when none says so."""
    owners = items(mapping(found.get("metadata")).get("ownerReferences"))
    chosen = next((one for one in owners if one.get("controller") is True), owners[0] if owners else {})
    return text(chosen.get("kind")), text(chosen.get("name"))


def is_accelerated(pod: Json) -> bool:
    """True for a pod that asks for an accelerator."""
    return bool(pod_accelerators(mapping(pod.get("spec"))))


def slim(resource: Resource, found: Json) -> Json:
    """The object without what nobody reads again; of a ConfigMap's values only their digests."""
    meta = {name: one for name, one in mapping(found.get("metadata")).items() if name not in _NOT_KEPT}
    if resource is PODS:
        return {**found, "metadata": meta}
    if resource is CONFIG_MAPS:
        return {"metadata": meta, "digests": digests(found), MANAGERS: managers(found)}
    return {**found, "metadata": meta, MANAGERS: managers(found)}


def bare(resource: Resource, found: Json) -> Json:
    """Of a pod which one it is, where the rest is read as it comes; of anything else what ``slim`` leaves."""
    if resource.name != PODS.name:
        return slim(resource, found)
    meta = mapping(found.get("metadata"))
    return {"metadata": {name: meta.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}}


def _last(found: Json) -> Json:
    """The last that is told of an object, without what nobody reads."""
    meta = {name: one for name, one in mapping(found.get("metadata")).items() if name not in _NOT_KEPT}
    return {**found, "metadata": meta}


def digests(config_map: Json) -> dict[str, str]:
    """Each key of a ConfigMap with a short digest of its value, which itself is never kept."""
    if "digests" in config_map:
        return texts(config_map.get("digests"))
    values = {**mapping(config_map.get("data")), **mapping(config_map.get("binaryData"))}
    return {
        name: hashlib.sha256(text(value).encode(errors="replace")).hexdigest()[:8] for name, value in values.items()
    }
