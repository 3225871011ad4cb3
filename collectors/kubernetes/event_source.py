"""Kubernetes as a source of events: what its Events say, and what is rolled out, reconfigured or scaled.

Plain HTTP against the REST API. An Event with the annotation ``outrider.dev/change: CODE`` announces a
change that no object shows (a driver, a power limit, a route): whoever makes such changes can post one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from collectors.events.redact import redacted
from collectors.events.unresolved_event import FIRST_LOOK, MOST_TEXT, UnresolvedEvent
from collectors.kubernetes.accelerators import gpu_type_of
from collectors.kubernetes.api import Json, KubeApi, deployment_of, instant, items, mapping, text, texts
from collectors.kubernetes.cluster import Cluster
from collectors.kubernetes.nodes import node_changes
from collectors.kubernetes.objects import (
    CONFIG_MAPS,
    EVENTS,
    KEPT,
    NODES,
    PODS,
    WORKLOADS,
    News,
    ObjectChange,
    Objects,
    Resource,
    key_of,
    labels_of,
    uid_of,
)
from collectors.kubernetes.pods import SERVICE_LABEL
from collectors.kubernetes.replicas import Replicas
from collectors.kubernetes.rollouts import SOURCE, WorkloadChanges
from collectors.kubernetes.startups import Startups
from collectors.kubernetes.state_metrics import KubeSignals
from collectors.kubernetes.topology import Graph
from collectors.kubernetes.watch import SharedWatches
from outrider.errors import CollectError
from outrider.model import EntityKind, EntityRef, EventKind, SampleBatch
from outrider.records.change_log import ChangeEnd

CHANGE = "outrider.dev/change"
FROM, TO = "outrider.dev/from", "outrider.dev/to"
OURS = "outrider.dev/"  # objects of this group bear the names of our own kinds
_KINDS = {
    "Pod": EntityKind.POD,
    "Node": EntityKind.NODE,
    "Service": EntityKind.SERVICE,
    "Deployment": EntityKind.WORKLOAD,
    "ReplicaSet": EntityKind.WORKLOAD,
    "StatefulSet": EntityKind.WORKLOAD,
    "DaemonSet": EntityKind.WORKLOAD,
    "Job": EntityKind.WORKLOAD,
    "LeaderWorkerSet": EntityKind.WORKLOAD,
    "InferenceService": EntityKind.WORKLOAD,
    "HorizontalPodAutoscaler": EntityKind.WORKLOAD,
    "ScaledObject": EntityKind.WORKLOAD,
}
# The hash of a pod template, in the letters that Kubernetes makes such names of.
_NO_NAMESPACE = frozenset(
    {EntityKind.CLUSTER, EntityKind.POOL, EntityKind.NODE, EntityKind.SWITCH, EntityKind.STORAGE, EntityKind.GPU}
)


def event_sighting(found: Json, cluster: str, at: datetime) -> tuple[str, int, UnresolvedEvent] | None:
    """An Event's uid, its count, and the sighting it makes; None for one that is about nothing we know.

    Reads ``v1`` and ``events.k8s.io/v1``; fields may be missing or null. ``at`` is now: no event is later.
    """
    meta = mapping(found.get("metadata"))
    involved = mapping(found.get("involvedObject")) or mapping(found.get("regarding"))
    entity = entity_of(involved, cluster)
    series, notes = mapping(found.get("series")), texts(meta.get("annotations"))
    reason, uid = text(found.get("reason")), text(meta.get("uid"))
    if entity is None or not reason or not uid:
        return None
    counts = [found.get("count"), found.get("deprecatedCount"), series.get("count")]
    count = max((number for number in counts if isinstance(number, int) and 0 < number < 2**31), default=1)
    times = (
        *(series.get("lastObservedTime"), found.get("lastTimestamp"), found.get("deprecatedLastTimestamp")),
        *(found.get("eventTime"), found.get("firstTimestamp"), meta.get("creationTimestamp")),
    )
    when = next((one for one in map(instant, times) if one is not None), at)
    source = mapping(found.get("source"))
    attributes = {
        "text": redacted((text(found.get("message")) or text(found.get("note")))[:MOST_TEXT]),
        "type": text(found.get("type")),
        "count": str(count),
        "component": text(source.get("component")) or text(found.get("reportingComponent")),
    }
    kind, code = EventKind.KUBERNETES, reason
    if notes.get(CHANGE):
        kind, code = EventKind.CHANGE, notes[CHANGE]
        attributes |= {"from": notes.get(FROM, ""), "to": notes.get(TO, "")}
    attributes = {name: value for name, value in attributes.items() if value}
    key = f"{SOURCE}/{cluster}/{uid}/{count}"
    return uid, count, UnresolvedEvent(kind, code, min(when, at), SOURCE, key, entity, attributes)


def entity_of(involved: Json, cluster: str) -> EntityRef | None:
    """The component of an object reference; None for a kind that is none of ours."""
    name, said = text(involved.get("name")), text(involved.get("kind"))
    kind = _KINDS.get(said)
    if said == "ReplicaSet":
        name = deployment_of(name)
    if text(involved.get("apiVersion")).startswith(OURS):
        kind = next((one for one in EntityKind if one.value == said.lower()), None)
    if kind is None or not name:
        return None
    namespace = None if kind in _NO_NAMESPACE else text(involved.get("namespace")) or None
    return EntityRef(cluster, kind, namespace, name)


@dataclass(slots=True)
class _Events:
    """How often each Event was counted already."""

    cluster: str
    counts: dict[str, int] = field(default_factory=dict)

    def take(self, news: News, at: datetime) -> list[UnresolvedEvent]:
        """Those that are new, or have happened once more."""
        found, known = [], self.counts
        if news.whole and not news.namespace:
            self.counts = {}  # what is no longer listed has expired
        for seen in news.seen:
            read = event_sighting(seen.found, self.cluster, at)
            if read is None:
                continue
            uid, count, sighting = read
            if seen.what == "DELETED":
                self.counts.pop(uid, None)
                continue
            # An old one is news only while it goes on; a list is full of what was told before.
            if count > known.get(uid, 0) and (seen.what == "MODIFIED" or sighting.at >= at - FIRST_LOOK):
                found.append(sighting)
            self.counts[uid] = count
        return found


class Kubernetes:
    """Follows one cluster: its Events and changes, its topology, its signals, and how its replicas start."""

    def __init__(
        self,
        name: str,
        api: KubeApi | SharedWatches,
        cluster: str,
        *,
        namespaces: Sequence[str] = (),
        service_label: str = SERVICE_LABEL,
    ) -> None:
        """Without ``namespaces`` all are read. ``service_label`` of a workload names the service it runs."""
        self.name, self.cluster = name, cluster
        self._told = Cluster(api, cluster, (EVENTS, *KEPT), namespaces=namespaces, service_label=service_label)
        self.startups = Startups(cluster, self._node_ready, self._gpu_type)
        self._events = _Events(cluster)
        self._workloads = WorkloadChanges(self._told.api, cluster, service_label)
        self._signals = KubeSignals(name, cluster)

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """What is new since the last reading; at the first one, of the last ``FIRST_LOOK``."""
        del nodes
        told = await self._told.read(at)
        found: list[UnresolvedEvent] = []
        for resource, those in told.changes:
            found += await self._take(resource, those, at)
        for news in told.others:
            for seen in news.seen:
                self.startups.event(seen.found, at)
            found += self._events.take(news, at)
        return found, [one.error for one in told.faults]

    async def _take(self, resource: Resource, changed: Sequence[ObjectChange], at: datetime) -> list[UnresolvedEvent]:
        if resource is PODS:
            for one in changed:
                pod = self._told.pod(uid_of(one.after)) if one.after else None
                if pod is not None:
                    self.startups.pod(pod, one.after, at)
                elif not one.after:
                    self.startups.gone(uid_of(one.before), at)
            return []
        if resource is NODES:
            return node_changes(changed, self.cluster, at)
        if resource is CONFIG_MAPS:
            return self._workloads.config_changes(changed, self.objects, at)
        if resource in WORKLOADS:
            return await self._workloads.take(resource, changed, self.objects, at)
        return []

    @property
    def replicas(self) -> Replicas:
        """The pods and replicas as they are now."""
        return self._told.replicas

    @property
    def graph(self) -> Graph:
        """The topology that the API tells; the same one while nothing changes."""
        return self._told.graph

    @property
    def api(self) -> KubeApi:
        """For questions beside what is followed."""
        return self._told.api

    @property
    def objects(self) -> Objects:
        """What is known of the objects of the cluster."""
        return self._told.objects

    def batches(self, at: datetime) -> tuple[SampleBatch, ...]:
        """What kube-state-metrics would give, once a round."""
        return self._signals.batches(self.objects, self.replicas, at)

    def ends(self) -> tuple[ChangeEnd, ...]:
        """How changes ended, those since the last call."""
        told = tuple(self._workloads.ends)
        self._workloads.ends.clear()
        return told

    def _node_ready(self, name: str) -> datetime | None:
        node = self._node(name)
        conditions = items(mapping(node.get("status")).get("conditions"))
        told = next((one.get("lastTransitionTime") for one in conditions if one.get("type") == "Ready"), None)
        return instant(told) or instant(mapping(node.get("metadata")).get("creationTimestamp"))

    def _gpu_type(self, name: str) -> str:
        return gpu_type_of(labels_of(self._node(name)))

    def _node(self, name: str) -> Json:
        return next((node for node in self.objects.all(NODES) if key_of(node)[1] == name), {})

    async def close(self) -> None:
        """Close every connection."""
        await self._told.close()
