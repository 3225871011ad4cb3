"""The Kubernetes API as a source of targets and topology: pods, nodes, and the endpoints of services.

Each resource is listed once and then watched. An unreadable resource keeps its last state and is reported; the
others continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from collectors.discovery.endpoints import SCRAPE, metrics_page_of, wants_scrape
from collectors.discovery.types import DiscoveredTarget, DiscoverySnapshot
from collectors.kubernetes.accelerators import gpu_type_of
from collectors.kubernetes.api import KubeApi
from collectors.kubernetes.cluster import Cluster, annotations_of
from collectors.kubernetes.objects import (
    ENDPOINT_SLICES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    SERVICES,
    key_of,
    labels_of,
)
from collectors.kubernetes.pods import SERVICE_LABEL, PodFacts
from collectors.kubernetes.replicas import fronts_of
from collectors.kubernetes.watch import SharedWatches
from collectors.mapping.registry import ADAPTERS, adapter
from outrider.clock import Clock, SystemClock
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind

_ALIVE = ("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed")
_MOST_FAULTS = 20


class KubernetesSource:
    """One cluster. Pods with scrape annotations, or selected by ``label_selector``, are targets."""

    def __init__(
        self,
        name: str,
        api: KubeApi | SharedWatches,
        cluster: str,
        *,
        namespaces: Sequence[str] = (),
        label_selector: str = "",
        service_label: str = SERVICE_LABEL,
        every: timedelta = timedelta(seconds=15),
        clock: Clock | None = None,
    ) -> None:
        """Without ``label_selector``, only annotations select. ``clock`` measures how long ago a pod left.

        ``api`` belongs to this source alone, or is the shared watches of a cluster that others read too. Then the
        same pods are requested as by the others, finished ones included.
        """
        self.name, self.every = name, every
        self._selected = bool(label_selector)
        chosen: tuple[tuple[str, str], ...] = () if isinstance(api, SharedWatches) else (_ALIVE,)
        if label_selector:
            chosen = (_ALIVE, ("labelSelector", label_selector))
        required = [replace(resource, optional=False) for resource in (NODES, SERVICES, ENDPOINT_SLICES)]
        followed = (replace(PODS, optional=False, chosen=chosen), *required, NODE_TOPOLOGIES, RESOURCE_SLICES)
        self._cluster = Cluster(
            api, cluster, followed, namespaces=namespaces, service_label=service_label, whole_pods=False
        )
        self._clock = clock or SystemClock()
        self._pod_lists = max(1, len(namespaces))
        self._last_snapshot, self._version, self._last_messages = DiscoverySnapshot(), -1, [""]

    async def read(self) -> DiscoverySnapshot:
        """All current targets. Raises CollectError if pods cannot be read."""
        round_result = await self._cluster.read(self._clock.now())
        pod_errors = [fault.error for fault in round_result.faults if fault.resource.name == PODS.name]
        if len(pod_errors) == self._pod_lists:
            raise pod_errors[0]  # the caller keeps its last result
        faults = [fault.error for fault in round_result.faults]
        messages = [error.message for error in faults]
        if self._cluster.version != self._version or messages != self._last_messages:
            self._last_snapshot = await asyncio.to_thread(
                self._snapshot, faults
            )  # ten thousand pods must not block the loop
            self._version, self._last_messages = self._cluster.version, messages
        return self._last_snapshot

    def _snapshot(self, faults: Sequence[CollectError]) -> DiscoverySnapshot:
        problems: list[CollectError] = list(faults)
        pages: dict[str, DiscoveredTarget] = {}
        objects, graph = self._cluster.objects, self._cluster.graph
        fronts = fronts_of(objects)
        services = {key_of(item): annotations_of(item) for item in objects.all(SERVICES)}
        kinds = {key_of(item)[1]: gpu_type_of(labels_of(item)) for item in objects.all(NODES)}
        for pod in self._cluster.replicas.pods.values():
            names = fronts.get((pod.namespace, pod.name), ())
            for notes in self._annotations_of(pod, [services.get((pod.namespace, name), {}) for name in names]):
                page = metrics_page_of(pod, notes=notes)
                if isinstance(page, str):
                    problems.append(CollectError(f"{self.name}: {page}", reason=CollectReason.OTHER))
                elif pod.leads or _is_sidecar(page):
                    kind = kinds.get(pod.node)
                    more = {**page.labels, "gpu_type": kind} if kind else page.labels
                    pages.setdefault(page.address, replace(page, labels=more))
        return DiscoverySnapshot(tuple(pages.values()), graph.edges, graph.labels, tuple(problems[:_MOST_FAULTS]))

    def _annotations_of(self, pod: PodFacts, services: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
        """Annotations that request a pod's page: its own, those of its services, or none if selected by label."""
        if pod.is_over or not pod.address or pod.notes.get(SCRAPE, "").lower() == "false":
            return
        if self._selected or wants_scrape(pod.notes):
            yield pod.notes
        yield from filter(wants_scrape, services)

    async def close(self) -> None:
        """Closes all connections."""
        await self._cluster.close()


def _is_sidecar(page: DiscoveredTarget) -> bool:
    """True for a page beside an engine: of a device exporter or a sidecar."""
    return page.adapter in ADAPTERS and adapter(page.adapter).target is not EntityKind.REPLICA
