"""What the Kubernetes API tells beside events: topology that holds without pages, and signals without exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from collectors.kubernetes.event_source import Kubernetes
from collectors.kubernetes.topology import Graph, beside, joined
from collectors.scrape.target_health import TargetHealth
from outrider.model import EntityKind, EntityRef, SampleBatch
from outrider.topology import Topology

STATE_METRICS = "kube_state_metrics"
AWAY = timedelta(minutes=2)  # an exporter that has been away for longer is not waited for


class KubeView:
    """The clusters whose API is followed, seen together with what pages tell."""

    def __init__(self, clusters: Sequence[Kubernetes], signals: Mapping[str, str] | None = None) -> None:
        """``signals`` is auto, always or never by the name of a source."""
        self.clusters = tuple(clusters)
        self._signals = dict(signals or {})
        self._pages: Topology | None = None
        self._graphs: tuple[Graph, ...] = ()
        self._topology: Topology | None = None

    def topology(self, pages: Topology) -> Topology:
        """Both graphs as one, made anew only when either has changed. Facts of pages go before those of the API."""
        if not self.clusters:
            return pages
        graphs = tuple(cluster.graph for cluster in self.clusters)
        same = len(graphs) == len(self._graphs) and all(map(lambda a, b: a is b, graphs, self._graphs))
        if self._topology is None or not same or not pages.shares_graph(self._pages):
            self._pages, self._graphs = pages, graphs
            self._topology = _merged(pages, [beside(pages, one) for one in graphs])
        return replace(self._topology, at=pages.at)

    def batches(self, health: Sequence[TargetHealth], at: datetime) -> tuple[SampleBatch, ...]:
        """Signals of the API; none of a cluster whose kube-state-metrics is read, so that nothing counts twice."""
        exporters = [one for one in health if one.adapter == STATE_METRICS and _is_read(one, at)]
        found: list[SampleBatch] = []
        for cluster in self.clusters:
            wanted = self._signals.get(cluster.name, "auto")
            has_exporter = any(one.cluster in ("", cluster.cluster) for one in exporters)
            if wanted == "always" or (wanted == "auto" and not has_exporter):
                found.extend(cluster.batches(at))
        return tuple(found)


def _is_read(exporter: TargetHealth, at: datetime) -> bool:
    """True unless it is known to be away, and has been for longer than an outage in passing lasts.

    Until then nothing changes doors: the two word their values from different instants.
    """
    last = exporter.last_success
    return exporter.up is not False or (last is not None and at - last <= AWAY)


def _merged(pages: Topology, graphs: Sequence[Graph]) -> Topology:
    edges, labels = joined(pages.edges, pages.labels, graphs)
    known = {entity for edge in edges for entity in edge}
    alone = [one for one in pages.entities if one in labels or one in known or not _is_unnamed(one)]
    return Topology.build(edges, (*alone, *labels), labels, pages.at)


def _is_unnamed(entity: EntityRef) -> bool:
    """True for a pod of which only the uid was known, and which has its name by now."""
    return entity.kind is EntityKind.POD and entity.namespace is None
