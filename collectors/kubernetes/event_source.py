"""Kubernetes as an event source: its Events, and rollouts, configuration changes and scaling.

Plain HTTP against the REST API. An Event with the annotation ``outrider.dev/change: CODE`` announces a change that no
object shows (a driver, a power limit, a route): any tool that makes such changes can post one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from collectors.events.redact import redacted
from collectors.events.unresolved_event import FIRST_LOOK, MOST_TEXT, UnresolvedEvent
from collectors.kubernetes.accelerators import gpu_type_of
from collectors.kubernetes.api import Json, KubeApi, deployment_of, items, mapping, parse_time, text, texts
from collectors.kubernetes.cluster import Cluster
from collectors.kubernetes.nodes import node_changes
from collectors.kubernetes.objects import (
    CONFIG_MAPS,
    EVENTS,
    KEPT,
    NODES,
    PODS,
    WORKLOADS,
    ObjectChange,
    Objects,
    Resource,
    ResourceUpdate,
    key_of,
    labels_of,
    uid_of,
)
from collectors.kubernetes.pods import SERVICE_LABEL
from collectors.kubernetes.replicas import Replicas
from collectors.kubernetes.rollouts import SOURCE, WorkloadChangeTracker
from collectors.kubernetes.startups import StartupTracker
from collectors.kubernetes.state_metrics import StateMetrics
from collectors.kubernetes.watch import SharedWatches
from outrider.errors import CollectError
from outrider.model import EntityKind, EntityRef, EventKind, SampleBatch
from outrider.records.change_log import ChangeEnd
from outrider.topology import Graph

CHANGE = "outrider.dev/change"
FROM, TO = "outrider.dev/from", "outrider.dev/to"
OURS = "outrider.dev/"  # objects of this group use our own entity kinds
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
# The hash of a pod template, in the alphabet that Kubernetes uses for such names.
_NO_NAMESPACE = frozenset(
    {EntityKind.CLUSTER, EntityKind.POOL, EntityKind.NODE, EntityKind.SWITCH, EntityKind.STORAGE, EntityKind.GPU}
)


def unresolved_event_of(event: Json, cluster: str, at: datetime) -> tuple[str, int, UnresolvedEvent] | None:
    """An Event's uid, its count, and its unresolved event; None for an Event about an unknown kind.

    Reads ``v1`` and ``events.k8s.io/v1``; fields may be missing or null. ``at`` is the current time: no event is
    later.
    """
    meta = mapping(event.get("metadata"))
    involved = mapping(event.get("involvedObject")) or mapping(event.get("regarding"))
    entity = entity_of(involved, cluster)
    series, notes = mapping(event.get("series")), texts(meta.get("annotations"))
    reason, uid = text(event.get("reason")), text(meta.get("uid"))
    if entity is None or not reason or not uid:
        return None
    counts = [event.get("count"), event.get("deprecatedCount"), series.get("count")]
    count = max((number for number in counts if isinstance(number, int) and 0 < number < 2**31), default=1)
    times = (
        *(series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("deprecatedLastTimestamp")),
        *(event.get("eventTime"), event.get("firstTimestamp"), meta.get("creationTimestamp")),
    )
    when = next((time for time in map(parse_time, times) if time is not None), at)
    source = mapping(event.get("source"))
    attributes = {
        "text": redacted((text(event.get("message")) or text(event.get("note")))[:MOST_TEXT]),
        "type": text(event.get("type")),
        "count": str(count),
        "component": text(source.get("component")) or text(event.get("reportingComponent")),
    }
    kind, code = EventKind.KUBERNETES, reason
    if notes.get(CHANGE):
        kind, code = EventKind.CHANGE, notes[CHANGE]
        attributes |= {"from": notes.get(FROM, ""), "to": notes.get(TO, "")}
    attributes = {name: value for name, value in attributes.items() if value}
    key = f"{SOURCE}/{cluster}/{uid}/{count}"
    return uid, count, UnresolvedEvent(kind, code, min(when, at), SOURCE, key, entity, attributes)


def entity_of(involved: Json, cluster: str) -> EntityRef | None:
    """The entity of an object reference; None for an unknown kind."""
    name, kind_name = text(involved.get("name")), text(involved.get("kind"))
    kind = _KINDS.get(kind_name)
    if kind_name == "ReplicaSet":
        name = deployment_of(name)
    if text(involved.get("apiVersion")).startswith(OURS):
        kind = next((kind for kind in EntityKind if kind.value == kind_name.lower()), None)
    if kind is None or not name:
        return None
    namespace = None if kind in _NO_NAMESPACE else text(involved.get("namespace")) or None
    return EntityRef(cluster, kind, namespace, name)


@dataclass(slots=True)
class _EventCounts:
    """The last processed count of each Event."""

    cluster: str
    counts: dict[str, int] = field(default_factory=dict)

    def take(self, news: ResourceUpdate, at: datetime) -> list[UnresolvedEvent]:
        """Events that are new, or have occurred again."""
        events, counts = [], self.counts
        if news.whole and not news.namespace:
            self.counts = {}  # Events that are no longer listed have expired
        for change in news.changes:
            read = unresolved_event_of(change.object, self.cluster, at)
            if read is None:
                continue
            uid, count, event = read
            if change.what == "DELETED":
                self.counts.pop(uid, None)
                continue
            # An old Event is new only if it was modified; a list contains many that were processed before.
            if count > counts.get(uid, 0) and (change.what == "MODIFIED" or event.at >= at - FIRST_LOOK):
                events.append(event)
            self.counts[uid] = count
        return events


class KubernetesEventSource:
    """Watches one cluster: its Events and changes, its topology, its signals, and the start-ups of its replicas."""

    def __init__(
        self,
        name: str,
        api: KubeApi | SharedWatches,
        cluster: str,
        *,
        namespaces: Sequence[str] = (),
        service_label: str = SERVICE_LABEL,
    ) -> None:
        """Without ``namespaces`` all are read. ``service_label`` of a workload names its service."""
        self.name, self.cluster = name, cluster
        self._cluster_state = Cluster(api, cluster, (EVENTS, *KEPT), namespaces=namespaces, service_label=service_label)
        self.startups = StartupTracker(cluster, self._node_ready, self._gpu_type)
        self._events = _EventCounts(cluster)
        self._workloads = WorkloadChangeTracker(self._cluster_state.api, cluster, service_label)
        self._signals = StateMetrics(name, cluster)

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """Events since the last reading; the first one covers ``FIRST_LOOK``."""
        del nodes
        reading = await self._cluster_state.read(at)
        events: list[UnresolvedEvent] = []
        for resource, changed in reading.changes:
            events += await self._take(resource, changed, at)
        for news in reading.others:
            for change in news.changes:
                self.startups.event(change.object, at)
            events += self._events.take(news, at)
        return events, [fault.error for fault in reading.faults]

    async def _take(self, resource: Resource, changed: Sequence[ObjectChange], at: datetime) -> list[UnresolvedEvent]:
        if resource is PODS:
            for change in changed:
                pod = self._cluster_state.pod(uid_of(change.after)) if change.after else None
                if pod is not None:
                    self.startups.pod(pod, change.after, at)
                elif not change.after:
                    self.startups.gone(uid_of(change.before), at)
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
        """The current pods and replicas."""
        return self._cluster_state.replicas

    @property
    def graph(self) -> Graph:
        """The topology from the API; the same object while nothing changes."""
        return self._cluster_state.graph

    @property
    def api(self) -> KubeApi:
        """Client for requests beyond the watched resources."""
        return self._cluster_state.api

    @property
    def objects(self) -> Objects:
        """The cached objects of the cluster."""
        return self._cluster_state.objects

    def batches(self, at: datetime) -> tuple[SampleBatch, ...]:
        """The signals of kube-state-metrics, once a round."""
        return self._signals.batches(self.objects, self.replicas, at)

    def ends(self) -> tuple[ChangeEnd, ...]:
        """Change ends since the last call."""
        ends = tuple(self._workloads.ends)
        self._workloads.ends.clear()
        return ends

    def _node_ready(self, name: str) -> datetime | None:
        node = self._node(name)
        conditions = items(mapping(node.get("status")).get("conditions"))
        transition = next(
            (condition.get("lastTransitionTime") for condition in conditions if condition.get("type") == "Ready"), None
        )
        return parse_time(transition) or parse_time(mapping(node.get("metadata")).get("creationTimestamp"))

    def _gpu_type(self, name: str) -> str:
        return gpu_type_of(labels_of(self._node(name)))

    def _node(self, name: str) -> Json:
        return next((node for node in self.objects.all(NODES) if key_of(node)[1] == name), {})

    async def close(self) -> None:
        """Closes all connections."""
        await self._cluster_state.close()
