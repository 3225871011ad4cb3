"""State of one cluster from its API: watched objects, and the pods, replicas and topology derived from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from collectors.kubernetes import disruption_budgets
from collectors.kubernetes.accelerators import node_facts
from collectors.kubernetes.actors import managers
from collectors.kubernetes.api import Json, KubeApi, mapping, texts
from collectors.kubernetes.numa import zone_facts
from collectors.kubernetes.objects import (
    AUTOSCALERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    MANAGERS,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    SERVICES,
    STATEFUL_SETS,
    CachedObjects,
    ObjectChange,
    Objects,
    Resource,
    ResourceUpdate,
    bare,
    labels_of,
    uid_of,
)
from collectors.kubernetes.peers import replicas_owners, template_owner
from collectors.kubernetes.pods import SERVICE_LABEL, PodFacts, ended_at
from collectors.kubernetes.replicas import SERVICE_NAME, PodIndex, Replicas, fronts_of, pods_behind
from collectors.kubernetes.topology import DeletedPod, graph
from collectors.kubernetes.watch import ReadFault, ResourceWatcher, SharedWatches
from outrider.topology import Graph

REMEMBERED = timedelta(minutes=15)  # as for other entities that leave: collectors.normalise.disappearance
_Changes = list[tuple[Resource, list[ObjectChange]]]


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """One reading: changed objects, other updates (Events), and read errors."""

    changes: Sequence[tuple[Resource, list[ObjectChange]]]
    others: Sequence[ResourceUpdate]
    faults: Sequence[ReadFault]


class Cluster:
    """Pods, nodes and related objects. Discovery and the event source each have one."""

    def __init__(
        self,
        api: KubeApi | SharedWatches,
        cluster: str,
        resources: Sequence[Resource],
        *,
        namespaces: Sequence[str] = (),
        service_label: str = SERVICE_LABEL,
        whole_pods: bool = True,
    ) -> None:
        """Without ``namespaces`` all are read. Unless ``whole_pods``, only the facts of a pod's object are kept."""
        self.cluster = cluster
        self.objects = Objects({} if whole_pods else {PODS.name: CachedObjects(keep=bare)})
        self.version = 0  # rises with every change that affects replicas or the graph
        self._watches = SharedWatches.of(api)
        self._watcher = ResourceWatcher(self._watches, resources, namespaces)
        self._pods = PodIndex(service_label)
        self._gone: dict[tuple[str, str], tuple[DeletedPod, datetime]] = {}
        self._replicas: tuple[int, Replicas] = (-1, Replicas())
        self._graph: tuple[int, Graph] = (-1, Graph())

    @property
    def api(self) -> KubeApi:
        """Client for requests beyond the watched resources."""
        return self._watches.api

    async def read(self, at: datetime) -> ClusterReading:
        """Changes since the last reading."""
        updates, faults = await self._watcher.read(at)
        cached = [update for update in updates if update.resource.name in self.objects.by_resource]
        others = [update for update in updates if update.resource.name not in self.objects.by_resource]
        changes = await asyncio.to_thread(self._absorb, cached, at)  # ten thousand pods must not block the loop
        return ClusterReading(changes, others, faults)

    def pod(self, uid: str) -> PodFacts | None:
        """A pod by the uid of its object, with its service."""
        return self.replicas.pods.get(uid)

    @property
    def replicas(self) -> Replicas:
        """The current pods and replicas."""
        if self._replicas[0] != self.version:
            replicas = self._pods.replicas(self.objects.all(NODES), fronts_of(self.objects))
            self._replicas = (self.version, replicas)
        return self._replicas[1]

    @property
    def graph(self) -> Graph:
        """The topology from the API; the same object while nothing changes."""
        if self._graph[0] != self.version:
            deleted = [pod for pod, _ in self._gone.values()]
            self._graph = (self.version, graph(self.objects, self.replicas, self.cluster, deleted))
        return self._graph[1]

    def _absorb(self, updates: Sequence[ResourceUpdate], at: datetime) -> _Changes:
        before = self._pods.version
        changes = [(news.resource, self.objects.by_resource[news.resource.name].take(news)) for news in updates]
        matters = [self._take(resource, change, at) for resource, those in changes for change in those]
        over = [key for key, (_, left) in self._gone.items() if left < at - REMEMBERED]
        for key in over:
            del self._gone[key]
        self.version += bool(any(matters) or over or self._pods.version != before)
        return changes

    def _take(self, resource: Resource, change: ObjectChange, at: datetime) -> bool:
        """Applies a change; True if it matters beyond what the pod index counts itself."""
        if resource.name == PODS.name:
            self._pod(change, at)
            return False
        if resource.name == NODES.name:
            return not change.before or not change.after or node_facts(change.before) != node_facts(change.after)
        if resource.name == ENDPOINT_SLICES.name:
            return _front(change.before) != _front(change.after)
        if resource.name == NODE_TOPOLOGIES.name:
            return zone_facts(change.before) != zone_facts(change.after)
        if resource.name == SERVICES.name:
            return annotations_of(change.before) != annotations_of(change.after)
        if resource.name == AUTOSCALERS.name:
            return replicas_owners([change.before]) != replicas_owners([change.after])
        if resource.name in (DEPLOYMENTS.name, STATEFUL_SETS.name):
            return template_owner(change.before) != template_owner({**change.after, MANAGERS: managers(change.after)})
        if resource.name == DISRUPTION_BUDGETS.name:
            return disruption_budgets.summary(change.before) != disruption_budgets.summary(change.after)
        return resource.name == RESOURCE_SLICES.name and change.before.get("spec") != change.after.get("spec")

    def _pod(self, change: ObjectChange, at: datetime) -> None:
        if change.after:
            facts = self._pods.take(change.after)
            self._gone.pop((facts.namespace, facts.name), None)
            return
        previous = self._pods.drop(uid_of(change.before))
        if previous is not None:  # reports about it may arrive after its end
            self._gone[previous.namespace, previous.name] = (DeletedPod(previous, ended_at(change.before)), at)

    async def close(self) -> None:
        """Stops watching."""
        await self._watcher.close()


def annotations_of(document: Json) -> dict[str, str]:
    """Annotations of an object."""
    return texts(mapping(document.get("metadata")).get("annotations"))


def _front(endpoints: Json) -> tuple[str, tuple[str, ...]]:
    return labels_of(endpoints).get(SERVICE_NAME, ""), pods_behind(endpoints)
