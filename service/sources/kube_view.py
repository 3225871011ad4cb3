"""Topology and signals of the Kubernetes API, for clusters with or without exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.scrape.target_health import TargetHealth
from outrider.model import EntityKind, EntityRef, SampleBatch
from outrider.topology import Graph, Topology, merge_graphs, unlisted_by_pages

STATE_METRICS = "kube_state_metrics"
GRACE = timedelta(minutes=2)  # an exporter that is unavailable for longer is replaced by the API


class KubeView:
    """The watched clusters, merged with the topology of metrics pages."""

    def __init__(self, clusters: Sequence[KubernetesEventSource], signals: Mapping[str, str] | None = None) -> None:
        """``signals`` is auto, always or never, by name of the source."""
        self.clusters = tuple(clusters)
        self._signals = dict(signals or {})
        self._pages: Topology | None = None
        self._graphs: tuple[Graph, ...] = ()
        self._topology: Topology | None = None

    def topology(self, pages: Topology) -> Topology:
        """Returns both graphs as one, rebuilt only if either changed. Metrics pages take precedence."""
        if not self.clusters:
            return pages
        graphs = tuple(cluster.graph for cluster in self.clusters)
        same = len(graphs) == len(self._graphs) and all(map(lambda a, b: a is b, graphs, self._graphs))
        if self._topology is None or not same or not pages.shares_graph(self._pages):
            self._pages, self._graphs = pages, graphs
            self._topology = _merged(pages, [unlisted_by_pages(pages, graph) for graph in graphs])
        return replace(self._topology, at=pages.at)

    def batches(self, health: Sequence[TargetHealth], at: datetime) -> tuple[SampleBatch, ...]:
        """Returns signals of the API, except of clusters whose kube-state-metrics is read, to avoid duplicates."""
        exporters = [target for target in health if target.adapter == STATE_METRICS and _is_read(target, at)]
        batches: list[SampleBatch] = []
        for cluster in self.clusters:
            mode = self._signals.get(cluster.name, "auto")
            has_exporter = any(exporter.cluster in ("", cluster.cluster) for exporter in exporters)
            if mode == "always" or (mode == "auto" and not has_exporter):
                batches.extend(cluster.batches(at))
        return tuple(batches)


def _is_read(exporter: TargetHealth, at: datetime) -> bool:
    """False if the exporter has been unavailable for longer than a short outage.

    Until then values keep their source, since the two sources differ in timing.
    """
    last = exporter.last_success
    return exporter.up is not False or (last is not None and at - last <= GRACE)


def _merged(pages: Topology, graphs: Sequence[Graph]) -> Topology:
    edges, labels = merge_graphs(pages.edges, pages.labels, graphs)
    known = {entity for edge in edges for entity in edge}
    alone = [entity for entity in pages.entities if entity in labels or entity in known or not _is_unnamed(entity)]
    return Topology.build(edges, (*alone, *labels), labels, pages.at)


def _is_unnamed(entity: EntityRef) -> bool:
    """True for a pod known by its UID only; its name is known by now."""
    return entity.kind is EntityKind.POD and entity.namespace is None
