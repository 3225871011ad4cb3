"""The Kubernetes API as a source of targets and of topology: pods, nodes, and the endpoints of services.

Each resource is listed once and then followed. One that may not be read or does not answer stands as it was
and is told; the others go on.
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
from collectors.kubernetes.cluster import Cluster, notes_of
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
    """One cluster. Pods that ask to be scraped, or that ``label_selector`` chooses, are targets."""

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
        """Without ``label_selector`` annotations alone choose. ``clock`` says how long ago a pod went.

        ``api`` is this one's alone, or the doors of one that others read too: then the same pods are asked for as
        they do, those that are over among them.
        """
        self.name, self.every = name, every
        self._selected = bool(label_selector)
        chosen: tuple[tuple[str, str], ...] = () if isinstance(api, SharedWatches) else (_ALIVE,)
        if label_selector:
            chosen = (_ALIVE, ("labelSelector", label_selector))
        told = [replace(one, optional=False) for one in (NODES, SERVICES, ENDPOINT_SLICES)]
        followed = (replace(PODS, optional=False, chosen=chosen), *told, NODE_TOPOLOGIES, RESOURCE_SLICES)
        self._cluster = Cluster(
            api, cluster, followed, namespaces=namespaces, service_label=service_label, whole_pods=False
        )
        self._clock = clock or SystemClock()
        self._pod_lists = max(1, len(namespaces))
        self._seen, self._version, self._told = DiscoverySnapshot(), -1, [""]

    async def read(self) -> DiscoverySnapshot:
        """Everything there is. Raises CollectError when no pods could be read."""
        told = await self._cluster.read(self._clock.now())
        of_pods = [one.error for one in told.faults if one.resource.name == PODS.name]
        if len(of_pods) == self._pod_lists:
            raise of_pods[0]  # whoever asked keeps what it has
        faults = [one.error for one in told.faults]
        said = [fault.message for fault in faults]
        if self._cluster.version != self._version or said != self._told:
            self._seen = await asyncio.to_thread(self._whole, faults)  # ten thousand pods must not hold the loop
            self._version, self._told = self._cluster.version, said
        return self._seen

    def _whole(self, faults: Sequence[CollectError]) -> DiscoverySnapshot:
        problems: list[CollectError] = list(faults)
        pages: dict[str, DiscoveredTarget] = {}
        objects, graph = self._cluster.objects, self._cluster.graph
        fronts = fronts_of(objects)
        services = {key_of(one): notes_of(one) for one in objects.all(SERVICES)}
        kinds = {key_of(one)[1]: gpu_type_of(labels_of(one)) for one in objects.all(NODES)}
        for pod in self._cluster.replicas.pods.values():
            names = fronts.get((pod.namespace, pod.name), ())
            for asked in self._asked(pod, [services.get((pod.namespace, name), {}) for name in names]):
                page = metrics_page_of(pod, notes=asked)
                if isinstance(page, str):
                    problems.append(CollectError(f"{self.name}: {page}", reason=CollectReason.OTHER))
                elif pod.leads or _is_beside(page):
                    kind = kinds.get(pod.node)
                    more = {**page.labels, "gpu_type": kind} if kind else page.labels
                    pages.setdefault(page.address, replace(page, labels=more))
        return DiscoverySnapshot(tuple(pages.values()), graph.edges, graph.labels, tuple(problems[:_MOST_FAULTS]))

    def _asked(self, pod: PodFacts, services: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
        """The annotations that ask for a pod's page: its own, those of its services, or none but the selector."""
        if pod.is_over or not pod.address or pod.notes.get(SCRAPE, "").lower() == "false":
            return
        if self._selected or wants_scrape(pod.notes):
            yield pod.notes
        yield from filter(wants_scrape, services)

    async def close(self) -> None:
        """Close every connection."""
        await self._cluster.close()


def _is_beside(page: DiscoveredTarget) -> bool:
    """True for a page that is read beside any engine: of a device exporter, a sidecar."""
    return page.adapter in ADAPTERS and adapter(page.adapter).target is not EntityKind.REPLICA
