"""One cluster as its API tells it: what is followed, and what it comes to in pods, replicas and topology."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from collectors.kubernetes.accelerators import node_facts
from collectors.kubernetes.api import Json, KubeApi, mapping, texts
from collectors.kubernetes.numa import zone_facts
from collectors.kubernetes.objects import (
    ENDPOINT_SLICES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    SERVICES,
    CachedObjects,
    News,
    ObjectChange,
    Objects,
    Resource,
    bare,
    labels_of,
    uid_of,
)
from collectors.kubernetes.pods import SERVICE_LABEL, PodFacts, ended_at
from collectors.kubernetes.replicas import SERVICE_NAME, PodIndex, Replicas, fronts_of, pods_behind
from collectors.kubernetes.topology import Gone, Graph, graph
from collectors.kubernetes.watch import Fault, Follower, SharedWatches

REMEMBERED = timedelta(minutes=15)  # as long as other entities that leave: collectors.normalise.disappearance
_Changes = list[tuple[Resource, list[ObjectChange]]]


@dataclass(frozen=True, slots=True)
class Round:
    """One reading: what changed, what else was told (Events), and what could not be read."""

    changes: Sequence[tuple[Resource, list[ObjectChange]]]
    others: Sequence[News]
    faults: Sequence[Fault]


class Cluster:
    """Pods, nodes and what stands beside them. Discovery and the source of events each have one."""

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
        """Without ``namespaces`` all are read. Unless ``whole_pods``, of a pod's object only its facts are kept."""
        self.cluster = cluster
        self.objects = Objects({} if whole_pods else {PODS.name: CachedObjects(keep=bare)})
        self.version = 0  # rises when what the replicas and the graph are made of changes
        self._doors = SharedWatches.of(api)
        self._follower = Follower(self._doors, resources, namespaces)
        self._pods = PodIndex(service_label)
        self._gone: dict[tuple[str, str], tuple[Gone, datetime]] = {}
        self._replicas: tuple[int, Replicas] = (-1, Replicas())
        self._graph: tuple[int, Graph] = (-1, Graph())

    @property
    def api(self) -> KubeApi:
        """For calls beside what is followed."""
        return self._doors.api

    async def read(self, at: datetime) -> Round:
        """What is new since the last reading."""
        told, faults = await self._follower.read(at)
        kept = [one for one in told if one.resource.name in self.objects.held]
        others = [one for one in told if one.resource.name not in self.objects.held]
        changes = await asyncio.to_thread(self._absorb, kept, at)  # ten thousand pods must not hold the loop
        return Round(changes, others, faults)

    def pod(self, uid: str) -> PodFacts | None:
        """A pod by the uid of its object, with the service it serves."""
        return self.replicas.pods.get(uid)

    @property
    def replicas(self) -> Replicas:
        """The pods and replicas as they are now."""
        if self._replicas[0] != self.version:
            made = self._pods.replicas(self.objects.all(NODES), fronts_of(self.objects))
            self._replicas = (self.version, made)
        return self._replicas[1]

    @property
    def graph(self) -> Graph:
        """The topology that the API tells; the same one while nothing changes."""
        if self._graph[0] != self.version:
            gone = [one for one, _ in self._gone.values()]
            self._graph = (self.version, graph(self.objects, self.replicas, self.cluster, gone))
        return self._graph[1]

    def _absorb(self, told: Sequence[News], at: datetime) -> _Changes:
        before = self._pods.version
        changes = [(news.resource, self.objects.held[news.resource.name].take(news)) for news in told]
        matters = [self._take(resource, one, at) for resource, those in changes for one in those]
        over = [key for key, (_, left) in self._gone.items() if left < at - REMEMBERED]
        for key in over:
            del self._gone[key]
        self.version += bool(any(matters) or over or self._pods.version != before)
        return changes

    def _take(self, resource: Resource, one: ObjectChange, at: datetime) -> bool:
        """Take a change in; True when it matters beside what the index of pods counts itself."""
        if resource.name == PODS.name:
            self._pod(one, at)
            return False
        if resource.name == NODES.name:
            return not one.before or not one.after or node_facts(one.before) != node_facts(one.after)
        if resource.name == ENDPOINT_SLICES.name:
            return _front(one.before) != _front(one.after)
        if resource.name == NODE_TOPOLOGIES.name:
            return zone_facts(one.before) != zone_facts(one.after)
        if resource.name == SERVICES.name:
            return notes_of(one.before) != notes_of(one.after)
        return resource.name == RESOURCE_SLICES.name and one.before.get("spec") != one.after.get("spec")

    def _pod(self, one: ObjectChange, at: datetime) -> None:
        if one.after:
            facts = self._pods.take(one.after)
            self._gone.pop((facts.namespace, facts.name), None)
            return
        was = self._pods.drop(uid_of(one.before))
        if was is not None:  # what is said of it may come later than its end
            self._gone[was.namespace, was.name] = (Gone(was, ended_at(one.before)), at)

    async def close(self) -> None:
        """Follow no more."""
        await self._follower.close()


def notes_of(found: Json) -> dict[str, str]:
    """The annotations of an object."""
    return texts(mapping(found.get("metadata")).get("annotations"))


def _front(endpoints: Json) -> tuple[str, tuple[str, ...]]:
    return labels_of(endpoints).get(SERVICE_NAME, ""), pods_behind(endpoints)
