"""The topology of the last 15 minutes: current and recently removed edges.

A pod of a lost node is rescheduled within minutes, and from then on no metrics page relates it to that node. The node
still causes its symptoms while it starts. A removed edge is therefore kept for as long as a cause may explain later
symptoms, for correlation only.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.rca.hypotheses import WINDOW
from outrider.topology import Edge, Topology


class RecentTopology:
    """Remembers removed edges. Belongs to one cycle, which passes every topology in turn."""

    def __init__(self, span: timedelta = WINDOW) -> None:
        self._span = span
        self._last: Topology | None = None
        self._edges: frozenset[Edge] = frozenset()
        self._removed: dict[Edge, datetime] = {}
        self._extended: Topology | None = None

    def extend(self, topology: Topology, now: datetime) -> Topology:
        """Returns the topology with the edges removed within the span; the same object if there are none."""
        removed = {edge: at for edge, at in self._removed.items() if now - at < self._span}
        unchanged = topology.shares_graph(self._last) and len(removed) == len(self._removed)
        if not topology.shares_graph(self._last):
            edges = frozenset(topology.edges)
            removed |= dict.fromkeys(self._edges - edges, now)
            removed = {edge: at for edge, at in removed.items() if edge not in edges}
            self._last, self._edges = topology, edges
        self._removed = removed
        if not removed:
            self._extended = None
            return topology
        if self._extended is None or not unchanged:
            edges_of_both = (*topology.edges, *sorted(removed, key=_order))
            self._extended = Topology.build(edges_of_both, topology.entities, topology.labels, topology.at)
        return self._extended


def _order(edge: Edge) -> tuple[str, str]:
    return edge[0].key, edge[1].key
